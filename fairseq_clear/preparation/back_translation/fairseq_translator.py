"""Loads translation models of fairseq-train, and translates batches of tokens with them."""

import logging
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from fairseq import utils
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.data import data_utils
from fairseq.tasks.translation import TranslationTask
from omegaconf.errors import OmegaConfBaseException

from fairseq_clear import register
from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import hash_file
from fairseq_clear.patches.checkpoint_files import read_checkpoint
from fairseq_clear.preparation.back_translation.segmentation import Segmentation, make_segmentation
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource, Search
from fairseq_clear.preparation.back_translation.translator import Translation

register()


logger = logging.getLogger(__name__)

TITLE = "a model of fairseq"
LOOKED_FOR = "model*.pt, checkpoint_best.pt or checkpoint_last.pt (fairseq)"
FLAGS = frozenset({"data", "codes", "bpe", "tokenizer", "search", "fp16", "drawn-beam"})
# Raised by torch.load and fairseq for a file that is truncated, of another kind, or does not fit its dictionaries.
_DAMAGE = (RuntimeError, EOFError, KeyError, AttributeError, TypeError, ValueError, IndexError, OmegaConfBaseException)
_EVALUATION_OFF = {"eval_bleu": False, "load_alignments": False}  # not needed to translate
MODEL_NAME = re.compile(r"model\d*\.pt")
TRAINED_NAMES = ("checkpoint_best.pt", "checkpoint_last.pt")
# Names of the file of codes in fairseq's archives and examples, tried in this order.
CODE_NAMES = {
    "bpe": ("bpecodes", "code", "codes", "bpe.codes", "bpe_codes"),
    "sentencepiece": ("sentencepiece.bpe.model", "spm.model", "sentencepiece.model"),
}


@dataclass
class FairseqTranslator:
    """The model of one direction, or an ensemble, with its dictionaries and its segmentation.

    Attributes:
        which: ``forward`` or ``backward``.
        languages: source and target language, as the checkpoint names them.
        max_source: maximum number of tokens of a source text, ``</s>`` included.
    """

    which: str
    task: TranslationTask
    models: list[Any]
    segmentation: Segmentation
    languages: tuple[str, str]
    max_source: int
    search: Search
    device: torch.device
    has_alternatives: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.generator = self.task.build_generator(self.models, _generation(self.search, self.which))

    def encode(self, text: str) -> list[int]:
        """Convert text to token ids that end in ``</s>``; a special symbol such as ``</s>`` in the text becomes unknown."""
        dictionary = self.task.source_dictionary
        ids = [dictionary.index(token) for token in self.segmentation.encode(text).split()]
        return [index if index >= dictionary.nspecial else dictionary.unk() for index in ids] + [dictionary.eos()]

    def count_unknown(self, ids: list[int]) -> int:
        """Number of unknown tokens."""
        return ids.count(self.task.source_dictionary.unk())

    @property
    def draws(self) -> bool:
        """Whether words are drawn, so that translations depend on the seed."""
        return self.search.samples_in(self.which)

    def translate_batch(self, batch: Sequence[list[int]], seed: int, count: int = 1) -> list[list[Translation]]:
        """Translate texts; see ``Translator``."""
        dictionary = self.task.source_dictionary
        tokens = data_utils.collate_tokens(
            [torch.tensor(ids) for ids in batch],
            dictionary.pad(),
            dictionary.eos(),
            left_pad=bool(getattr(self.task.cfg, "left_pad_source", True)),
        )  # (B, L)
        lengths = torch.tensor([len(ids) for ids in batch])  # (B,)
        sample = {"net_input": {"src_tokens": tokens.to(self.device), "src_lengths": lengths.to(self.device)}}
        if self.draws:
            torch.manual_seed(seed)
        found = self.task.inference_step(self.generator, self.models, sample)
        limit = self._length_limit(tokens.shape[1])
        return [[self._text(one["tokens"].tolist(), limit) for one in hypotheses[:count]] for hypotheses in found]

    def _text(self, ids: list[int], limit: int) -> Translation:
        target = self.task.target_dictionary
        special = {target.eos(), target.bos(), target.pad()}
        pieces = " ".join(target[index] for index in ids if index not in special)
        return Translation(self.segmentation.decode(pieces), len(ids) > limit)

    def _length_limit(self, source_length: int) -> int:
        """Maximum number of tokens of a translation before ``</s>``, as fairseq's generator computes it."""
        generator = self.generator
        return min(int(generator.max_len_a * source_length + generator.max_len_b), generator.max_len - 1)


def matches(path: str) -> bool:
    """Whether this is a folder with checkpoints, or files joined by ``:``."""
    folder = Path(path)
    if folder.is_dir():
        return any(folder.glob("*.pt"))
    return any(Path(part).is_file() for part in path.split(":"))


def checkpoint_files(source: ModelSource, which: str) -> list[Path]:
    """Find the checkpoints of ``--forward`` or ``--backward``: all ``model*.pt`` of a folder, or its best or last checkpoint.

    Raises:
        UserError: no checkpoint is found.
    """
    folder = Path(source.path)
    if folder.is_dir():
        found = sorted(path for path in folder.glob("*.pt") if MODEL_NAME.fullmatch(path.name))
        found = found or [folder / name for name in TRAINED_NAMES if (folder / name).is_file()][:1]
        if not found:
            raise UserError(
                f"--{which} {folder}: holds neither model*.pt nor {' nor '.join(TRAINED_NAMES)}; unpack the archive, "
                "or name the checkpoint itself"
            )
        return found
    files = [Path(part) for part in source.path.split(":")]
    for file in files:
        if not file.is_file():
            raise UserError(f"--{which} {file}: no such file or folder")
    return files


