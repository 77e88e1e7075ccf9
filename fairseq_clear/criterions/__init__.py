"""fairseq criterions of the plugin. fairseq never imports this folder by itself; ``fairseq_clear.register`` does."""

from fairseq_clear import patches

patches.apply()  # before anything here uses fairseq

from fairseq_clear.criterions.clear_moco import ClearMocoConfig, ClearMocoCriterion  # noqa: E402
from fairseq_clear.criterions.clear_nt_xent import ClearNTXentConfig, ClearNTXentCriterion  # noqa: E402
from fairseq_clear.criterions.clear_self_guided import ClearSelfGuidedConfig, ClearSelfGuidedCriterion  # noqa: E402

__all__ = [
    "ClearMocoConfig",
    "ClearMocoCriterion",
    "ClearNTXentConfig",
    "ClearNTXentCriterion",
    "ClearSelfGuidedConfig",
    "ClearSelfGuidedCriterion",
]
