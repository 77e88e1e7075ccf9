"""fairseq models of the plugin and their architectures."""

from fairseq_clear.models import architectures
from fairseq_clear.models.clear_roberta import ClearRobertaModel

__all__ = ["ClearRobertaModel", "architectures"]
