"""Masking of false negatives: candidates that a guide finds nearer to the query than its positive."""

from dataclasses import replace

import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.objectives.exclusion import Exclusion
from fairseq_clear.objectives.unit_vectors import unit_vectors
from fairseq_clear.spec import Knob, check_knobs, check_name, parse_spec

__all__ = ["FALSE_NEGATIVES", "exclude_nearer", "parse_false_negatives"]

FALSE_NEGATIVES = {
    "guide": {"margin": Knob(0.0, float, -2, 2, help="also mask candidates that are less near, by up to this cosine")}
}


def parse_false_negatives(text: str, *, flag: str = "--false-negatives") -> float | None:
    """Parse ``guide:margin=0.0``; returns the margin, or None for ``none``.

    Raises:
        UserError: the spec is malformed, or names something else.
    """
    steps = [step for chain in parse_spec(text, flag=flag) for step in chain]
    if len(steps) > 1:
        raise UserError(f"{flag} {text}: give one rule, such as guide:margin=0.0, or none")
    if not steps:
        return None
    check_name(steps[0], FALSE_NEGATIVES, flag=flag)
    return float(check_knobs(steps[0], FALSE_NEGATIVES[steps[0].name], flag=flag)["margin"])


@torch.no_grad()
def exclude_nearer(excluded: Exclusion, queries: Tensor, keys: Tensor, positives: Tensor, margin: float) -> Exclusion:
    """Add a rule: a key is excluded if cos(query, key) > cos(query, positive) - margin, by the guide's vectors.

    GISTEmbed (Solatorio 2024, arXiv:2402.16829), section 3, where the guide is a frozen encoder; the trained model itself is a
    guide too if its own vectors are given. The rule has no gradient.

    Args:
        excluded: rules to add to.
        queries: (Q, G), the guide's vectors, of any length and floating dtype.
        keys: (K, G), likewise.
        positives: (Q, G), the positive of each query, likewise.
        margin: m; with m > 0 also keys that are nearly as near as the positive are excluded.
    """
    queries = unit_vectors(queries)
    threshold = (queries * unit_vectors(positives)).sum(dim=1) - margin  # (Q,)
    return replace(excluded, nearer=(queries, unit_vectors(keys), threshold))
