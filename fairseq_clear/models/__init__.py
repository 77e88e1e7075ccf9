"""fairseq models of the plugin and their architectures."""

from fairseq_clear import patches

patches.apply()  # before anything here meets fairseq

from fairseq_clear.models import architectures  # noqa: E402
from fairseq_clear.models.clear_roberta import ClearRobertaModel  # noqa: E402

__all__ = ["ClearRobertaModel", "architectures"]
