"""Encoding texts as vectors with a model in memory, for inference and for validation during training."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fairseq_clear.errors import UserError
from fairseq_clear.models.text_model import TextModel
from fairseq_clear.modules.chunking import ENOUGH_CELLS, alike, enough_cells
from fairseq_clear.modules.pooling import parse_pooling
from fairseq_clear.text.tokenizers import HfTokenizer, Tokenizer
from fairseq_clear.tokens import Ragged, Tokens

Floats = npt.NDArray[np.float32]

PROMPT_SAMPLES = 300  # words of the vocabulary that may join with a prompt


@dataclass(frozen=True)
class EncodingCounts:
    """Counts of the texts and tokens that were encoded; ``+`` adds the counts of two encodings.

    Attributes:
        sentences: number of texts.
        tokens: tokens that the encoder read, including ``<s>`` and ``</s>``, without padding.
        unknown: tokens that are not in the vocabulary.
        cells: tokens that the encoder computed, including padding.
        truncated: texts that were longer than the maximum length and were cut.
    """

    sentences: int = 0
    tokens: int = 0
    unknown: int = 0
    cells: int = 0
    truncated: int = 0

    def __add__(self, other: "EncodingCounts") -> "EncodingCounts":
        return EncodingCounts(*map(add, astuple(self), astuple(other)))

    @property
    def padding_share(self) -> float:
        """Share of padding in the computed cells; 0 without texts."""
        return 1 - self.tokens / self.cells if self.cells else 0.0

    @property
    def unknown_share(self) -> float:
        """Share of unknown tokens among the text's tokens (without ``<s>`` and ``</s>``); 0 without tokens."""
        words = self.tokens - 2 * self.sentences
        return self.unknown / words if words else 0.0


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch off dropout and gradients inside the block; every module's training mode is restored at the end."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def sentence_settings(model: TextModel) -> dict[str, Any]:
    """What the imported folder said of its vectors, see ``text.sentence_folders.SentenceSettings``; empty without one."""
    return dict(getattr(model.args, "sentence_settings", None) or {})


def prompts_of(model: TextModel) -> dict[str, str]:
    """The prompts of the imported folder, by name: texts that are put before a query, a passage, and so on."""
    prompts = sentence_settings(model).get("config", {}).get("prompts") or {}
    return {str(name): str(text) for name, text in prompts.items() if text is not None}


