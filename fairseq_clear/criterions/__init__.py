"""fairseq criterions of the plugin. fairseq never imports this folder by itself; the package does."""

from fairseq_clear import compat

compat.apply()  # before anything of ours meets fairseq

from fairseq_clear.criterions.nt_xent import ClearNTXentConfig, ClearNTXentCriterion  # noqa: E402

__all__ = ["ClearNTXentConfig", "ClearNTXentCriterion"]
