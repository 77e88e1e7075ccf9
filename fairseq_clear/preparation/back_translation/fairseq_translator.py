"""Translates with models of fairseq-train, and with their segmentation: Moses tokenizer, byte pair encoding, sentencepiece."""

import logging
import re
from argparse import Namespace
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.data import data_utils, encoders
from fairseq.tasks.translation import TranslationTask

from fairseq_clear import register
from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import read_text_lines
from fairseq_clear.patches.checkpoint_files import DAMAGE, read_checkpoint
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource
from fairseq_clear.preparation.back_translation.translator import (
    Tokens,
    Translation,
    Translator,
    clean_line,
    hash_files,
)

register()

logger = logging.getLogger(__name__)

_EVALUATION_OFF = {"eval_bleu": False, "load_alignments": False}  # not needed to translate
MODEL_NAME = re.compile(r"model\d*\.pt")
TRAINED_NAMES = ("checkpoint_best.pt", "checkpoint_last.pt")
# Names of the file of codes in fairseq's archives and examples, tried in this order.
CODE_NAMES = {
    "bpe": ("bpecodes", "code", "codes", "bpe.codes", "bpe_codes"),
    "sentencepiece": ("sentencepiece.bpe.model", "spm.model", "sentencepiece.model"),
}
WORD_END, JOINER = "</w>", "@@"  # of byte pair encoding
CACHE_WORDS = 200_000


class FairseqTranslator(Translator):
    """A model, or an ensemble, with its dictionaries and its segmentation; its languages are those of the checkpoint."""

    TITLE = "a model of fairseq"
    LOOKED_FOR = "model*.pt, checkpoint_best.pt or checkpoint_last.pt (fairseq)"
    FLAGS = frozenset({"data", "codes", "bpe", "tokenizer", "search", "fp16", "drawn-beam"})

    def __init__(self, settings: BackTranslateSettings, which: str, device: torch.device) -> None:
        super().__init__(settings, which, device)
        files, folder, codes = _find_files(settings, which)
        self.models: list[Any] = []
        for file in files:
            state = _read(file, folder, which)
            languages = (str(state["cfg"].task.source_lang), str(state["cfg"].task.target_lang))
            if self.models and languages != self.languages:
                expected = " to ".join(self.languages or ())
                raise UserError(f"{file}: translates {' to '.join(languages)}, but {files[0]} {expected}")
            self.languages = languages
            try:
                if not self.models:
                    self.task = TranslationTask.setup_task(state["cfg"].task)
                self.models += load_model_ensemble_and_task([str(file)], task=self.task, state=state)[0]
            except UserError:
                raise
            except (*DAMAGE, AssertionError, OSError) as error:
                raise UserError(
                    f"{file}: cannot be loaded with the dictionaries of {folder} ({one_line(error)}); add "
                    f"--{which}-data DIR with the dictionaries of its training"
                ) from None
        beam = self.search.beam_in(which)
        for model in self.models:
            model.prepare_for_inference_(Namespace(generation=Namespace(beam=beam)))
            model.to(device=device, dtype=torch.float16 if settings.fp16 else torch.float32).eval()
        limits = [model.max_positions() for model in self.models]
        self.max_source = utils.resolve_max_positions(self.task.max_positions(), *limits)[0]
        self.segmentation = Segmentation(languages, bpe=settings.bpe, tokenizer=settings.tokenizer, codes=codes)
        search = self.search
        generation = Namespace(
            beam=beam,
            sampling=self.draws,
            sampling_topk=(self.draws and search.sampling_topk) or -1,
            sampling_topp=(self.draws and search.sampling_topp) or -1.0,
            temperature=search.temperature,
            lenpen=search.lenpen,
            max_len_a=search.max_len_a,
            max_len_b=search.max_len_b,
            unkpen=float("inf"),  # training would take <unk> for a word of the text
        )
        self.generator = self.task.build_generator(self.models, generation)
        logger.info("%s: %s to %s, %d model(s), %s", which, *languages, len(self.models), self.segmentation.name)

    @staticmethod
    def matches(path: str) -> bool:
        """Whether this is a folder with checkpoints, or files joined by ``:``."""
        folder = Path(path)
        if folder.is_dir():
            return any(folder.glob("*.pt"))
        return any(Path(part).is_file() for part in path.split(":"))

    @staticmethod
    def identity(settings: BackTranslateSettings, which: str) -> dict[str, str]:
        """Hash the checkpoints, dictionaries and codes of a direction (SHA-256, by file name)."""
        files, folder, codes = _find_files(settings, which)
        dictionaries = sorted(folder.glob("dict.*.txt"))
        if not dictionaries:
            raise UserError(f"--{which} {files[0]}: no dict.LANGUAGE.txt in {folder}; add --{which}-data DIR")
        return hash_files(path for path in (*files, *dictionaries, codes) if path is not None)

    def encode(self, text: str) -> Tokens:
        """Convert text to token ids that end in ``</s>``; a special symbol such as ``</s>`` in the text becomes unknown."""
        dictionary = self.task.source_dictionary
        ids = [dictionary.index(token) for token in self.segmentation.encode(text).split()]
        return [index if index >= dictionary.nspecial else dictionary.unk() for index in ids] + [dictionary.eos()]

    def count_unknown(self, tokens: Tokens) -> int:
        """Number of unknown tokens."""
        return tokens.count(self.task.source_dictionary.unk())

    def translate_batch(self, batch: Sequence[Tokens], seed: int, count: int = 1) -> list[list[Translation]]:
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
        # as fairseq's generator computes it, before </s>
        limit = int(self.generator.max_len_a * tokens.shape[1] + self.generator.max_len_b)
        limit = min(limit, self.generator.max_len - 1)
        return [[self._text(one["tokens"].tolist(), limit) for one in hypotheses[:count]] for hypotheses in found]

    def _text(self, ids: list[int], limit: int) -> Translation:
        target = self.task.target_dictionary
        special = {target.eos(), target.bos(), target.pad()}
        pieces = " ".join(target[index] for index in ids if index not in special)
        return Translation(self.segmentation.decode(pieces), len(ids) > limit)


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
    source = settings.source(which)
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