def prompt_ids(dictionary: Any, tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the ids of a prompt before any text, without ``<s>``.

    Raises:
        UserError: the prompt and the text after it have other ids than each of them alone.
    """
    step = max(1, len(dictionary) // PROMPT_SAMPLES)
    words = (tokenizer.decode([symbol]).strip() for symbol in dictionary.symbols[dictionary.nspecial :: step])
    found = set()
    for text in ("A film.", "1 of 2", *(word for word in words if word[:1].isalnum())):
        own, joined = (read_tokens(dictionary, tokenizer, some)[1:-1] for some in (text, prompt + text))
        cut = len(joined) - len(own)
        found.add(tuple(joined[:cut]) if joined[cut:] == own else None)
    if len(found) > 1 or None in found:
        raise UserError(
            f"--prompts: the tokenizer joins the prompt {prompt!r} with the text behind it, but training puts it before texts "
            "that were tokenized without it; leave the flag out, or give refine the flags -- --prompts ''"
        )
    return list(found.pop() or ())


def text_length(model: TextModel) -> int:
    """Tokens to which texts are cut: the limit of the imported folder, at most the number of positions."""
    return min(int(sentence_settings(model).get("max_length") or sys.maxsize), int(model.max_positions()))


def read_tokens(dictionary: Any, tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of ``<s> text </s>``."""
    return read_texts(dictionary, tokenizer, [text])[0]


def read_texts(dictionary: Any, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of ``<s> text </s>`` for each text; tokenizers of Hugging Face use all cores."""
    # one text after the other, a GPU waits longer for the tokens of long texts than it computes
    split = tokenizer.encode_all(texts) if isinstance(tokenizer, HfTokenizer) else map(tokenizer.encode, texts)
    known, bos, eos, unknown = dictionary.indices, dictionary.bos(), dictionary.eos(), dictionary.unk()
    return [[bos, *(known.get(symbol, unknown) for symbol in symbols), eos] for symbols in split]


def encode_texts(
    model: TextModel,
    dictionary: Any,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    *,
    pooling: str | None = None,
    batch_size: int = 32,
    normalize: bool = False,
    max_length: int | None = None,
    prompt: str = "",
    on_batch: Callable[[int], object] | None = None,
) -> tuple[Floats, EncodingCounts]:
    """Encode each text as a vector, before the projection head: (N, D) float32 in the order of ``sentences``, and the counts.

    Texts are sorted by length, the longest first, so that memory, if it is too small, runs out at the start. A batch has at
    most as many cells (rows times width) as ``batch_size`` rows of the longest text, so batches of short texts have more rows.
    Up to rounding, the vectors do not depend on the batches. No random numbers are drawn, and the training mode is restored.

    Args:
        model: on any device; unwrapped or wrapped by fairseq for distributed training.
        tokenizer: splits text into symbols of the dictionary.
        sentences: texts; an empty one is ``<s> </s>``.
        pooling: name of a pooling (default: the model's).
        batch_size: texts per batch of the longest texts.
        normalize: scale vectors to length 1.
        max_length: cut texts to this many tokens, the last being ``</s>`` (default: ``text_length``).
        prompt: is put before each text; it is pooled unless the imported folder says ``include_prompt: false``.
        on_batch: called after each batch with the number of its texts.

    Raises:
        UserError: an unknown pooling, a batch size or length out of range, or a sentence that is not a str.
    """
    pooling = pooling or str(model.args.pooling)
    longest = _check_options(model, pooling, batch_size, max_length)
    for number, text in enumerate(sentences):
        if not isinstance(text, str):
            raise UserError(f"sentence {number} is of type {type(text).__name__}, not str: give a list of strings")
    rows = read_texts(dictionary, tokenizer, [prompt + text for text in sentences])
    size = len(read_tokens(dictionary, tokenizer, prompt)) - 1 if prompt else 0  # <s> and the prompt
    if size >= longest - 1:
        raise UserError(
            f"prompt {prompt[:40]!r}: has {size - 1} tokens, and texts are cut to {longest}; give a shorter one"
        )
    skipped = 0 if sentence_settings(model).get("include_prompt", True) else size
    texts = Ragged.of([np.array(row, np.int64) for row in rows]).cut(longest)
    truncated, unknown = sum(len(row) > longest for row in rows), int((texts.tokens == dictionary.unk()).sum())
    vectors = np.empty((len(texts), model.args.encoder_embed_dim), np.float32)  # (N, D)
    device = next(model.parameters()).device
    cells = 0
    with evaluating(model):
        for batch in _batches(texts.lengths, batch_size, enough_cells(device)):
            padded = torch.from_numpy(texts.select(batch).padded(dictionary.pad())).to(device)  # (B, T)
            # normalised in float32 even for a half-precision model
            embedded = model.embed(padded, pooling, skipped).float()  # (B, D)
            vectors[batch] = (nn.functional.normalize(embedded, dim=-1) if normalize else embedded).cpu().numpy()
            cells += padded.numel()
            if on_batch is not None:
                on_batch(len(batch))
    return vectors, EncodingCounts(len(texts), len(texts.tokens), unknown, cells, truncated)


def _check_options(model: TextModel, pooling: str, batch_size: int, max_length: int | None) -> int:
    parse_pooling(pooling, model.args.encoder_layers, flag="pooling")
    positions = int(model.max_positions())
    if batch_size < 1:
        raise UserError(f"batch size {batch_size}: must be 1 or more")
    if max_length is not None and not 2 <= max_length <= positions:
        raise UserError(
            f"maximum length {max_length}: must be 2 to {positions}, which is the number of the model's positions"
        )
    return text_length(model) if max_length is None else max_length


def _batches(lengths: Tokens, batch_size: int, enough: int = ENOUGH_CELLS["cpu"]) -> Iterator[Tokens]:
    """Yield the indices of each batch, longest texts first. A batch ends when full, or at ``enough`` cells as texts shorten."""
    order = np.argsort(-lengths, kind="stable")
    for rows in alike(lengths[order], batch_size * int(lengths.max(initial=0)), enough):
        yield order[rows]
