"""fairseq tasks of the plugin."""

from fairseq_clear import patches

patches.apply()  # before anything here uses fairseq

from fairseq_clear.tasks.clear_lm import ClearLMTask  # noqa: E402
from fairseq_clear.tasks.config import ClearLMConfig  # noqa: E402

__all__ = ["ClearLMConfig", "ClearLMTask"]
