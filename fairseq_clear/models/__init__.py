"""The fairseq model ``clear_roberta`` and its architectures."""

from fairseq_clear import patches

patches.apply()  # before anything here uses fairseq

from fairseq_clear.models.clear_roberta import ClearRobertaModel  # noqa: E402

__all__ = ["ClearRobertaModel"]
