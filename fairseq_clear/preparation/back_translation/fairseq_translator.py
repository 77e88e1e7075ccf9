"""Translates with models of fairseq-train, and with their segmentation: Moses tokenizer, byte pair encoding, sentencepiece."""

import re
from argparse import Namespace
from collections.abc import Callable, Sequence
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
from fairseq_clear.preparation.back_translation.translation_settings import Languages, Model
from fairseq_clear.preparation.back_translation.translator import Tokens, Translation, Translator, clean_line
from fairseq_clear.text.tokenizers import SentencePieceTokenizer

register()

NAMES = ("model*.pt", "checkpoint_best.pt", "checkpoint_last.pt")  # of checkpoints in a folder; the first is taken
# Names of the file of codes in fairseq's archives and examples, tried in this order.
CODE_NAMES = ("bpecodes", "code", "codes", "bpe.codes", "bpe_codes", "sentencepiece.bpe.model", "spm.model")
WORD_END, JOINER = "</w>", "@@"
VERSION = "#version: 0.2"  # first line of subword-nmt's files
MERGE = re.compile(r"([^ ]+) ([^ ]+)( \d+)?")
CACHE_WORDS = 200_000


class FairseqTranslator(Translator):
    """A model with its dictionaries and its segmentation; its languages come from the checkpoint."""

    def __init__(self, model: Model, device: torch.device) -> None:
        super().__init__(model, device)
        file, codes = find_files(model)
        state = _read(file)
        self.languages = (str(state["cfg"].task.source_lang), str(state["cfg"].task.target_lang))
        try:
            self.task = TranslationTask.setup_task(state["cfg"].task)
            self._module = load_model_ensemble_and_task([str(file)], task=self.task, state=state)[0][0]
        except UserError:
            raise
        except (*DAMAGE, AssertionError, OSError) as error:
            raise UserError(
                f"{file}: cannot be loaded with the dictionaries next to it ({one_line(error)}); copy the dictionaries of its "
                "training"
            ) from None
        settings = self.settings
        self._module.prepare_for_inference_(Namespace(generation=Namespace(beam=settings.beam_width)))
        self._module.to(device=device, dtype=torch.float16 if settings.fp16 else torch.float32).eval()
        self.max_source = utils.resolve_max_positions(self.task.max_positions(), self._module.max_positions())[0]
        self.unknown = self.task.source_dictionary.unk()
        self.split, self.join = read_segmentation(self.languages, settings.tokenizer, codes)
        generation = Namespace(
            beam=settings.beam_width,
            sampling=self.draws,
            sampling_topk=settings.sampling or -1,
            max_len_a=settings.max_len_a,
            max_len_b=settings.max_len_b,
            unkpen=float("inf"),  # training would take <unk> for a word of the text
        )
        self._generator = self.task.build_generator([self._module], generation)

    @classmethod
    def files(cls, model: Model) -> list[Path]:
        """The checkpoint, dictionaries and codes."""
        file, codes = find_files(model)
        return [file, *sorted(file.parent.glob("dict.*.txt")), *([codes] if codes else [])]

    def encode(self, text: str) -> Tokens:
        """Convert text to token ids that end in ``</s>``; a special symbol such as ``</s>`` in the text becomes unknown."""
        dictionary = self.task.source_dictionary
        ids = [dictionary.index(piece) for piece in self.split(text)]
        return [index if index >= dictionary.nspecial else self.unknown for index in ids] + [dictionary.eos()]

    def search(self, batch: Sequence[Tokens], seed: int) -> list[Translation]:
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
        found = self.task.inference_step(self._generator, [self._module], sample)
        limit = min(self.longest(batch), self._generator.max_len - 1)  # as fairseq's generator computes it
        return [self._text(hypotheses[0]["tokens"].tolist(), limit) for hypotheses in found]

    def _text(self, ids: list[int], limit: int) -> Translation:
        target = self.task.target_dictionary
        special = {target.eos(), target.bos(), target.pad()}
        pieces = [target[index] for index in ids if index not in special]
        return Translation(clean_line(self.join(pieces)), len(ids) > limit)


