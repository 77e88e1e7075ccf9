"""``fairseq-clear back-translate``: translates a text into another language and back."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from fairseq_clear.cli.flags import Command, add_flags, read_flags
from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource, Search
from fairseq_clear.settings import setting

MODEL = (
    "a folder of fairseq (model*.pt, of which several are an ensemble; checkpoint_best.pt or checkpoint_last.pt), or its "
    "checkpoints joined by ':'; a folder of CTranslate2 (model.bin); a local Hugging Face folder of Marian, NLLB or M2M100; or "
    "package.module:factory, a function that returns an object with translate(list of str) -> list of str. Give several to "
    "translate through several languages"
)
DICTIONARIES = "fairseq: folder of the model's dict.LANGUAGE.txt (default: the checkpoint's folder)"
CODES = (
    "fairseq: the model's BPE codes (of fastBPE or subword-nmt) or sentencepiece FILE.model (default: bpecodes, code, codes, "
    "sentencepiece.bpe.model or spm.model in the checkpoint's folder)"
)
LANGUAGES = (
    "CTranslate2, Hugging Face: the languages by the model's own names, such as eng_Latn:por_Latn (NLLB), en:pt (M2M100); "
    "needed by models of several languages"
)


Pair = tuple[str, str]


def language_pair(text: str) -> Pair:
    """Read SOURCE:TARGET; argparse.ArgumentTypeError for another form."""
    source, _, target = text.partition(":")
    if not source or not target or ":" in target:
        raise argparse.ArgumentTypeError(f"{text!r} is not SOURCE:TARGET, such as eng_Latn:por_Latn")
    return source, target


def _each(text: str, **others: Any) -> Any:
    """A flag with one value per pair of models; it may also be repeated."""
    return setting(text, nargs="+", action="extend", **others)


@dataclass(kw_only=True)
class ModelFlags:
    """The models of both directions, and the outputs: one value for each language that the text is translated through."""

    GROUP: ClassVar[str] = "models"

    forward: tuple[str, ...] = _each(f"model that translates into the other language: {MODEL}", metavar="MODEL")
    forward_data: tuple[Path, ...] | None = _each(DICTIONARIES, default=None, metavar="DIR")
    forward_codes: tuple[Path, ...] | None = _each(CODES, default=None)
    forward_languages: tuple[Pair, ...] | None = _each(
        LANGUAGES, default=None, type=language_pair, metavar="SOURCE:TARGET"
    )
    backward: tuple[str, ...] = _each("model that translates back, named as --forward", metavar="MODEL")
    backward_data: tuple[Path, ...] | None = _each(DICTIONARIES, default=None, metavar="DIR")
    backward_codes: tuple[Path, ...] | None = _each(CODES, default=None)
    backward_languages: tuple[Pair, ...] | None = _each(
        LANGUAGES, default=None, type=language_pair, metavar="SOURCE:TARGET"
    )
    output: tuple[Path, ...] = _each("file to write the paraphrases to; one for each pair of models", group=None)


@dataclass(kw_only=True)
class BackTranslate(Command, ModelFlags):
    """Translate every line of a text into another language and back, with translation models of any kind.

    A model is one of fairseq-train (an unpacked WMT19 archive, or any checkpoint of --task translation with its dictionaries
    and codes), of CTranslate2, of Hugging Face, or a function of your own.

    The output has exactly one line for each input line. A blank line stays blank; control characters and runs of white space
    become one space. A line that cannot be translated keeps its own text and is counted. To resume a killed call, rerun it:
    finished chunks are not translated again, and the output equals that of an uninterrupted call. The report (identical
    lines, lengths, self-BLEU, self-chrF, which lines were kept and why, examples) is written next to the output.
    """

    EXAMPLES: ClassVar[str] = r"""
fairseq-clear back-translate --input train.txt --forward wmt19.en-de.joined-dict.ensemble \
    --backward wmt19.de-en.joined-dict.ensemble --output train.de.txt --device cuda --fp16
fairseq-clear back-translate --input train.txt --forward opus-mt-en-pt --backward opus-mt-pt-en \
    --output train.pt.txt --copies 2                       # train.pt.0.txt and train.pt.1.txt
fairseq-clear back-translate --input train.txt --forward nllb --forward-languages eng_Latn:por_Latn \
    --backward nllb --backward-languages por_Latn:eng_Latn --output train.pt.txt
fairseq-clear back-translate --input train.txt --forward en-de en-zh --backward de-en zh-en \
    --output train.de.txt train.zh.txt                     # two languages
fairseq-clear back-translate --input train.txt --forward en-de --backward de-en --output train.de.txt \
    --num-shards 16 --shard-id $SLURM_ARRAY_TASK_ID        # train.de.txt.00of16 ...
fairseq-clear back-translate --input train.txt --forward en-de --backward de-en --output train.de.txt \
    --num-shards 16 --merge                                # the same flags: joins the shards and their reports"""

    runs: tuple[BackTranslateSettings, ...]
    merge: bool = setting(
        "join the finished shards into OUTPUT, with one report; fails if a shard is missing or has other settings",
        False,
        group="running",
    )

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Declare the flags of the command, of its settings and of the search."""
        super().add_arguments(parser)
        add_flags(parser, BackTranslateSettings)
        add_flags(parser, Search)

    @classmethod
    def from_flags(cls, args: argparse.Namespace) -> Self:
        """Make the command with its settings from the flags.

        Raises:
            UserError: the flags of the models do not have one value for each pair of models.
        """
        count = len(args.forward)
        for name in ("backward", "output"):
            if len(getattr(args, name)) != count:
                found = len(getattr(args, name))
                raise UserError(f"--{name}: {found} given, but {count} --forward; give one for each pair of models")
        if len(set(args.output)) < count:
            raise UserError("--output: names a file twice; give each pair of models its own")
        sources = {which: cls._sources(args, which) for which in ("forward", "backward")}
        search = read_flags(Search, args)
        runs = tuple(
            read_flags(BackTranslateSettings, args, search=search, output=output, forward=forward, backward=backward)
            for output, forward, backward in zip(args.output, sources["forward"], sources["backward"], strict=True)
        )
        return read_flags(cls, args, runs=runs)

    @staticmethod
    def _sources(args: argparse.Namespace, which: str) -> list[ModelSource]:
        """The models of a direction."""
        paths = getattr(args, which)
        parts = []
        for part in ("data", "codes", "languages"):
            values = getattr(args, f"{which}_{part}") or [None] * len(paths)
            if len(values) != len(paths):
                raise UserError(f"--{which}-{part}: {len(values)} given, but {len(paths)} --{which}; give one for each")
            parts.append(values)
        return [ModelSource(*values) for values in zip(paths, *parts, strict=True)]

    def run(self) -> int:
        """Translate the text and print the reports."""
        for settings in self.runs:
            settings.check()
        # fairseq takes seconds to import
        from fairseq_clear.preparation.back_translation import round_trip

        if len(self.runs) > 1:
            for settings in self.runs:  # an error of the last pair is found before the first one translates
                round_trip.check(settings)
        for settings in self.runs:
            outcome = round_trip.merge_shards(settings) if self.merge else round_trip.back_translate(settings)
            print(outcome.summary())
        return 0