def _find_files(settings: BackTranslateSettings, which: str) -> tuple[list[Path], Path, Path | None]:
    """Find checkpoints, folder of the dictionaries, and file of codes of a direction."""
    source: ModelSource = getattr(settings, which)
    files = checkpoint_files(source, which)
    folder = source.dictionaries or files[0].parent
    if settings.bpe == "none":
        return files, folder, None
    kinds = CODE_NAMES if settings.bpe == "auto" else (settings.bpe,)
    candidates = [files[0].parent / name for kind in kinds for name in CODE_NAMES[kind]]
    codes = source.codes or next((path for path in candidates if path.is_file()), None)
    if codes is not None and not codes.is_file():
        raise UserError(f"--{which}-codes {codes}: no such file")
    if codes is None and settings.bpe != "auto":
        raise UserError(f"--bpe {settings.bpe}: no codes in {files[0].parent}; add --{which}-codes FILE")
    return files, folder, codes


def identity(settings: BackTranslateSettings, which: str) -> dict[str, str]:
    """Hash the checkpoints, dictionaries and codes of a direction (SHA-256, by file name).

    Raises:
        UserError: one of them is missing.
    """
    files, folder, codes = _find_files(settings, which)
    dictionaries = sorted(folder.glob("dict.*.txt"))
    if not dictionaries:
        raise UserError(f"--{which} {files[0]}: no dict.LANGUAGE.txt in {folder}; add --{which}-data DIR")
    try:
        return {path.name: hash_file(path) for path in (*files, *dictionaries, codes) if path is not None}
    except OSError as error:
        raise UserError(f"{error.filename}: cannot read it ({error.strerror or error})") from None


def load_translator(settings: BackTranslateSettings, which: str, device: torch.device) -> FairseqTranslator:
    """Load the model of ``--forward`` or ``--backward`` on the device, in evaluation mode.

    Raises:
        UserError: a file is missing, is not a translation model, or dictionaries or codes belong to another model.
    """
    files, folder, codes = _find_files(settings, which)
    task: TranslationTask | None = None
    models = []
    for file in files:
        state, cfg = _read(file, folder, which)
        languages = (str(cfg.task.source_lang), str(cfg.task.target_lang))
        try:
            if task is None:
                task = TranslationTask.setup_task(cfg.task)
                expected = languages
            if languages != expected:
                raise UserError(f"{file}: translates {' to '.join(languages)}, but {files[0]} {' to '.join(expected)}")
            models += load_model_ensemble_and_task([str(file)], task=task, state=state)[0]
        except UserError:
            raise
        except (*_DAMAGE, AssertionError, OSError) as error:
            raise UserError(
                f"{file}: cannot be loaded with the dictionaries of {folder} ({one_line(error)}); add "
                f"--{which}-data DIR with the dictionaries of its training"
            ) from None
    assert task is not None
    for model in models:
        beam = settings.search.beam_in(which)
        model.prepare_for_inference_(Namespace(generation=Namespace(beam=beam)))
        model.to(device=device, dtype=torch.float16 if settings.fp16 else torch.float32).eval()
    limits = utils.resolve_max_positions(task.max_positions(), *[model.max_positions() for model in models])
    segmentation = make_segmentation(expected, bpe=settings.bpe, tokenizer=settings.tokenizer, codes=codes)
    logger.info("%s: %s to %s, %d model(s), %s", which, *expected, len(models), segmentation.name)
    return FairseqTranslator(which, task, models, segmentation, expected, limits[0], settings.search, device)


def _read(path: Path, folder: Path, which: str) -> tuple[dict[str, Any], Any]:
    """Read a checkpoint; return its content, and its configuration with ``folder`` as data folder."""
    try:
        state: dict[str, Any] = read_checkpoint(str(path), {"data": str(folder), **_EVALUATION_OFF})
        cfg = state["cfg"]
        state["args"] = (
            None  # settings of fairseq before 0.10, already converted to cfg; converting them again would take a second
        )
        name, languages = cfg.task._name, (cfg.task.get("source_lang"), cfg.task.get("target_lang"))
    except UserError:
        raise
    except _DAMAGE as error:
        raise UserError(f"{path}: not a complete checkpoint of fairseq-train ({one_line(error)})") from None
    if name != "translation" or None in languages:
        raise UserError(f"{path}: was trained by --task {name}; give one of --task translation with both languages")
    missing = [lang for lang in languages if not (folder / f"dict.{lang}.txt").is_file()]
    if missing:
        raise UserError(f"{path}: no dict.{missing[0]}.txt in {folder}; add --{which}-data DIR with its dictionaries")
    return state, cfg


def _generation(search: Search, which: str) -> Namespace:
    """Settings of the generator. It never writes ``<unk>``, because training would take that for a word of the text."""
    samples = search.samples_in(which)
    return Namespace(
        beam=search.beam_in(which),
        sampling=samples,
        sampling_topk=(search.sampling_topk or -1) if samples else -1,
        sampling_topp=(search.sampling_topp or -1.0) if samples else -1.0,
        temperature=search.temperature,
        lenpen=search.lenpen,
        max_len_a=search.max_len_a,
        max_len_b=search.max_len_b,
        unkpen=float("inf"),
    )
