"""NT-Xent, the contrastive loss of SimCLR that CLEAR (eq. 1 and 2), DeCLUTR and SimCSE share."""

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
