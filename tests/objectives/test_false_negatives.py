"""Masked false negatives, against a float64 oracle that leaves them out one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.objectives import info_nce, nt_xent
from fairseq_clear.objectives.exclusion import Exclusion
from fairseq_clear.objectives.false_negatives import Margin, exclude_nearer, parse_false_negatives
from fairseq_clear.objectives.negatives import count_candidates
from tests.objectives import oracles
from tests.objectives.test_negatives import in_blocks


def drawn(rows: int, seed: int, width: int = 4) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def nearer(guide_q: Tensor, guide_k: Tensor, guide_positives: Tensor, margin: float) -> np.ndarray:
    """(Q, K) True where a candidate is a false negative, GISTEmbed's rule pair by pair."""
    q, k, p = (rows.double().numpy() for rows in (guide_q, guide_k, guide_positives))
    rule = [
        [oracles.cosine(one, other) > oracles.cosine(one, mine) - margin for other in k]
        for one, mine in zip(q, p, strict=True)
    ]
    return np.array(rule, bool).reshape(len(q), len(k))


@pytest.mark.slow
@given(st.integers(2, 7), st.sampled_from([-0.3, -0.05, 0.0, 0.1, 0.7]), st.integers(1, 30), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_nt_xent_leaves_them_out(texts: int, margin: float, block: int, seed: int) -> None:
    z, guide = drawn(2 * texts, seed), drawn(2 * texts, seed + 1)
    positive = torch.arange(2 * texts).roll(texts)
    own = torch.eye(2 * texts, dtype=torch.bool)
    masked = nearer(guide, guide, guide[positive], margin)
    rules = exclude_nearer(Exclusion(matrix=own), guide, guide, guide[positive], Margin(margin))
    leaf = z.clone().requires_grad_()
    with in_blocks(block, 3):
        loss, rows, statistics = nt_xent(leaf, leaf, positive, temperature=0.3, excluded=rules)
        (ours,) = torch.autograd.grad(loss, leaf)
        total = count_candidates(Exclusion(matrix=own).with_own(positive), len(z), len(z), z.device)
    # whether a cosine on the threshold itself is masked is a matter of rounding
    excluded = masked | own.numpy()
    expected = oracles.nt_xent_with_exclusions(z.double().numpy(), z.double().numpy(), positive.tolist(), 0.3, excluded)
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    remaining = ~excluded
    remaining[np.arange(len(z)), positive.numpy()] = False
    assert statistics["negatives"] == remaining.sum() and rows == remaining.any(axis=1).sum()
    assert total == len(z) * (len(z) - 2)
    dense = z.double().requires_grad_()
    unit = dense / dense.norm(dim=1, keepdim=True)
    kept = torch.from_numpy(remaining)
    kept[torch.arange(len(z)), positive] = True
    logits = (unit @ unit.T / 0.3).masked_fill(~kept, -torch.inf)
    (theirs,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, positive, reduction="sum"), dense)
    torch.testing.assert_close(ours.double(), theirs, rtol=2e-4, atol=2e-5)


@given(st.sampled_from([-0.1, 0.0, 0.2]), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_the_keys_of_a_queue(margin: float, seed: int) -> None:
    q, positives = drawn(4, seed), drawn(4, seed + 1)
    keys = torch.nn.functional.normalize(drawn(9, seed + 2), dim=-1)
    absent = torch.arange(9) > 6
    rules = exclude_nearer(Exclusion(absent=absent), q, keys, positives, Margin(margin))
    loss, rows, _ = info_nce(q, positives, keys, temperature=0.3, excluded=rules)
    excluded = nearer(q, keys, positives, margin) | absent.numpy()
    inputs = (part.double().numpy() for part in (q, positives, keys))
    expected, counted = oracles.cert_equation_2(*inputs, 0.3, excluded)
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5) and rows == counted


def test_the_spec() -> None:
    assert parse_false_negatives("none") is None and parse_false_negatives("") is None
    assert parse_false_negatives("guide") == (0, "absolute")
    assert parse_false_negatives("guide:margin=-0.05,strategy=relative") == (-0.05, "relative")
    for text, said in (
        ("gude", "--false-negatives: there is no 'gude'; choose from guide, none"),
        ("guide:margin=3", "is not a number from -2 to 2"),
        ("guide:tau=3", "guide has no knob 'tau'"),
        ("guide:strategy=other", "strategy=other is not one of absolute, relative"),
        ("guide/guide", "give one rule"),
        ("guide+guide", "give one rule"),
    ):
        with pytest.raises(UserError, match=said):
            parse_false_negatives(text)
