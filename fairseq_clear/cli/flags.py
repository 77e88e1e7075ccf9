"""Commands as dataclasses whose fields are the flags, and the flags and functions that several commands share."""

import argparse
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from fairseq_clear.errors import UserError
from fairseq_clear.files import CorpusFile, hash_file, hash_files, read_text_lines
from fairseq_clear.libraries import log_level
from fairseq_clear.settings import check_settings, flag_name, setting
from fairseq_clear.shared_work import BlockFiles
from fairseq_clear.text.data_folders import CLEAR_JSON, data_folders, load_tokenizer, recorded_tokenizer
from fairseq_clear.text.tokenizers import Gpt2Tokenizer, SentencePieceTokenizer, Tokenizer, WhitespaceTokenizer

if TYPE_CHECKING:
    from fairseq_clear.evaluation.encoders import CachedEncoder
    from fairseq_clear.evaluation.reports import Report

Settings = TypeVar("Settings")
PAIRS = "queries and passages"
METAVARS = {int: "N", float: "X", str: "NAME", Path: "FILE"}
TOKENIZER_HELP = (
    "tokenizer: 'whitespace', a sentencepiece FILE.model, or GPT-2's encoder.json,vocab.bpe; needed for a folder written by "
    "plain fairseq-preprocess, which does not record the tokenizer"
)
ENCODER = (
    "a checkpoint (with --data-bin), a .vec or GloVe .txt file of word vectors to average, or package.module:factory, a "
    "function that returns an object with encode(list of str, batch_size=...) -> vectors"
)
POOLINGS = "cls, mean, max, first-last, last2, wk (SBERT-WK) or layer:N"


def add_flags(parser: "argparse._ActionsContainer", kind: type, *, have_defaults: bool = True) -> None:
    """Declare a flag for each field of a dataclass that has a help text.

    A tuple takes several values. A bool is a switch: ``--no-NAME`` if it defaults to True. The help ends with the default.

    Args:
        parser: parser to which the flags are added. The ``group`` of a field, or else the ``GROUP`` of the class that declares
            the field, names the argument group. Groups that the parser already has are extended.
        kind: a dataclass with fields made by ``fairseq_clear.settings.setting``.
        have_defaults: False makes every default None, for flags that replace values of a preset.
    """
    hints = get_type_hints(kind)
    exclusive: dict[str, Any] = {}
    groups = {group.title: group for group in parser._action_groups} | {None: parser}
    for item in fields(kind):
        if "help" in item.metadata:
            owner = next(base for base in kind.__mro__ if item.name in vars(base).get("__annotations__", {}))
            title = item.metadata.get("group", vars(owner).get("GROUP"))
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            group, default = groups[title], item.default if item.default_factory is MISSING else item.default_factory()
            if name := item.metadata.get("exclusive"):
                group = exclusive[name] = exclusive.get(name) or group.add_mutually_exclusive_group()
            names, options = describe_flag(item, hints[item.name], default if have_defaults else None)
            group.add_argument(*names, **options)


