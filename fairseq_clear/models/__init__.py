"""The fairseq models ``clear_roberta`` and ``clear_hf``, and their architectures."""

from fairseq_clear import patches

patches.apply()  # before anything here uses fairseq

from fairseq_clear.models.clear_hf import ClearHfModel  # noqa: E402
from fairseq_clear.models.clear_roberta import ClearRobertaModel  # noqa: E402

__all__ = ["ClearHfModel", "ClearRobertaModel"]
