"""``--eval-sts`` and ``--eval-retrieval``: score the model on labelled pairs in each validation."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from fairseq.distributed import utils as distributed_utils

from fairseq_clear.distributed import world_size
from fairseq_clear.errors import UserError, exit_on_user_error, is_out_of_memory, one_line
from fairseq_clear.evaluation.retrieval import METRICS, score_rankings, search, without_own
from fairseq_clear.evaluation.retrieval_data import read_pairs_file
from fairseq_clear.evaluation.sts import UndefinedCorrelation, cosine, spearman
from fairseq_clear.evaluation.sts_data import read_sts, read_sts_file
from fairseq_clear.models.encoding import Floats, encode_texts, prompts_of, sentence_settings
from fairseq_clear.shared_work import Workers, gather_blocks
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.sentence_folders import DOCUMENT, QUERY, find_prompt
from fairseq_clear.text.tokenizers import Tokenizer

logger = logging.getLogger(__name__)

DEPTH = 10
DEFAULT: tuple[str, ...] = ()  # the default prompt of the encoder, in place of names of prompts
VectorsOf = Callable[[Sequence[str], Sequence[str]], Floats]  # of texts, and the names of their prompt


class _Validation:
    """Scores the model on texts. File and tokenizer are read at the start, not at the first validation.

    Attributes:
        score: score (x 100) of the last validation, equal on all workers; None before the first.

    Raises:
        UserError: the file cannot be read, or the data folder has no tokenizer.
    """

    flag: ClassVar[str]

    def __init__(self, data_bin: str, texts: Mapping[tuple[str, ...], Iterable[str]]) -> None:
        self.tokenizer: Tokenizer = load_tokenizer(data_bin)
        self.texts = {names: sorted(set(some)) for names, some in texts.items()}
        self.score: float | None = None

    @exit_on_user_error
    def __call__(self, model: Any, dictionary: Any) -> None:
        """Encode the texts under the model's pooling, divided among the workers, and set ``score``."""
        try:
            self.score = self._score(model, dictionary)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(
                f"{self.flag}: out of memory ({one_line(error)}); give a file of shorter texts, or leave it out and score the "
                "checkpoints afterwards"
            ) from error

    def _score(self, model: Any, dictionary: Any) -> float:
        found: dict[tuple[Sequence[str], str], Floats] = {}
        for names, texts in self.texts.items():
            known, default = prompts_of(model), sentence_settings(model).get("config", {}).get("default_prompt_name")
            name = find_prompt(known, names or (default,))
            prompt = "" if name is None else known[name]
            vectors = encode_on_workers(model, dictionary, self.tokenizer, texts, prompt)  # (N, D)
            found |= {(names, text): row for text, row in zip(texts, vectors, strict=True)}
        return 100 * self.measure(lambda texts, names: np.stack([found[names, text] for text in texts]), model)

    def measure(self, vectors_of: VectorsOf, model: Any) -> float:
        """Compute the score, 0 to 1, from the vectors (n, D) of any of the texts."""
        raise NotImplementedError


class StsValidation(_Validation):
    """Spearman's correlation of cosines with scores of sentence pairs: one over all subsets.

    ``source`` is a folder that contains STSBenchmark (its dev split is used), or a file for ``sts_data.read_sts_file``.
    """

    flag = "--eval-sts"

    def __init__(self, source: str, data_bin: str) -> None:
        self.data = read_sts(source, "STS-B-dev") if os.path.isdir(source) else read_sts_file(source)
        super().__init__(data_bin, {DEFAULT: self.data.texts()})

    def measure(self, vectors_of: VectorsOf, model: Any) -> float:
        """The correlation; 0 for a collapsed model, all of whose cosines are equal."""
        cosines, gold = [], []
        for pairs in self.data.subsets.values():
            cosines.append(cosine(vectors_of(pairs.first, DEFAULT), vectors_of(pairs.second, DEFAULT)))
            gold.append(pairs.scores)
        try:
            return spearman(np.concatenate(cosines), np.concatenate(gold), where=f"{self.flag} {self.data.name}")
        except UndefinedCorrelation as error:
            logger.warning("%s; counted as 0", error)
            return 0.0


class RetrievalValidation(_Validation):
    """MRR@10 of finding the passages of queries by cosine; ``source`` is a file of pairs, see ``retrieval_data.read_pairs``."""

    flag = "--eval-retrieval"

    def __init__(self, source: str, data_bin: str) -> None:
        self.data = read_pairs_file(Path(source))
        super().__init__(data_bin, {QUERY: self.data.queries, DOCUMENT: self.data.passages})

    def measure(self, vectors_of: VectorsOf, model: Any) -> float:
        """Search on the model's device."""
        queries, passages = vectors_of(self.data.queries, QUERY), vectors_of(self.data.passages, DOCUMENT)
        nearest = search(queries, [passages], DEPTH + 1, device=next(model.parameters()).device)
        ranked = without_own(nearest.passages.cpu().numpy(), self.data)
        values = score_rankings(ranked, self.data.relevant)  # (Q, 7)
        return float(values[:, METRICS.index("MRR@10")].mean())


def encode_on_workers(model: Any, dictionary: Any, tokenizer: Tokenizer, texts: Sequence[str], prompt: str) -> Floats:
    """Encode texts under the model's pooling, a part on each worker. All workers return all vectors (N, D), in order."""
    group = distributed_utils.get_data_parallel_group() if world_size() > 1 else None
    size = world_size(group)
    workers = Workers(torch.distributed.get_rank(group), size, group) if size > 1 else Workers()
    parts = [texts[len(texts) * part // size : len(texts) * (part + 1) // size] for part in range(size)]
    vectors = gather_blocks(
        parts, lambda part: encode_texts(model, dictionary, tokenizer, part, prompt=prompt)[0], workers
    )
    return np.concatenate(list(vectors))
