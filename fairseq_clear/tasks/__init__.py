"""fairseq tasks of the plugin."""

from fairseq_clear.tasks.clear_lm import ClearLMConfig, ClearLMTask

__all__ = ["ClearLMConfig", "ClearLMTask"]
