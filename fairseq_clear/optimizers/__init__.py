"""fairseq optimizers of the plugin. fairseq never imports this folder by itself; ``fairseq_clear.register`` does."""

from fairseq_clear import patches

patches.apply()  # before anything here uses fairseq

import fairseq_clear.optimizers.adamw  # noqa: E402, F401
