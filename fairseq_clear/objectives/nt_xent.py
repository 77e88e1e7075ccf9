"""NT-Xent, the loss of SimCLR that CLEAR (eq. 1 and 2), DeCLUTR and SimCSE share, and InfoNCE, that of MoCo and CERT."""

from torch import Tensor

from fairseq_clear.objectives.exclusion import Exclusion
from fairseq_clear.objectives.negatives import Result, contrast_with_negatives, cross_entropy
from fairseq_clear.objectives.unit_vectors import unit_vectors


def nt_xent(
    queries: Tensor, keys: Tensor, positive: Tensor, *, temperature: float, excluded: Exclusion | Tensor | None = None
) -> Result:
    """Sum over queries of -log exp(sim(q, k+)/tau) / sum_k exp(sim(q, k)/tau), sim being the cosine.

    CLEAR eq. 1 for each row and eq. 2 for the sum (arXiv:2012.15466); Chen et al. 2020 (arXiv:2002.05709), eq. 1. CLEAR
    does not state its temperature. In the symmetric form, queries are the 2N augmented texts of this worker, keys the texts of
    all workers, and a query's own row is ``excluded``. A query without negatives has loss 0 and is not counted.

    Args:
        queries: (Q, D), of any length and floating dtype; normalised here, in float32.
        keys: (K, D), likewise.
        positive: (Q,) index of each query's positive in ``keys``.
        temperature: tau > 0.
        excluded: keys that are not candidates of a query (the query itself, duplicates of its text): rules, or a (Q, K) bool
            matrix. The positive is always a candidate.

    Returns:
        The summed loss in nats (float32 scalar), the number of queries counted (float32 scalar), and sums for logging,
        without gradient (see ``negatives.contrast_statistics``).
    """
    queries, keys = unit_vectors(queries), unit_vectors(keys)
    positives = (queries * keys[positive]).sum(dim=1, keepdim=True)  # (Q, 1)
    negatives = contrast_with_negatives(queries, keys, temperature, Exclusion.of(excluded).with_own(positive))
    return cross_entropy(positives, negatives, temperature)


def info_nce(
    queries: Tensor, positives: Tensor, queue: Tensor, *, temperature: float, excluded: Exclusion | Tensor | None = None
) -> Result:
    """Sum over queries of -log exp(q k+ / tau) / (exp(q k+ / tau) + sum_i exp(q k_i / tau)).

    CERT (Fang et al. 2020, arXiv:2005.12766), eq. 2; He et al. 2019 (arXiv:1911.05722), eq. 1. The positive is one of the
    candidates. A query without any candidate in the queue has loss 0 and is not counted. The results are as of ``nt_xent``.

    Args:
        queries: (Q, D), of any length and floating dtype; normalised here, in float32, as in the paper.
        positives: (Q, D) the key of each query, likewise.
        queue: (K, D) float32 of unit length, without gradient.
        temperature: tau > 0.
        excluded: keys of the queue that are not candidates (never written, or from the query's own text): rules, or a (Q, K)
            bool matrix.
    """
    queries = unit_vectors(queries)
    positive = (queries * unit_vectors(positives)).sum(dim=1, keepdim=True)  # (Q, 1)
    negatives = contrast_with_negatives(queries, queue, temperature, Exclusion.of(excluded))
    return cross_entropy(positive, negatives, temperature)
