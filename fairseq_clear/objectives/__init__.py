"""Objectives as pure functions of tensors: each returns (loss sum, rows counted, statistics)."""

from fairseq_clear.objectives.nt_xent import nt_xent

OBJECTIVES = {
    "nt-xent": nt_xent,
}

__all__ = ["OBJECTIVES", "nt_xent"]