def _read(path: Path, folder: Path, which: str) -> dict[str, Any]:
    """Read a checkpoint; its configuration gets ``folder`` as data folder."""
    state = read_checkpoint(str(path), {"data": str(folder), **_EVALUATION_OFF})
    # Settings of fairseq before 0.10 are already converted to cfg; converting them again would take a second.
    state["args"] = None
    task = state["cfg"].task
    languages = [task.get(name) for name in ("source_lang", "target_lang")]
    if task._name != "translation" or None in languages:
        raise UserError(
            f"{path}: was trained by --task {task._name}; give one of --task translation with both languages"
        )
    for language in languages:
        if not (folder / f"dict.{language}.txt").is_file():
            raise UserError(f"{path}: no dict.{language}.txt in {folder}; add --{which}-data DIR with its dictionaries")
    return state


class Segmentation:
    """The steps from text to the tokens of a model, and back.

    With ``auto``, codes in a ``.model`` file are taken as sentencepiece, other codes as byte pair encoding after the Moses
    tokenizer, as in the WMT19 archives. Without codes, tokens are words separated by spaces.

    ``bpe`` and ``tokenizer`` are those of the settings, ``name`` is for the log. The rules of Moses depend on the languages.

    Raises:
        UserError: the file has another format, or sacremoses is not installed.
    """

    def __init__(self, languages: tuple[str, str], *, bpe: str, tokenizer: str, codes: Path | None) -> None:
        is_model = codes is not None and codes.suffix == ".model"
        kind = bpe if bpe != "auto" else "sentencepiece" if is_model else "bpe"
        self._steps: list[Any] = []  # steps of encoding; decoding applies them in reverse
        names = []
        if tokenizer == "moses" or (tokenizer == "auto" and kind == "bpe" and codes is not None):
            flags = {"moses_no_dash_splits": False, "moses_no_escape": False}
            source, target = languages
            moses = Namespace(tokenizer="moses", source_lang=source, target_lang=target, **flags)
            try:
                self._steps.append(encoders.build_tokenizer(moses))
            except ImportError:
                raise UserError("--tokenizer moses needs sacremoses; pip install sacremoses") from None
            names.append("moses")
        if codes is not None:
            self._steps.append(BytePairs(codes) if kind == "bpe" else _sentencepiece(codes))
            names.append(f"{kind} ({codes})")
        self.name = " + ".join(names) or "words between spaces"

    def encode(self, text: str) -> str:
        """Convert text to tokens separated by spaces."""
        for step in self._steps:
            text = step.encode(text)
        return text

    def decode(self, tokens: str) -> str:
        """Convert tokens separated by spaces to one line of text."""
        for step in reversed(self._steps):
            tokens = step.decode(tokens)
        return clean_line(tokens)


