"""fairseq optimizers of the plugin. fairseq never imports this folder by itself; ``fairseq_clear.register`` does."""

from fairseq_clear import patches

patches.apply()  # before anything here uses fairseq

from fairseq_clear.optimizers.adamw import ClearAdamW, ClearAdamWConfig  # noqa: E402

__all__ = ["ClearAdamW", "ClearAdamWConfig"]
