"""Objectives as pure functions of tensors: each returns (loss sum, rows counted, statistics)."""

from fairseq_clear.objectives.moco import info_nce
from fairseq_clear.objectives.nt_xent import nt_xent
from fairseq_clear.objectives.self_guided import opt1, opt2, opt3, sg

OBJECTIVES = {
    "nt-xent": nt_xent,
    "info-nce": info_nce,
}
# One signature: criterions/self_guided.py chooses by name.
SELF_GUIDED = {
    "sg": sg,
    "opt1": opt1,
    "opt2": opt2,
    "opt3": opt3,
}

__all__ = ["OBJECTIVES", "SELF_GUIDED", "info_nce", "nt_xent", "opt1", "opt2", "opt3", "sg"]
