"""fairseq criterions of the plugin. fairseq never imports this folder by itself; the package does."""

from fairseq_clear.criterions.nt_xent import ClearNTXentConfig, ClearNTXentCriterion

__all__ = ["ClearNTXentConfig", "ClearNTXentCriterion"]
