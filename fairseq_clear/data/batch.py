"""Training examples, and the collater that makes a batch of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_clear.tokens import Tokens
from fairseq_clear.views.view_source import Instance

__all__ = ["Example", "collate", "pad_rows", "add_left_over"]


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
            (Python integers, so reading them does not synchronise with the GPU) and, if there are any, ``views``:

            * ``tokens``: (N + N * P + N * H, L): the N anchors, then the P positives of the first anchor, of the second and so
              on, then likewise the H hard negatives, which most recipes do not have;
            * ``lengths``: lengths of the rows, as Python integers;
            * ``identity``: (N,) int64, ``negative_identity``: (N * H,) int64, ``draw``: (N,) float64 (never halved);
            * ``target``: (N, L), MLM targets of the anchors, padding where nothing is predicted; absent if anchors are not
              masked;
            * ``fell_back``: number of texts that were replaced by the original;
            * ``view_length``, ``text_length``: total tokens of the views, and of the texts they were made of;
            * ``words``, ``substituted``: total words of the texts, and substituted words.
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