def find_files(model: Model) -> tuple[Path, Path | None]:
    """Find the checkpoint of a model, and its file of codes in the same folder; UserError if there is no checkpoint."""
    file = Path(model.path)
    if file.is_dir():
        found = [path for name in NAMES for path in sorted(file.glob(name))]
        if not found:
            raise UserError(
                f"{model.where}: holds none of {', '.join(NAMES)}; unpack the archive, or name the checkpoint"
            )
        file = found[0]
    return file, next((path for name in CODE_NAMES if (path := file.parent / name).is_file()), None)


def _read(path: Path) -> dict[str, Any]:
    """Read a checkpoint; its configuration gets its folder as data folder."""
    state = read_checkpoint(str(path), {"data": str(path.parent), "eval_bleu": False, "load_alignments": False})
    # Settings of fairseq before 0.10 are already converted to cfg; converting them again would take a second.
    state["args"] = None
    task = state["cfg"].task
    languages = [task.get(name) for name in ("source_lang", "target_lang")]
    if task._name != "translation" or None in languages:
        raise UserError(
            f"{path}: was trained by --task {task._name}; give one of --task translation with both languages"
        )
    return state


def read_segmentation(
    languages: Languages, tokenizer: str, codes: Path | None
) -> tuple[Callable[[str], list[str]], Callable[[list[str]], str]]:
    """Return functions that split text into the tokens of a model, and that join tokens.

    A ``.model`` file of codes is sentencepiece; other codes are byte pairs, which ``auto`` applies after the Moses tokenizer,
    as in the WMT19 archives. Without codes, tokens are words separated by spaces. The rules of Moses depend on the languages.

    Raises:
        UserError: the file of codes has another format.
    """
    is_model = codes is not None and codes.suffix == ".model"
    split: Callable[[str], list[str]] = str.split
    join: Callable[[list[str]], str] = " ".join
    if codes is not None:
        subwords = SentencePieceTokenizer(codes) if is_model else BytePairs(codes)
        split, join = subwords.encode, subwords.decode
    if tokenizer == "none" or (tokenizer == "auto" and (codes is None or is_model)):
        return split, join
    rules = {"moses_no_dash_splits": False, "moses_no_escape": False}
    moses = encoders.build_tokenizer(
        Namespace(tokenizer="moses", source_lang=languages[0], target_lang=languages[1], **rules)
    )
    return lambda text: split(moses.encode(text)), lambda pieces: moses.decode(join(pieces))


class BytePairs:
    """Byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909, algorithm 1).

    All pieces of a word except the last end in ``@@``. A line of the file is ``left right count`` (fastBPE), or ``left right``
    below the first line ``#version: 0.2`` (subword-nmt).
    """

    def __init__(self, path: Path) -> None:
        self._ranks: dict[tuple[str, str], int] = {}
        for number, line in enumerate(read_text_lines(path), 1):
            if number == 1 and line == VERSION:
                continue
            if not (found := MERGE.fullmatch(line)):
                raise UserError(
                    f"{path}:{number}: {line[:60]!r} is not a merge; write 'left right' or 'left right count'"
                )
            self._ranks.setdefault((found[1], found[2]), len(self._ranks))  # the first of equal merges counts
        if not self._ranks:
            raise UserError(f"{path}: holds no merge; give the codes that the model was trained with")
        self._pieces = lru_cache(CACHE_WORDS)(self._merge)

    def encode(self, text: str) -> list[str]:
        """Split the words of a text, separated by spaces, into pieces."""
        return [piece for word in text.split(" ") if word for piece in self._pieces(word)]

    def decode(self, pieces: Sequence[str]) -> str:
        """Join pieces into words."""
        return (" ".join(pieces) + " ").replace(JOINER + " ", "").rstrip()

    def _merge(self, word: str) -> list[str]:
        """Return the pieces of a word: merge the pair with the lowest rank everywhere, until no pair has a rank."""
        symbols = [*word[:-1], word[-1] + WORD_END]
        while pairs := [pair for pair in zip(symbols, symbols[1:], strict=False) if pair in self._ranks]:
            best = min(pairs, key=self._ranks.__getitem__)
            joined: list[str] = []
            for symbol in symbols:
                if joined and (joined[-1], symbol) == best:
                    joined[-1] += symbol
                else:
                    joined.append(symbol)
            symbols = joined
        return [*(symbol + JOINER for symbol in symbols[:-1]), symbols[-1].removesuffix(WORD_END)]
