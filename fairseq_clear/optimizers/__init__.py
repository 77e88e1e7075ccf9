"""fairseq optimizers of the plugin. fairseq never imports this folder by itself; the package does."""

from fairseq_clear.optimizers.adamw import ClearAdamW

__all__ = ["ClearAdamW"]
