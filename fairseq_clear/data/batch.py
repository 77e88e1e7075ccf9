"""Training examples, the collater that converts them to fairseq's dictionary, and the batch that criterions read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_clear.seeding import Floats
from fairseq_clear.tokens import Ragged, Tokens, stack


@dataclass(frozen=True)
class Examples:
    """Items of the data set, as rows of different lengths, before they are padded.

    Attributes:
        index: (I,) int64 indices in the data set.
        sources: masked copies of the texts, for the MLM, I rows each; empty without an MLM.
        targets: MLM targets of the same lengths, padding where nothing is predicted.
        views: A * (1 + P + H) rows for each item, anchor by anchor (see ``Pairs.texts``); None without a contrastive term.
        identity, negative_identity, draw, counts: see ``Views``.
        anchor_target: MLM targets of the anchors, if they are masked.
    """

    index: Tokens
    sources: tuple[Ragged, ...] = ()
    targets: tuple[Ragged, ...] = ()
    views: Ragged | None = None
    identity: Tokens = field(default_factory=lambda: np.zeros(0, np.int64))
    negative_identity: Tokens = field(default_factory=lambda: np.zeros(0, np.int64))
    draw: Floats = field(default_factory=lambda: np.zeros(0))
    anchor_target: Ragged | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def each(self) -> int:
        """1 + P + H, the number of views per anchor."""
        return 0 if self.views is None else len(self.views) // len(self.identity)

    @property
    def positives(self) -> int:
        """P, the number of positives of an anchor."""
        return self.each - 1 - len(self.negative_identity) // len(self.identity)

    @classmethod
    def join(cls, parts: "Sequence[Examples]") -> "Examples":
        """Join the items of several batches."""
        if len(parts) == 1:
            return parts[0]

        def joined(values: list[Any]) -> Any:
            first = values[0]
            if isinstance(first, Ragged):
                return stack(values)
            if isinstance(first, tuple):
                return tuple(joined(list(copies)) for copies in zip(*values, strict=True))
            if isinstance(first, np.ndarray):
                return np.concatenate(values)
            return {name: sum(counts[name] for counts in values) for name in first} if first is not None else None

        return cls(**{item.name: joined([getattr(part, item.name) for part in parts]) for item in fields(cls)})


@dataclass(frozen=True)
class Views:
    """The views of a batch: N anchors, each with P positives and H hard negatives.

    Attributes:
        tokens: (N + N * P + N * H, L) int64: the anchors, then the positives, anchor by anchor, then likewise the hard
            negatives, which most recipes do not have.
        lengths: lengths of the rows, as Python integers, so that reading them does not synchronise with the GPU.
        identity, negative_identity: see ``Pairs``.
        draw: (N,) float64 in every precision, a random number in [0, 1) for each anchor.
        target: (N, L), MLM targets of the anchors, padding where nothing is predicted; None if anchors are not masked.
        counts: ``fell_back``, number of texts that were replaced by the original; ``view_length`` and ``text_length``, total
            tokens of the views and of their source texts; ``words`` and ``substituted``, total words of the source texts
            and number of substituted words.
    """

    tokens: Tensor
    lengths: list[int]
    identity: Tensor
    negative_identity: Tensor
    draw: Tensor
    target: Tensor | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def anchors(self) -> int:
        """N, the number of anchors."""
        return int(self.identity.shape[0])

    def empty(self) -> "Views":
        """The same views without rows, for a worker that has run out of data."""
        target = None if self.target is None else self.target[:0]
        return Views(self.tokens[:0], [], self.identity[:0], self.negative_identity[:0], self.draw[:0], target)


@dataclass(frozen=True)
class Batch:
    """A batch, as a criterion reads it.

    Attributes:
        is_empty: whether this is a placeholder, for a worker that has run out of data.
        sentences, tokens: number of items, and number of tokens that the encoder reads.
        net_input: arguments of the model for the masked texts; empty without an MLM.
        target: (R, T) MLM targets of the masked texts; None without an MLM.
        lengths: lengths of the masked texts, as Python integers; None if the data set does not give them.
        views: None without a contrastive term.
    """

    is_empty: bool
    sentences: int
    tokens: int
    net_input: Mapping[str, Any]
    target: Tensor | None = None
    lengths: Sequence[int] | None = None
    views: Views | None = None

    @classmethod
    def of(cls, sample: Mapping[str, Any]) -> "Batch":
        """Convert the dictionary of ``collate`` (on any device) or of a stock data set."""
        views = None
        if "views" in sample:
            views = Views(**{**sample["views"], "lengths": np.asarray(sample["views"]["lengths"]).tolist()})
        counts = sample.get("is_empty", False), sample["nsentences"], sample["ntokens"]
        lengths = np.asarray(sample["lengths"]).tolist() if "lengths" in sample else None
        return cls(*counts, sample["net_input"], sample.get("target"), lengths, views)


def collate(examples: Examples, padding: int, *, is_empty: bool = False) -> dict[str, Any]:
    """Collate examples; masked texts and views are padded separately, so that short views stay cheap.

    Args:
        is_empty: mark the batch as a placeholder, for a worker that has run out of data.

    Returns:
        A dictionary with fairseq's ``id``, ``nsentences``, ``ntokens`` (all tokens that the encoder reads), ``net_input`` and
            ``target`` (the masked copies, one after the other; absent without an MLM), ``lengths`` of the masked texts
            and, if there are any, ``views``, a dictionary of the fields of ``Views``. It is a dictionary because
            the trainer does not move dataclasses to the GPU; lengths are arrays, which stay on the CPU. ``Batch.of`` reads it.
    """
    batch: dict[str, Any] = {
        "id": torch.from_numpy(examples.index),
        "nsentences": 0 if is_empty else len(examples.index),
        "ntokens": 0,
        "net_input": {},
        "is_empty": is_empty,
    }
    if examples.sources:
        sources, targets = stack(examples.sources), stack(examples.targets)
        batch["lengths"] = sources.lengths
        batch["net_input"] = {
            "src_tokens": torch.from_numpy(sources.padded(padding)),
            "src_lengths": torch.from_numpy(sources.lengths),
        }
        batch["target"] = torch.from_numpy(targets.padded(padding))
        batch["ntokens"] += len(sources.tokens)
    if examples.views is not None and len(examples.views):
        batch["views"] = _collate_views(examples, padding)
        batch["ntokens"] += len(examples.views.tokens)
    if is_empty:  # nothing is predicted
        batch["ntokens"] = 0
        for part in (batch, batch.get("views", {})):
            if "target" in part:
                part["target"].fill_(padding)
    return batch


def _collate_views(examples: Examples, padding: int) -> dict[str, Any]:
    views, each, positives = examples.views, examples.each, examples.positives
    assert views is not None
    rows = np.arange(len(views)).reshape(-1, each)  # (anchors, each)
    # anchors first, then the positives of all anchors, then their negatives
    parts = rows[:, 0], rows[:, 1 : 1 + positives], rows[:, 1 + positives :]
    order = np.concatenate([part.reshape(-1) for part in parts])
    tokens = views.padded(padding)[order]
    target = {}
    if examples.anchor_target is not None:
        own = examples.anchor_target.padded(padding)
        padded = np.pad(own, ((0, 0), (0, tokens.shape[1] - own.shape[1])), constant_values=padding)
        target = {"target": torch.from_numpy(padded)}
    return {
        "tokens": torch.from_numpy(tokens),
        "lengths": views.lengths[order],
        **target,
        "identity": torch.from_numpy(examples.identity),
        "negative_identity": torch.from_numpy(examples.negative_identity),
        "draw": torch.from_numpy(examples.draw),
        "counts": examples.counts,
    }
