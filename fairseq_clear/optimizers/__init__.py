"""fairseq optimizers of the plugin. fairseq never imports this folder by itself; the package does."""

from fairseq_clear.optimizers.adamw import ClearAdamW, ClearAdamWConfig

__all__ = ["ClearAdamW", "ClearAdamWConfig"]
