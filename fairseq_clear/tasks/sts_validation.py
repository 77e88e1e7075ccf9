"""``--eval-sts``: computes the STS Spearman correlation of the model in each validation."""

import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.distributed import utils as distributed_utils

from fairseq_clear.augmentations.base import Tokens
from fairseq_clear.distributed import all_gather_ragged, world_size
from fairseq_clear.evaluation.sts import UndefinedCorrelation, spearman
from fairseq_clear.evaluation.sts_data import StsData, read_sts, read_sts_file
from fairseq_clear.models.encoding import Floats, encode_texts
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.tokenizers import Tokenizer

__all__ = ["StsValidation", "encode_on_workers"]

logger = logging.getLogger(__name__)

DEFAULT_TASK = "STS-B-dev"


class StsValidation:
    """Scores the model on sentence pairs. File and tokenizer are read at the start, not at the first validation.

    Args:
        source: a folder that contains STSBenchmark (its dev split is used), or a file for ``sts_data.read_sts_file``.
        data_bin: the data folder, which has the tokenizer.

    Raises:
        UserError: the pairs cannot be read, or the data folder has no tokenizer.
    """

    def __init__(self, source: str, data_bin: str) -> None:
        self.data: StsData = read_sts(source, DEFAULT_TASK) if os.path.isdir(source) else read_sts_file(source)
        self.tokenizer: Tokenizer = load_tokenizer(data_bin)
        self.texts = sorted(set(self.data.texts()))
        self.score: float | None = None
        logger.info("--eval-sts: %d pairs of %s, %d different texts", len(self.data), self.data.name, len(self.texts))

    def __call__(self, model: Any, dictionary: Any) -> None:
        """Encode the texts, divided among the workers, and set ``score`` (x 100), which is equal on all workers.

        The score is one correlation over all subsets, of the cosines under the model's pooling. A collapsed model, all of whose
        cosines are equal, scores 0.
        """
        vectors = encode_on_workers(model, dictionary, self.tokenizer, self.texts)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        place = {text: number for number, text in enumerate(self.texts)}
        cosines, gold = [], []
        for pairs in self.data.subsets.values():
            first: Tokens = np.array([place[text] for text in pairs.first])
            second: Tokens = np.array([place[text] for text in pairs.second])
            cosines.append((vectors[first] * vectors[second]).sum(axis=1))
            gold.append(pairs.scores)
        try:
            self.score = 100 * spearman(
                np.concatenate(cosines), np.concatenate(gold), where=f"--eval-sts {self.data.name}"
            )
        except UndefinedCorrelation as error:
            logger.warning("%s; counted as 0", error)
            self.score = 0.0


def encode_on_workers(model: Any, dictionary: Any, tokenizer: Tokenizer, texts: Sequence[str]) -> Floats:
    """Encode texts, divided among the workers, under the model's pooling. All workers return all vectors (N, D), in order."""
    group = distributed_utils.get_data_parallel_group() if world_size() > 1 else None
    workers = world_size(group)
    rank = torch.distributed.get_rank(group) if workers > 1 else 0
    share, _ = encode_texts(model, dictionary, tokenizer, texts[rank::workers])  # (n, D)
    if workers == 1:
        return share
    device = next(model.parameters()).device
    gathered, _ = all_gather_ragged(torch.from_numpy(share).to(device), group)  # ordered by worker
    order = np.concatenate([np.arange(rank, len(texts), workers) for rank in range(workers)])
    vectors: Floats = np.empty_like(gathered.cpu().numpy())
    vectors[order] = gathered.cpu().numpy()
    return vectors
