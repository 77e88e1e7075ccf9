"""Texts to vectors with a model in memory: for inference, and for validation while the model trains. Reads no file."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fairseq_clear.augmentations.base import Tokens
from fairseq_clear.data.batch import pad_rows
from fairseq_clear.errors import UserError
from fairseq_clear.models.clear_roberta import ClearRobertaModel
from fairseq_clear.modules.chunking import ENOUGH_CELLS, alike, enough_cells
from fairseq_clear.modules.pooling import parse_pooling
from fairseq_clear.text.tokenizers import Tokenizer

__all__ = ["EncodingCounts", "Floats", "encode_texts", "evaluating", "read_tokens"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class EncodingCounts:
    """What an encoding read; ``+`` adds two up.

    Attributes:
        sentences: texts.
        tokens: tokens that the encoder read, ``<s>`` and ``</s>`` included, padding not.
        unknown: those of them that the vocabulary lacks.
        cells: what it computed, padding included.
        truncated: texts that were longer than the model's positions.
    """

    sentences: int = 0
    tokens: int = 0
    unknown: int = 0
    cells: int = 0
    truncated: int = 0

    def __add__(self, other: "EncodingCounts") -> "EncodingCounts":
        return EncodingCounts(
            self.sentences + other.sentences,
            self.tokens + other.tokens,
            self.unknown + other.unknown,
            self.cells + other.cells,
            self.truncated + other.truncated,
        )

    @property
    def padding_share(self) -> float:
        """Share of the computed cells that was padding; 0 for no texts."""
        return 1 - self.tokens / self.cells if self.cells else 0.0

    @property
    def unknown_share(self) -> float:
        """Share of the text's tokens (without ``<s>`` and ``</s>``) that the vocabulary lacks; 0 for none."""
        words = self.tokens - 2 * self.sentences
        return self.unknown / words if words else 0.0


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout and no gradients within; every module's own mode is restored, also after an error."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def read_tokens(dictionary: Any, tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of ``<s> text </s>``. What reads like ``<s>``, ``<pad>`` or ``</s>`` in the text is unknown, as any other
    word that the vocabulary lacks: padding in mid-text would be left out of the mean.
    """
    framing = {dictionary.bos(), dictionary.pad(), dictionary.eos()}
    ids = [dictionary.index(symbol) for symbol in tokenizer.encode(text)]
    return [dictionary.bos(), *(dictionary.unk() if index in framing else index for index in ids), dictionary.eos()]


def encode_texts(
    model: ClearRobertaModel,
    dictionary: Any,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    *,
    pooling: str | None = None,
    batch_size: int = 32,
    normalize: bool = False,
    max_length: int | None = None,
    on_batch: Callable[[int], object] | None = None,
) -> tuple[Floats, EncodingCounts]:
    """One vector per text, before the projection head, in the order of ``sentences``.

    Texts are sorted by their number of tokens, the longest first (so that memory runs out at once or not at all), and
    batched by tokens: a batch computes at most as many cells as ``batch_size`` rows of the longest text, so short texts go
    more to a batch, and texts of other lengths fewer. Results depend on neither beyond rounding. Nothing random is drawn,
    training mode is left as it was.

    Args:
        model: in memory, on any device; unwrapped or wrapped by fairseq for distributed training.
        dictionary: fairseq's, as the model was trained with.
        tokenizer: text to symbols of the dictionary.
        sentences: texts; an empty one is ``<s> </s>``.
        pooling: another one than the model's.
        batch_size: rows of the longest text per batch.
        normalize: scale vectors to length 1.
        max_length: cut texts to this many tokens, the last being ``</s>`` (default: the model's positions).
        on_batch: called with the number of texts of each batch when it is done.

    Returns:
        (N, D) float32, and what was counted. UserError on unknown pooling, bad sizes, a sentence that is no str.
    """
    pooling = pooling or str(model.args.pooling)
    longest = _check_options(model, pooling, batch_size, max_length)
    rows = [read_tokens(dictionary, tokenizer, text) for text in _check_texts(sentences)]
    tokens = [_cut(row, longest) for row in rows]
    lengths = np.array([len(row) for row in tokens], np.int64)  # (N,)
    truncated = sum(len(row) > longest for row in rows)
    unknown = sum(int((row == dictionary.unk()).sum()) for row in tokens)
    vectors = np.empty((len(tokens), model.args.encoder_embed_dim), np.float32)  # (N, D)
    device = next(model.parameters()).device
    cells = 0
    with evaluating(model):
        for batch in _batches(lengths, batch_size, enough_cells(device)):
            padded = pad_rows([tokens[index] for index in batch], dictionary.pad()).to(device)  # (B, T)
            vectors[batch] = _to_numpy(model.embed(padded, pooling), normalize)
            cells += padded.numel()
            if on_batch is not None:
                on_batch(len(batch))
    return vectors, EncodingCounts(len(tokens), int(lengths.sum()), unknown, cells, truncated)


def _check_options(model: ClearRobertaModel, pooling: str, batch_size: int, max_length: int | None) -> int:
    parse_pooling(pooling, model.args.encoder_layers, flag="pooling")
    positions = int(model.max_positions())
    if batch_size < 1:
        raise UserError(f"batch size {batch_size}: must be 1 or more")
    if max_length is not None and not 2 <= max_length <= positions:
        raise UserError(f"maximum length {max_length}: must be 2 to {positions}, which is how many positions there are")
    return positions if max_length is None else max_length


def _check_texts(sentences: Sequence[str]) -> Sequence[str]:
    for number, text in enumerate(sentences):
        if not isinstance(text, str):
            raise UserError(f"sentence {number} is of type {type(text).__name__}, not str: give a list of strings")
    return sentences


def _cut(row: list[int], longest: int) -> Tokens:
    return np.array(row if len(row) <= longest else [*row[: longest - 1], row[-1]], np.int64)


def _batches(lengths: Tokens, batch_size: int, enough: int = ENOUGH_CELLS["cpu"]) -> Iterator[Tokens]:
    """Indices of each batch, the longest texts first; it ends when full, or with ``enough`` cells where texts get shorter."""
    order = np.argsort(-lengths, kind="stable")
    for rows in alike(lengths[order], batch_size * int(lengths.max(initial=0)), enough):
        yield order[rows]


def _to_numpy(vectors: Tensor, normalize: bool) -> Floats:
    vectors = vectors.float()  # (B, D); a model in half precision would otherwise be normalised in it
    if normalize:
        vectors = nn.functional.normalize(vectors, dim=-1)
    array: Floats = vectors.cpu().numpy()
    return array
