"""Masked false negatives against ``GISTEmbedLoss`` of sentence-transformers, which computes them in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

for library in ("sentence_transformers", "tokenizers"):
    pytest.importorskip(library, reason="optional, extra hf")

from fairseq_clear.objectives import nt_xent  # noqa: E402
from fairseq_clear.objectives.exclusion import Exclusion  # noqa: E402
from fairseq_clear.objectives.false_negatives import STRATEGIES, Margin, exclude_nearer  # noqa: E402
from tests.interop.folders import wordpiece  # noqa: E402

pytestmark = pytest.mark.slow

TEMPERATURE, ROWS, WIDTH = 0.3, 48, 64


class Given(nn.Module):
    """A model whose vectors are given."""

    max_seq_length = 8

    def __init__(self, name: str, tokenizer: Any) -> None:
        super().__init__()
        self.name, self.tokenizer = name, tokenizer

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features[self.name]}


def their_loss(vectors: list[Tensor], guides: list[Tensor], margin: Margin) -> Tensor:
    """The mean over the queries (scalar), in float64."""
    from transformers import PreTrainedTokenizerFast

    try:
        from sentence_transformers.sentence_transformer.losses import GISTEmbedLoss
    except ModuleNotFoundError:  # before version 6
        from sentence_transformers.losses import GISTEmbedLoss

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=wordpiece())
    models = Given("model", tokenizer), Given("guide", tokenizer)
    only_candidates = {"contrast_anchors": False, "contrast_positives": False}
    rule = {"margin": margin.size, "margin_strategy": margin.strategy}
    loss = GISTEmbedLoss(*models, temperature=TEMPERATURE, **rule, **only_candidates)
    features = [{"model": one, "guide": other} for one, other in zip(vectors, guides, strict=True)]
    return loss(features, torch.empty(0))


def our_loss(vectors: list[Tensor], guides: list[Tensor], margin: Margin) -> Tensor:
    """The sum over the queries."""
    keys, judged = torch.cat(vectors[1:]), torch.cat(guides[1:])
    rules = exclude_nearer(Exclusion(), guides[0], judged, guides[1], margin)
    return nt_xent(vectors[0], keys, torch.arange(ROWS), temperature=TEMPERATURE, excluded=rules)[0]


def drawn(columns: int, seed: int, *, has_copies: bool) -> list[Tensor]:
    """Anchors, positives that are near to them, and other texts (ROWS, WIDTH); copies of some anchors and positives."""
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(columns)]
    texts[1] += 0.3 * texts[0]
    if has_copies:
        texts[1][1::2] = texts[1][::2]
        texts[0][::6] = texts[0][1::6]
        texts[-1][3:9] = texts[1][3:9]
    return texts


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", [-0.3, 0.0, 0.05, 0.3, 0.9, 2.0])
@pytest.mark.parametrize("has_own_guide", [False, True])
@pytest.mark.parametrize("has_copies", [False, True])
@pytest.mark.parametrize("columns", [2, 3])
def test_losses_are_equal(strategy: str, size: float, has_own_guide: bool, has_copies: bool, columns: int) -> None:
    vectors, margin = drawn(columns, 1, has_copies=has_copies), Margin(size, strategy)
    guides = vectors if has_own_guide else drawn(columns, 2, has_copies=has_copies)
    for texts in (vectors, guides):
        for text in texts:
            text.requires_grad_(texts is vectors)
    loss = our_loss(vectors, guides, margin)
    expected = their_loss(vectors, guides, margin) * ROWS
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
    ours, theirs = torch.autograd.grad(loss, vectors), torch.autograd.grad(expected, vectors)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_margin_differs(strategy: str) -> None:
    vectors = drawn(3, 1, has_copies=False)
    guides = drawn(3, 2, has_copies=False)
    loss = our_loss(vectors, guides, Margin(0.3, strategy))
    expected = their_loss(vectors, guides, Margin(0.31, strategy)) * ROWS
    assert abs(loss.item() - expected.item()) > 0.01
