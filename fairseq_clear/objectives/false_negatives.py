"""Masking of false negatives: candidates that a guide finds nearer to the query than its positive."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.objectives.exclusion import Exclusion
from fairseq_clear.objectives.unit_vectors import unit_vectors
from fairseq_clear.spec import Knob, check_knobs, check_name, parse_spec

STRATEGIES = ("absolute", "relative")
FALSE_NEGATIVES = {
    "guide": {
        "margin": Knob(
            0.0, float, -2, 2, help="also mask candidates whose cosine is lower than the positive's by up to this much"
        ),
        "strategy": Knob(
            "absolute",
            str,
            choices=STRATEGIES,
            help="whether the margin is a cosine (absolute) or a share of the positive's cosine (relative)",
        ),
    }
}
ROUNDING = 1e-6  # of a float32 cosine


class Margin(NamedTuple):
    """A margin, and its strategy, one of STRATEGIES."""

    size: float
    strategy: str = "absolute"


def parse_false_negatives(text: str, *, flag: str = "--false-negatives") -> Margin | None:
    """Parse ``guide:margin=0.0,strategy=absolute``; returns the margin, or None for ``none``.

    Raises:
        UserError: the spec is malformed, or names something else.
    """
    steps = [step for chain in parse_spec(text, flag=flag) for step in chain]
    if len(steps) > 1:
        raise UserError(f"{flag} {text}: give one rule, such as guide:margin=0.0, or none")
    if not steps:
        return None
    check_name(steps[0], [*FALSE_NEGATIVES, "none"], flag=flag)
    knobs = check_knobs(steps[0], FALSE_NEGATIVES[steps[0].name], flag=flag)
    return Margin(float(knobs["margin"]), str(knobs["strategy"]))


@torch.no_grad()
def exclude_nearer(excluded: Exclusion, queries: Tensor, keys: Tensor, positives: Tensor, margin: Margin) -> Exclusion:
    """Add a rule: a key is excluded if cos(query, key) > cos(query, positive) - margin, by the guide's vectors.

    GISTEmbed (Solatorio 2024, arXiv:2402.16829), section 3, where the guide is a frozen encoder. To use the trained model as
    the guide, pass its own vectors. The rule has no gradient.

    The rule and both strategies are as in ``GISTEmbedLoss`` of sentence-transformers; ``relative`` subtracts
    margin * |cos(query, positive)|. A copy of the positive has the positive's cosine, so it is not excluded by a margin of 0.
    The mean loss differs: a query whose candidates are all excluded is not counted here (see ``nt_xent``), so the mean is over
    the queries that train; there it is counted with loss 0.

    Args:
        queries: (Q, G), the guide's vectors, of any length and floating dtype.
        keys: (K, G), likewise.
        positives: (Q, G), the positive of each query, likewise.
        margin: m; with m > 0 also keys that are nearly as near as the positive are excluded.
    """
    queries = unit_vectors(queries)
    cosine = (queries * unit_vectors(positives)).sum(dim=1)  # (Q,)
    threshold = cosine - margin.size * (cosine.abs() if margin.strategy == "relative" else 1.0)
    # Cosines of equal vectors differ by rounding, because matrix products sum in another order.
    return replace(excluded, nearer=(queries, unit_vectors(keys), threshold + ROUNDING))
