"""Contrastive objectives: pure functions of tensors that return (loss sum, rows counted, statistics).

To add one, write the function in a file of this folder and add a line to ``OBJECTIVES``. ``candidates`` names the kind of
candidates that queries are compared with; it determines which criterion offers the objective, and its arguments:

- ``batch`` (``clear_nt_xent``): ``f(queries, keys, positive, *, temperature, excluded)``, see ``nt_xent``;
- ``queue`` (``clear_moco``): ``f(queries, positives, queue, *, temperature, excluded)``, see ``info_nce``;
- ``layers`` (``clear_self_guided``): ``f(sentences, layers, all_sentences, all_layers, own, *, temperature, excluded)``,
  see ``sg``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fairseq_clear.errors import UserError
from fairseq_clear.objectives.negatives import Result
from fairseq_clear.objectives.nt_xent import info_nce, nt_xent
from fairseq_clear.objectives.self_guided import opt1, opt2, opt3, sg

__all__ = ["OBJECTIVES", "Objective", "find_objective", "info_nce", "nt_xent", "opt1", "opt2", "opt3", "sg"]

Candidates = Literal["batch", "queue", "layers"]


@dataclass(frozen=True)
class Objective:
    """An entry of ``OBJECTIVES``.

    Attributes:
        function: the loss; its signature depends on ``candidates``.
        candidates: ``batch``, ``queue`` or ``layers``.
        summary: what it computes, in one sentence.
        paper: its source.
        every_layer: for ``layers``: whether it takes all layers of the frozen encoder, rather than one drawn per text.
    """

    function: Callable[..., Result]
    candidates: Candidates
    summary: str
    paper: str
    every_layer: bool = False


_SELF_GUIDED = "Self-Guided (arXiv:2106.07345), section"

OBJECTIVES: dict[str, Objective] = {
    "nt-xent": Objective(
        nt_xent, "batch", "Cross-entropy of the positive among all texts of the batch.", "arXiv:2002.05709"
    ),
    "info-nce": Objective(
        info_nce, "queue", "Cross-entropy of the positive among the keys of a queue.", "arXiv:1911.05722"
    ),
    "sg": Objective(
        sg, "layers", "NT-Xent between sentences and one layer of the frozen encoder.", f"{_SELF_GUIDED} 3.1"
    ),
    "opt1": Objective(opt1, "layers", "``sg`` with only sentences as queries.", f"{_SELF_GUIDED} 3.2"),
    "opt2": Objective(
        opt2, "layers", "``opt1`` with only the layers of the frozen encoder as candidates.", f"{_SELF_GUIDED} 3.2"
    ),
    "opt3": Objective(opt3, "layers", "``opt2`` with every layer as a separate positive.", f"{_SELF_GUIDED} 3.2", True),
    "sg-opt": Objective(opt3, "layers", "The paper's name for ``opt3``.", f"{_SELF_GUIDED} 3.2", True),
}


def find_objective(name: str, candidates: Candidates) -> Objective:
    """Find the objective of this name among those with these candidates; UserError, with the valid names, if there is none."""
    valid = [known for known, entry in OBJECTIVES.items() if entry.candidates == candidates]
    if name not in valid:
        raise UserError(f"--objective {name}: this criterion has no such objective; valid are {', '.join(valid)}")
    return OBJECTIVES[name]