def describe_flag(item: "Field[Any]", hint: Any, default: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the arguments of ``add_argument`` for a field, its type hint and its default (MISSING if required)."""
    metadata, text = item.metadata, item.metadata["help"].replace("%", "%%")
    flag, options = flag_name(item), {"help": text, "dest": flag_dest(item)}
    if hint is bool and default:
        return [f"--no-{flag[2:]}"], {**options, "action": "store_false"}
    if hint is bool:
        return [flag], {**options, "action": "store_true"}
    kind = next(part for part in get_args(hint) or [hint] if part is not NoneType)
    several = tuple in (get_origin(kind), get_origin(hint))
    # X of "tuple[X, ...]" and of "tuple[X, ...] | None"
    kind = get_args(kind)[0] if get_origin(kind) is tuple else kind
    kind = next((part for part in get_args(kind) if part is not NoneType), kind)
    options |= {"type": kind, **({"nargs": "+"} if several else {})}
    options |= {name: metadata[name] for name in ("type", "nargs", "const", "choices", "metavar") if name in metadata}
    if "choices" not in options:
        options.setdefault("metavar", METAVARS.get(kind))
    if metadata.get("positional"):
        return [], options
    if default is MISSING:
        return [flag], {**options, "required": True}
    if default is not None and default != () and "(default" not in text:
        shown = " ".join(map(str, default)) if several else f"{default:g}" if kind is float else default
        options["help"] = f"{text} (default: {shown})".lstrip()
    return [flag], {**options, "default": default}


def flag_dest(item: "Field[Any]") -> str:
    """Return the attribute in which argparse stores a flag; fields of two classes may have the same name."""
    return flag_name(item)[2:].replace("-", "_")


def read_flags(kind: type[Settings], args: argparse.Namespace, **values: Any) -> Settings:
    """Make and check the dataclass from parsed flags and from ``values`` for fields that are not flags."""
    for item in fields(kind):  # type: ignore[arg-type]
        if "help" in item.metadata:
            value = getattr(args, flag_dest(item))
            values[item.name] = tuple(value) if isinstance(value, list) else value
    settings = kind(**values)
    check_settings(settings)
    return settings


@dataclass(kw_only=True)
class Command:
    """A command: the class docstring is the description, the fields are the flags, and ``run`` does the work."""

    EXAMPLES: ClassVar[str] = ""
    STEPS: ClassVar["Mapping[str, tuple[type[Command], str]]"] = {}  # subcommand -> class and one line of help
    STEP: ClassVar[str] = "STEP"
    SHARES_WORK: ClassVar[bool] = False  # whether torchrun may start it in several processes, which share the work

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Declare the description, the examples and the flags, including all subcommands."""
        parser.description = inspect.getdoc(cls)
        if cls.EXAMPLES:
            parser.epilog = "examples:\n  " + "\n  ".join(cls.EXAMPLES.strip("\n").splitlines())
        parser.set_defaults(run=cls.call, shares_work=cls.SHARES_WORK)
        add_flags(parser, cls)
        if cls.STEPS:
            steps = parser.add_subparsers(metavar=cls.STEP, required=True, dest="step")
            for name, (kind, summary) in cls.STEPS.items():
                kind.add_arguments(steps.add_parser(name, help=summary, formatter_class=parser.formatter_class))

    @classmethod
    def call(cls, args: argparse.Namespace) -> int:
        """Run the command on parsed flags, without fairseq's logs; returns the exit status."""
        # otherwise fairseq logs every step, matplotlib every font, and sentence-transformers a bar for each block
        with log_level(logging.WARNING, "fairseq", "fairseq_clear", "matplotlib", "sentence_transformers"):
            return cls.from_flags(args).run()

    @classmethod
    def from_flags(cls, args: argparse.Namespace) -> Self:
        """Make the command from parsed flags."""
        return read_flags(cls, args)

    def run(self) -> int:
        """Do the work and print the result; returns the exit status."""
        raise NotImplementedError


@dataclass(kw_only=True)
class ModelFlags:
    """Flags of commands that encode text with checkpoints."""

    data_bin: str | None = setting("folder with the dict.txt and tokenizer of the checkpoints", None, metavar="DIR")
    tokenizer: str | None = setting(TOKENIZER_HELP, None)
    batch_size: int = setting("texts per batch of the encoder", 32, least=1)
    device: str | None = setting("cpu or cuda (default: cuda if available)", None)

    def load_encoders(self, name: str, poolings: Sequence[str | None]) -> "list[CachedEncoder]":
        """Load an encoder with each pooling, see ``evaluation.encoders.load_encoders``."""
        from fairseq_clear.evaluation.encoders import CachedEncoder, load_encoders

        def tokenizer() -> Tokenizer:
            return choose_tokenizer(self.tokenizer, data_folders(str(self.data_bin))[0])

        loaded = load_encoders(name, poolings, data_bin=self.data_bin, tokenizer=tokenizer, device=self.device)
        encoders = [CachedEncoder(one, batch_size=self.batch_size, name=label, progress=True) for label, one in loaded]
        output = self.resumed_output()
        if output is not None and Path(name).is_file() and "checkpoint" in encoders[0].describe():
            for encoder in encoders:
                encoder.kept = BlockFiles(output, partial(self._describe_origin, name, encoder))
        return encoders

    def _describe_origin(self, name: str, encoder: "CachedEncoder") -> list[Any]:
        tokenizer = hash_tokenizer(self.tokenizer, data_folders(str(self.data_bin))[0])
        return [hash_file(name), tokenizer, encoder.describe()]

    def resumed_output(self) -> Path | None:
        """Output of a command that keeps finished blocks of vectors in OUTPUT.partial; None for other commands."""
        return None


@dataclass(kw_only=True)
class VectorFlags(ModelFlags):
    """Flags of commands that change the vectors of the encoders."""

    dimension: int | None = setting(
        "keep only the first D dimensions of an encoder trained with --matryoshka, and scale to length 1 (default: all)",
        None,
        least=1,
        metavar="D",
        exclusive="dimensions",
    )
    flow: Path | None = setting(
        "map the vectors with the flow in this file, fitted by fairseq-clear flow to the same encoder and pooling "
        "(BERT-flow, Li et al. 2020)",
        None,
        metavar="FILE.npz",
        exclusive="dimensions",
    )


@dataclass(kw_only=True)
class OneEncoderFlags(ModelFlags):
    """Flags for one encoder."""

    encoder: str = setting(ENCODER, metavar="ENC")
    pooling: str | None = setting(f"{POOLINGS} (default: the checkpoint's own)", None)

    def load(self) -> "CachedEncoder":
        """Load the encoder."""
        return self.load_encoders(self.encoder, (self.pooling,))[0]


@dataclass(kw_only=True)
class EncoderFlags(VectorFlags):
    """Flags for the encoders to score, and for the report."""

    encoder: tuple[str, ...] = setting(f"one or several: {ENCODER}", metavar="ENC")
    pooling: tuple[str | None, ...] = setting(
        f"one or several: {POOLINGS}; each is a row (default: the checkpoint's own)", (None,)
    )
    whitening: Path | None = setting(
        "whiten the vectors (Su et al. 2021); the whitening is fitted, without labels, on this file of one sentence per line",
        None,
        exclusive="dimensions",
    )
    whitening_dimensions: int | None = setting("dimensions that whitening keeps (default: all)", None, metavar="K")
    output: Path | None = setting(
        "write the report: numbers, data hashes, protocol, encoders, seeds, versions", None, metavar="FILE.json"
    )
    overwrite: bool = setting("replace an existing report", False)

    def encoders(self) -> Iterator["CachedEncoder"]:
        """Yield every encoder with every pooling; a checkpoint is freed before the next one is loaded."""
        # torch takes seconds to import
        from fairseq_clear.evaluation.postprocessing import Whitening, first_dimensions, load_flow

        if self.whitening_dimensions is not None and self.whitening is None:
            raise UserError(f"--whitening-dimensions {self.whitening_dimensions}: has an effect only with --whitening")
        text_hash = "" if self.whitening is None else hash_file(self.whitening)
        sentences = [] if self.whitening is None else read_text_sentences(self.whitening, flag="--whitening ")
        flow, flow_hash = (load_flow(self.flow), hash_file(self.flow)) if self.flow is not None else (None, "")
        for name in self.encoder:
            for cached in self.load_encoders(name, self.pooling):
                label = cached.name
                if self.whitening is not None:
                    cached.transform = Whitening.fit(cached.encode(sentences), self.whitening_dimensions)
                    cached.name = f"{label} whitened"
                    cached.notes["whitening"] = {
                        "file": str(self.whitening),
                        "sha256": text_hash,
                        "sentences": len(sentences),
                        "dimensions": int(cached.transform.kernel.shape[1]),
                    }
                if flow is not None:
                    flow.check_encoder(cached.describe())
                    cached.transform, cached.name = flow.transform, f"{label} flow"
                    if cached.describe().get("normalized"):
                        cached.transform = partial(flow.normalized, name=label)
                    cached.notes["flow"] = {"file": str(self.flow), "sha256": flow_hash, "fitted on": flow.origin}
                if self.dimension is not None:
                    cached.transform = partial(first_dimensions, dimension=self.dimension, name=label)
                    cached.name, cached.notes["dimension"] = f"{label} first {self.dimension}", self.dimension
                yield cached
                cached.forget()  # the list still refers to it while other poolings are scored
                del cached


@dataclass(kw_only=True)
class PairFlags:
    """Flags of commands that read pairs of a query and a passage."""

    pairs: Path | None = setting(
        "lines of query, tab, passage; or .jsonl records with the fields query and passage",
        None,
        exclusive=PAIRS,
        group=PAIRS,
    )
    query_prefix: str | None = setting(
        "text to put before each query (default: the encoder's prompt of queries, if it has one)", None, metavar="TEXT"
    )
    passage_prefix: str | None = setting(
        "text to put before each passage (default: the encoder's prompt of passages, if it has one)",
        None,
        metavar="TEXT",
    )


def publish(report: "Report", path: Path | None) -> None:
    """Print the table of a report, and write the JSON, if a path is given, even if the reader of the table has left."""
    try:
        print(report.table())
        print(report.caption())
    finally:
        if path is not None:
            report.write(path)


def read_text_sentences(path: Path, *, flag: str = "") -> list[str]:
    """Return the lines that are not blank; UserError, naming the flag, if there are none or the file is .jsonl."""
    if CorpusFile(path).is_jsonl:
        raise UserError(f"{flag}{path}: .jsonl is not supported here; give a text file with one sentence per line")
    sentences = [line for line in read_text_lines(path) if line.strip()]
    if not sentences:
        raise UserError(f"{flag}{path}: holds no sentence")
    return sentences


def choose_tokenizer(name: str | None, folder: Path, fallback: Callable[[], Tokenizer] | None = None) -> Tokenizer:
    """Return the tokenizer of ``--tokenizer`` (TOKENIZER_HELP), else of the data folder, else the fallback; else UserError."""
    if name == "whitespace":
        return WhitespaceTokenizer()
    if name is not None:
        return Gpt2Tokenizer(*name.split(",")) if name.count(",") == 1 else SentencePieceTokenizer(name)
    if (folder / CLEAR_JSON).is_file():
        return load_tokenizer(folder)
    if fallback is not None:
        return fallback()
    raise UserError(
        f"--data-bin {folder}: has no {CLEAR_JSON}, so its tokenizer is not known; add --tokenizer whitespace, "
        "--tokenizer FILE.model or --tokenizer encoder.json,vocab.bpe"
    )


def hash_tokenizer(name: str | None, folder: Path) -> dict[str, str]:
    """Return the name and SHA-256 of each file of the tokenizer that ``choose_tokenizer`` chooses."""
    if name == "whitespace":
        return {name: ""}
    if name is not None:
        paths = [Path(part) for part in (name.split(",") if name.count(",") == 1 else [name])]
    else:
        paths = [folder / name for name in (CLEAR_JSON, *recorded_tokenizer(folder)[1])]
    return hash_files(paths)
