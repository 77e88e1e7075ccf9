"""Values of flags that fairseq-train and the commands share. Imports nothing, so that ``--help`` is quick."""

__all__ = ["BOUNDARIES", "SAME_DOCUMENT_NEGATIVES", "SHORT_DOCUMENTS"]

BOUNDARIES = ("blank", "line")  # --document-boundary
SHORT_DOCUMENTS = ("clip", "skip", "error")  # --short-documents
SAME_DOCUMENT_NEGATIVES = ("include", "exclude")  # --same-document-negatives