def _sentencepiece(path: Path) -> Any:
    settings = {"sentencepiece_model": str(path), "sentencepiece_enable_sampling": False, "sentencepiece_alpha": None}
    try:
        return encoders.build_bpe(Namespace(bpe="sentencepiece", **settings))
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path}: not a sentencepiece model ({one_line(error)})") from None


def read_codes(path: Path) -> tuple[dict[tuple[str, str], int], bool]:
    """Read the codes of fastBPE (``left right count``) or subword-nmt (``#version: 0.2``, then ``left right``).

    Returns:
        Each merge with its rank, and whether the end-of-word mark is part of a word's last character. In version 0.1 of
        subword-nmt, whose files have no version line, it is a separate symbol.

    Raises:
        UserError: a line that is not a merge.
    """
    lines = read_text_lines(path)
    first = lines[0] if lines else ""
    has_version = first.startswith("#version:")
    is_joined = first.split(":", 1)[1].strip() != "0.1" if has_version else len(first.split(" ")) != 2
    merges: dict[tuple[str, str], int] = {}
    for number, line in enumerate(lines[has_version:], 1 + has_version):
        parts = line.split(" ")
        if len(parts) not in (2, 3) or not all(parts) or (len(parts) == 3 and not parts[2].isdecimal()):
            raise UserError(
                f"{path}:{number}: {line[:60]!r} is not a merge; BPE codes have 'left right' or 'left right count' on each line"
            )
        merges.setdefault((parts[0], parts[1]), len(merges))  # of equal merges, the first counts
    if not merges:
        raise UserError(f"{path}: holds no merge; give the codes that the model was trained with")
    return merges, is_joined


class BytePairs:
    """Byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909, algorithm 1); all but a word's last piece end in ``@@``.

    Implemented here because the fastBPE package needs a compiler. Both fastBPE and subword-nmt apply codes in this way.
    """

    def __init__(self, path: Path) -> None:
        self._merges, self._joined = read_codes(path)
        self._pieces = lru_cache(CACHE_WORDS)(self._merge)

    def encode(self, text: str) -> str:
        """Split words into pieces, both separated by spaces."""
        return " ".join(self._pieces(word) for word in text.split(" ") if word)

    def decode(self, text: str) -> str:
        """Join pieces to words."""
        return (text + " ").replace(JOINER + " ", "").rstrip()

    def _merge(self, word: str) -> str:
        """Return the pieces of a word: the pair with the lowest rank is merged everywhere, until no pair has a rank."""
        symbols = [*word[:-1], word[-1] + WORD_END] if self._joined else [*word, WORD_END]
        while pairs := [pair for pair in zip(symbols, symbols[1:], strict=False) if pair in self._merges]:
            symbols = _join(symbols, min(pairs, key=self._merges.__getitem__))
        return f"{JOINER} ".join(symbols).removesuffix(WORD_END).removesuffix(f"{JOINER} ")


def _join(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    joined: list[str] = []
    index = 0
    while index < len(symbols):
        is_pair = tuple(symbols[index : index + 2]) == pair
        joined.append(pair[0] + pair[1] if is_pair else symbols[index])
        index += 1 + is_pair
    return joined
