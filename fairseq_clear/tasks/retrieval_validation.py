"""``--eval-retrieval``: computes MRR@10 of the model in each validation."""

import logging
from pathlib import Path
from typing import Any

from fairseq_clear.evaluation.retrieval import METRICS, score_rankings, search
from fairseq_clear.evaluation.retrieval_data import RetrievalData, read_pairs_file
from fairseq_clear.tasks.sts_validation import encode_on_workers
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.tokenizers import Tokenizer

__all__ = ["RetrievalValidation"]

logger = logging.getLogger(__name__)

DEPTH = 10


class RetrievalValidation:
    """Scores the model on queries and their passages. File and tokenizer are read at the start, not at the first validation.

    Args:
        source: file of pairs, see ``retrieval_data.read_pairs``.
        data_bin: the data folder, which has the tokenizer.

    Attributes:
        score: MRR@10 (x 100) of the last validation, equal on all workers; None before the first.

    Raises:
        UserError: the pairs cannot be read, or the data folder has no tokenizer.
    """

    def __init__(self, source: str, data_bin: str) -> None:
        self.data: RetrievalData = read_pairs_file(Path(source))
        self.tokenizer: Tokenizer = load_tokenizer(data_bin)
        self.texts = sorted({*self.data.queries, *self.data.passages})
        self.score: float | None = None
        queries, passages = len(self.data.queries), len(self.data.passages)
        logger.info("--eval-retrieval: %d queries and %d passages of %s", queries, passages, self.data.name)

    def __call__(self, model: Any, dictionary: Any) -> None:
        """Encode the texts, divided among the workers, search by cosine on the model's device, and set ``score``."""
        vectors = encode_on_workers(model, dictionary, self.tokenizer, self.texts)  # (N, D)
        place = {text: number for number, text in enumerate(self.texts)}
        queries, passages = (vectors[[place[t] for t in side]] for side in (self.data.queries, self.data.passages))
        nearest = search(queries, [passages], DEPTH, device=next(model.parameters()).device)
        values = score_rankings(nearest.passages.cpu().numpy(), self.data.relevant)  # (Q, 7)
        self.score = 100 * float(values[:, METRICS.index("MRR@10")].mean())
