"""Compares two encoders: the largest difference of their hidden states and embeddings on sample texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel
from fairseq_clear.interop.hf_format import window_of
from fairseq_clear.libraries import import_library, quiet_transformers
from fairseq_clear.models.encoding import encode_texts, evaluating, read_tokens
from fairseq_clear.models.hf_source import LOCAL, transformers_for
from fairseq_clear.text.tokenizers import HfTokenizer, Tokenizer
from fairseq_clear.tokens import Ragged

TOLERANCE = 1e-4
# Poolings that sentence-transformers also has, of the states (T, D) of one text; not by the code that they are compared with.
POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(dim=0),
    "max": lambda states: states.amax(dim=0),
}
SAMPLES = (
    "A man is playing a guitar.",
    "Is it, in fact, 3.5% (or $1,000,000) cheaper?",
    "unbelievably misspeled wurds and CAPITALS, don't they?",
    "Na\u00efve caf\u00e9s na K\u00f6nigstra\u00dfe \u2014 \u201cquoted\u201d \u2026",
    "\u4e2d\u6587 \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0639\u0631\u0628\u064a \U0001f600 \u2603",
    "   spaces \t and more   spaces ",
    "x",
    "",
    " ".join(f"word {number} of a text that is longer than any encoder reads," for number in range(400)),
)


@dataclass(frozen=True)
class Parity:
    """Largest absolute differences of two encoders, over all layers, tokens and sample texts."""

    hidden_states: float | None  # None if they were not compared
    embeddings: float
    against: str  # name of the other encoder
    hint: str = ""  # a reason why they may differ

    def summary(self) -> str:
        """Describe the differences in one line."""
        states = "" if self.hidden_states is None else f"hidden states {self.hidden_states:.1e}, "
        return f"largest difference to {self.against}: {states}embeddings {self.embeddings:.1e}"

    def check(self) -> None:
        """Raise UserError if a difference is above TOLERANCE or NaN."""
        differences = [self.embeddings, 0.0 if self.hidden_states is None else self.hidden_states]
        if not all(difference <= TOLERANCE for difference in differences):
            raise UserError(f"{self.summary()}; above {TOLERANCE:.0e}, so nothing was written{self.hint}")


def compare_hf(
    ours: LoadedModel, tokenizer: Tokenizer, folder: Path, pooling: str, *, texts: Sequence[str] = SAMPLES
) -> Parity:
    """Compare a checkpoint with a Hugging Face folder as transformers loads it, tokenizers included.

    Embeddings have this pooling, or the mean in place of one that is not of the last layer.
    """
    pooling = pooling if pooling in POOLINGS else "mean"
    names, positions, pad = hf_ids(ours.dictionary, tokenizer), int(ours.model.max_positions()), ours.dictionary.pad()
    with transformers_for(folder) as transformers:
        theirs = transformers.AutoModel.from_pretrained(str(folder), **LOCAL).float().eval()
        their_tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **LOCAL)
    rows = []
    for text in texts:
        row = read_tokens(ours.dictionary, tokenizer, text)
        row = row if len(row) <= positions else [*row[: positions - 1], row[-1]]
        expected = their_tokenizer(text, truncation=True, max_length=positions)["input_ids"]
        if [names[index] for index in row] != expected:
            raise UserError(
                f"{folder}: transformers tokenizes {text[:40]!r} differently ({len(expected)} tokens) than the "
                f"data folder's tokenizer ({len(row)}); nothing was written"
            )
        rows.append(np.array(row))
    vectors, _ = encode_texts(ours.model, ours.dictionary, tokenizer, texts, pooling=pooling, max_length=positions)
    differences = []
    *others, longest = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    for group in filter(None, (others, [longest])):  # 8,192 tokens of padding in every row would take gigabytes
        tokens = torch.from_numpy(Ragged.of([rows[number] for number in group]).padded(pad))  # (B, T)
        is_token, ids = tokens.ne(pad), torch.tensor(names)[tokens]
        # in a Longformer of ours, <s> has global attention
        marks = {"global_attention_mask": tokens.eq(ours.dictionary.bos()).long()} if window_of(ours.model) else {}
        with evaluating(ours.model), quiet_transformers():
            own = ours.model.hidden_states(tokens)
            output = theirs(input_ids=ids, attention_mask=is_token.long(), output_hidden_states=True, **marks)
        other = [*output.hidden_states[:-1], output.last_hidden_state]  # ModernBERT's last one may lack its final norm
        pooled = torch.stack([POOLINGS[pooling](last[row]) for last, row in zip(other[-1], is_token, strict=True)])
        embeddings = (torch.from_numpy(vectors[group]) - pooled).abs().max().item()
        differences.append((compare_states(own, other, is_token), embeddings))
    states, embeddings = np.max(differences, axis=0).tolist()  # NaN if one is
    return Parity(states, embeddings, f"transformers {transformers.__version__}, {pooling} pooling")


def compare_states(own: Sequence[Tensor], other: Sequence[Tensor], is_token: Tensor) -> float:
    """Return the largest difference of hidden states, (B, T, D) for each layer, ignoring padding."""
    if any(one.shape != two.shape for one, two in zip(own, other, strict=True)):
        raise UserError(
            "transformers pads the text by itself, so its hidden states cannot be compared; choose another encoder"
        )
    differences = [(one - two)[is_token].abs().max() for one, two in zip(own, other, strict=True)]
    return torch.stack(differences).max().item()  # NaN if one is


def compare_sentence_transformers(
    ours: LoadedModel,
    tokenizer: Tokenizer,
    folder: Path,
    pooling: str,
    normalized: bool,
    dimension: int | None,
    *,
    texts: Sequence[str],
) -> Parity:
    """Compare a checkpoint with a folder as sentence-transformers loads it, from text to embedding."""
    library = import_library("sentence_transformers")
    texts = [text.strip() for text in texts]  # as the library does before version 6
    with quiet_transformers():
        encoder = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        options = {"batch_size": 1, "convert_to_tensor": True, "show_progress_bar": False}  # 1: no padding, as above
        expected = encoder.encode(texts, prompt="", **options).float().cpu()
    vectors, _ = encode_texts(ours.model, ours.dictionary, tokenizer, texts, pooling=pooling, normalize=normalized)
    kept = torch.from_numpy(vectors)[:, : dimension or expected.shape[1]]
    if kept.shape != expected.shape:
        raise UserError(
            f"--dimension {dimension}: sentence-transformers {library.__version__} does not read truncate_dim from a folder; "
            "install a newer one"
        )
    difference = (kept - expected).abs().max().item()
    return Parity(None, difference, f"sentence-transformers {library.__version__}")


def hf_ids(dictionary: Any, tokenizer: Tokenizer) -> list[int]:
    """Return Hugging Face's id for each id of the dictionary; they are the same if the tokenizer has no own ids."""
    if not isinstance(tokenizer, HfTokenizer):
        return list(range(len(dictionary)))
    ids = tokenizer.ids()
    return [ids.get(symbol, -1) for symbol in dictionary.symbols]
