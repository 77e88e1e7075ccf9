"""Training examples, the collater that makes fairseq's dictionary of them, and the record that the criterions read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_clear.tokens import Tokens
from fairseq_clear.views.view_source import Instance

__all__ = ["Batch", "Example", "Views", "add_left_over", "collate", "pad_rows"]


@dataclass
class Example:
    """One item of the data set.

    Attributes:
        index: in the data set.
        sources: masked copies of the text, for the MLM; empty without an MLM.
        targets: MLM targets of the same lengths, padding where nothing is predicted.
        instances: pairs of views; empty without a contrastive term, or if the text makes none.
    """

    index: int
    sources: Sequence[Tokens] = ()
    targets: Sequence[Tokens] = ()
    instances: Sequence[Instance] = field(default=())


@dataclass(frozen=True)
class Views:
    """The views of a batch: N anchors, each with P positives and H hard negatives.

    Attributes:
        tokens: (N + N * P + N * H, L) int64: the anchors, then the positives of the first anchor, of the second and so on, then
            likewise the hard negatives, which most recipes do not have.
        lengths: lengths of the rows, as Python integers, so that reading them does not synchronise with the GPU.
        identity: (N,) int64, hash of the source text of each anchor.
        negative_identity: (N * H,) int64.
        draw: (N,) float64 (never halved), a random number in [0, 1) of each anchor.
        target: (N, L), MLM targets of the anchors, padding where nothing is predicted; None if anchors are not masked.
        fell_back: number of texts that were replaced by the original.
        view_length, text_length: total tokens of the views, and of the texts they were made of.
        words, substituted: total words of the texts, and substituted words.
    """

    tokens: Tensor
    lengths: list[int]
    identity: Tensor
    negative_identity: Tensor
    draw: Tensor
    target: Tensor | None = None
    fell_back: int = 0
    view_length: int = 0
    text_length: int = 0
    words: int = 0
    substituted: int = 0

    @property
    def texts(self) -> int:
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
        is_empty: the batch stands in for data, on a worker that has run out of them.
        sentences, tokens: number of items, and of all tokens that the encoder reads.
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
        """Read the dictionary of ``collate``, on any device, or of a stock data set."""
        views = Views(**sample["views"]) if "views" in sample else None
        counts = sample.get("is_empty", False), sample["nsentences"], sample["ntokens"]
        return cls(*counts, sample["net_input"], sample.get("target"), sample.get("lengths"), views)


def add_left_over(batches: Sequence[Tokens], indices: Tokens) -> list[Tokens]:
    """Append a batch of the left-over items to the batches.

    fairseq drops a last batch whose size is not a multiple of ``--required-batch-size-multiple`` (8). Since items are sorted by
    length, the longest texts would never be read, and nothing of a split with fewer than 8 texts.

    Args:
        batches: consecutive parts of ``indices``, beginning with the first.
        indices: indices of all items.
    """
    rest = indices[sum(map(len, batches)) :]
    return [*batches, rest] if len(rest) else list(batches)


def pad_rows(rows: Sequence[Tokens], padding: int) -> Tensor:
    """Pad rows of token ids on the right to one (R, longest) int64 tensor."""
    longest = max(len(row) for row in rows)
    padded = np.full((len(rows), longest), padding, dtype=np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return torch.from_numpy(padded)


def collate(examples: Sequence[Example], padding: int, *, is_empty: bool = False) -> dict[str, Any]:
    """Collate examples; masked texts and views are padded separately, so that short views stay cheap.

    Args:
        examples: at least one; either all have sources or none has.
        padding: id of the padding token.
        is_empty: mark the batch as one that stands in for data, on a worker that has run out of them.

    Returns:
        A dictionary with fairseq's ``id``, ``nsentences``, ``ntokens`` (all tokens that the encoder reads), ``net_input`` and
            ``target`` (the masked copies, one after the other; absent without an MLM), ``lengths`` of the masked texts
            and, if there are any, ``views``, a dictionary of the fields of ``Views``. It is a dictionary of tensors and numbers
            because the trainer moves only those to the GPU. ``Batch.of`` reads it.
    """
    batch: dict[str, Any] = {
        "id": torch.tensor([example.index for example in examples]),
        "nsentences": 0 if is_empty else len(examples),
        "ntokens": 0,
        "net_input": {},
        "is_empty": is_empty,
    }
    copies = len(examples[0].sources)
    sources = [example.sources[copy] for copy in range(copies) for example in examples]
    if sources:
        lengths = [len(source) for source in sources]
        batch["net_input"] = {"src_tokens": pad_rows(sources, padding), "src_lengths": torch.tensor(lengths)}
        batch["target"] = pad_rows([example.targets[copy] for copy in range(copies) for example in examples], padding)
        batch["lengths"] = lengths
        batch["ntokens"] += sum(lengths)
    instances = [instance for example in examples for instance in example.instances]
    if instances:
        batch["views"] = _collate_views(instances, padding)
        batch["ntokens"] += batch["views"]["view_length"]
    if is_empty:
        batch["ntokens"] = 0
    return batch


def _collate_views(instances: Sequence[Instance], padding: int) -> dict[str, Any]:
    rows = [instance.anchor for instance in instances]
    rows += [positive for instance in instances for positive in instance.positives]
    rows += [negative for instance in instances for negative in instance.negatives]
    negative_identities = [identity for instance in instances for identity in instance.negative_identities]
    tokens, lengths = pad_rows(rows, padding), [len(row) for row in rows]
    return {
        "tokens": tokens,
        "lengths": lengths,
        **_anchor_targets(instances, tokens.shape[1], padding),
        "identity": torch.tensor([instance.identity for instance in instances], dtype=torch.int64),
        "negative_identity": torch.tensor(negative_identities, dtype=torch.int64),
        "draw": torch.tensor([instance.draw for instance in instances], dtype=torch.float64),
        "fell_back": sum(instance.fell_back for instance in instances),
        "view_length": sum(lengths),
        "text_length": sum(instance.text_length for instance in instances),
        "words": sum(instance.words for instance in instances),
        "substituted": sum(instance.substituted for instance in instances),
    }


def _anchor_targets(instances: Sequence[Instance], width: int, padding: int) -> dict[str, Tensor]:
    targets = [instance.anchor_target for instance in instances if instance.anchor_target is not None]
    if not targets:
        return {}
    padded = torch.full((len(targets), width), padding, dtype=torch.int64)
    for row, target in zip(padded, targets, strict=True):
        row[: len(target)] = torch.from_numpy(target)
    return {"target": padded}
