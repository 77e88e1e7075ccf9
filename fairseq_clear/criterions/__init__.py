"""fairseq criterions of the plugin. fairseq never imports this folder by itself; ``fairseq_clear.register`` does."""

from fairseq_clear import patches

patches.apply()  # before anything here uses fairseq

import fairseq_clear.criterions.clear_moco  # noqa: E402
import fairseq_clear.criterions.clear_nt_xent  # noqa: E402
import fairseq_clear.criterions.clear_self_guided  # noqa: E402, F401
