"""A folder with a translation model of fairseq-train, as a function from batches of tokens to translations."""

import logging
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.data import data_utils
from fairseq.tasks.translation import TranslationTask
from omegaconf.errors import OmegaConfBaseException

from fairseq_clear import register
from fairseq_clear.errors import UserError
from fairseq_clear.patches.checkpoints import read_checkpoint
from fairseq_clear.preparation.back_translation.files import checkpoint_files
from fairseq_clear.preparation.back_translation.segmentation import Segmentation, make_segmentation
from fairseq_clear.preparation.back_translation.settings import BackTranslateSettings, ModelSource, Search

register()

__all__ = ["Translation", "TranslationModel", "load_translation_model", "one_line_error"]

logger = logging.getLogger(__name__)

# What torch.load and fairseq raise on a file that is cut short, of another kind, or does not fit its dictionaries.
_DAMAGE = (RuntimeError, EOFError, KeyError, AttributeError, TypeError, ValueError, IndexError, OmegaConfBaseException)
_EVALUATION_OFF = {"eval_bleu": False, "load_alignments": False}  # a task set up to translate needs none of it


@dataclass(frozen=True)
class Translation:
    """One translation, and whether it ended because it reached the greatest length."""

    text: str
    is_cut: bool


@dataclass
class TranslationModel:
    """One direction: one model or an ensemble, its dictionaries and its segmentation.

    Attributes:
        which: ``forward`` or ``backward``.
        languages: source and target, as the checkpoint names them.
        max_source: most tokens of a source text, ``</s>`` included.
    """

    which: str
    task: TranslationTask
    models: list[Any]
    segmentation: Segmentation
    languages: tuple[str, str]
    max_source: int
    search: Search
    device: torch.device

    def __post_init__(self) -> None:
        self.generator = self.task.build_generator(self.models, _generation(self.search, self.which))

    def encode(self, text: str) -> list[int]:
        """Token ids, ``</s>`` last; words like ``</s>`` in the text itself are unknown, not special."""
        dictionary = self.task.source_dictionary
        ids = [dictionary.index(token) for token in self.segmentation.encode(text).split()]
        return [index if index >= dictionary.nspecial else dictionary.unk() for index in ids] + [dictionary.eos()]

    def count_unknown(self, ids: list[int]) -> int:
        """How many ids the dictionary does not know."""
        return ids.count(self.task.source_dictionary.unk())

    def translate_batch(self, batch: list[list[int]], seed: int) -> list[Translation | None]:
        """The best translation of each text, in order; None where the search found none.

        Args:
            batch: token ids of each text.
            seed: of the draws, if any.
        """
        dictionary = self.task.source_dictionary
        tokens = data_utils.collate_tokens(
            [torch.tensor(ids) for ids in batch],
            dictionary.pad(),
            dictionary.eos(),
            left_pad=bool(getattr(self.task.cfg, "left_pad_source", True)),
        )  # (B, L)
        lengths = torch.tensor([len(ids) for ids in batch])  # (B,)
        sample = {"net_input": {"src_tokens": tokens.to(self.device), "src_lengths": lengths.to(self.device)}}
        if self.search.samples_in(self.which):
            torch.manual_seed(seed)
        found = self.task.inference_step(self.generator, self.models, sample)
        limit = self._length_limit(tokens.shape[1])
        return [self._text(hypotheses[0]["tokens"].tolist(), limit) if hypotheses else None for hypotheses in found]

    def _text(self, ids: list[int], limit: int) -> Translation:
        target = self.task.target_dictionary
        special = {target.eos(), target.bos(), target.pad()}
        pieces = " ".join(target[index] for index in ids if index not in special)
        return Translation(self.segmentation.decode(pieces), len(ids) > limit)

    def _length_limit(self, source_length: int) -> int:
        """Most tokens of a translation before ``</s>``, as fairseq's generator computes it."""
        generator = self.generator
        return min(int(generator.max_len_a * source_length + generator.max_len_b), generator.max_len - 1)


def load_translation_model(settings: BackTranslateSettings, which: str, device: torch.device) -> TranslationModel:
    """The model of ``--forward`` or ``--backward``, in evaluation mode on the device.

    Raises:
        UserError: a missing file, no translation model, dictionaries or codes that are not its own.
    """
    source: ModelSource = getattr(settings, which)
    files = checkpoint_files(source, which)
    folder = source.dictionaries or files[0].parent
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
                raise UserError(f"{file}: translates {' to '.join(languages)}, {files[0]} {' to '.join(expected)}")
            models += load_model_ensemble_and_task([str(file)], task=task, state=state)[0]
        except UserError:
            raise
        except (*_DAMAGE, AssertionError, OSError) as error:
            raise UserError(
                f"{file}: does not load with the dictionaries of {folder} ({one_line_error(error)}); add --{which}-data DIR "
                "with those that it was trained with"
            ) from None
    assert task is not None
    for model in models:
        model.prepare_for_inference_(_inference_settings(settings.search.beam_in(which)))
        model.to(device=device, dtype=torch.float16 if settings.fp16 else torch.float32).eval()
    limits = utils.resolve_max_positions(task.max_positions(), *[model.max_positions() for model in models])
    segmentation = make_segmentation(
        files[0].parent, expected, bpe=settings.bpe, tokenizer=settings.tokenizer, codes=source.codes, flag=which
    )
    logger.info("%s: %s to %s, %d model(s), %s", which, *expected, len(models), segmentation.name)
    return TranslationModel(which, task, models, segmentation, expected, limits[0], settings.search, device)


def _read(path: Path, folder: Path, which: str) -> tuple[dict[str, Any], Any]:
    """The checkpoint's content, and its configuration with ``folder`` as its data."""
    try:
        state: dict[str, Any] = read_checkpoint(str(path), {"data": str(folder), **_EVALUATION_OFF})
        cfg = state["cfg"]
        state["args"] = None  # of fairseq before 0.10; turned into cfg already, or it would be again, taking a second
        name, languages = cfg.task._name, (cfg.task.get("source_lang"), cfg.task.get("target_lang"))
    except UserError:
        raise
    except _DAMAGE as error:
        raise UserError(f"{path}: not a whole checkpoint of fairseq-train ({one_line_error(error)})") from None
    if name != "translation" or None in languages:
        raise UserError(f"{path}: was trained by --task {name}; give one of --task translation with both languages")
    missing = [lang for lang in languages if not (folder / f"dict.{lang}.txt").is_file()]
    if missing:
        raise UserError(f"{path}: no dict.{missing[0]}.txt in {folder}; add --{which}-data DIR with its dictionaries")
    return state, cfg


def _generation(search: Search, which: str) -> Namespace:
    """The generator's settings. ``<unk>`` is never written: it would be a word of the text trained on."""
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


def _inference_settings(beam: int) -> Namespace:
    """What a model reads when it is made ready to translate."""
    return Namespace(generation=Namespace(beam=beam))


def one_line_error(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
