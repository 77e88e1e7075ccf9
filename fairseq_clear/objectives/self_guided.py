"""The four objectives of Self-Guided contrastive learning (Kim, Yoo and Lee 2021, arXiv:2106.07345), section 3.

c_i is the sentence vector of the tuned encoder, and h_{i,k} are the pooled hidden states of layer k of the frozen encoder, both
after the projection head f; phi(u, v) = exp(cos(f(u), f(v)) / tau). All objectives have the same signature, so the criterion
can choose one by name.
"""

import torch
from torch import Tensor

from fairseq_clear.objectives.exclusion import Exclusion
from fairseq_clear.objectives.negatives import Result, contrast_with_negatives, cross_entropy
from fairseq_clear.objectives.nt_xent import nt_xent
from fairseq_clear.objectives.unit_vectors import unit_vectors


def sg(
    sentences: Tensor,
    layers: Tensor,
    all_sentences: Tensor,
    all_layers: Tensor,
    own: Tensor,
    *,
    temperature: float,
    excluded: Exclusion | Tensor | None = None,
) -> Result:
    """L^base, section 3.1: symmetric NT-Xent over X = {c_i} and {h_i}, with one layer per sentence; the sum of its 2b terms.

    Args:
        sentences: (B, D) c_i of this worker.
        layers: (B, L, D) h_{i,k} of this worker; sg, opt1 and opt2 need L = 1, the layer that the sampler chose.
        all_sentences: (K, D) c of all workers.
        all_layers: (K, L, D) h of all workers.
        own: (B,) indices of this worker's sentences among the K.
        temperature: tau > 0.
        excluded: sentences that are not negatives of a sentence (duplicates of its text): rules, or a (B, K) bool matrix. A
            sentence is never its own negative.

    Returns:
        The summed loss in nats, the number of its terms (here two per sentence), and sums for logging, as ``nt_xent`` returns.
    """
    queries = torch.cat([sentences, _one_layer(layers)])  # (2B, D)
    keys = torch.cat([all_sentences, _one_layer(all_layers)])  # (2K, D)
    total = all_sentences.shape[0]
    positive = torch.cat([own + total, own])  # (2B,)
    rules = Exclusion.of(excluded).with_own(own).tile(2, 2, total)
    return nt_xent(queries, keys, positive, temperature=temperature, excluded=rules)


def opt1(
    sentences: Tensor,
    layers: Tensor,
    all_sentences: Tensor,
    all_layers: Tensor,
    own: Tensor,
    *,
    temperature: float,
    excluded: Exclusion | Tensor | None = None,
) -> Result:
    """L^opt1, section 3.2: only c_i are queries; candidates are the other c_j and all h_j. Arguments as in ``sg``."""
    keys = torch.cat([all_sentences, _one_layer(all_layers)])  # (2K, D)
    total = all_sentences.shape[0]
    rules = Exclusion.of(excluded).with_own(own).tile(1, 2, total)
    return nt_xent(sentences, keys, own + total, temperature=temperature, excluded=rules)


def opt2(
    sentences: Tensor,
    layers: Tensor,
    all_sentences: Tensor,
    all_layers: Tensor,
    own: Tensor,
    *,
    temperature: float,
    excluded: Exclusion | Tensor | None = None,
) -> Result:
    """L^opt2, section 3.2: candidates of c_i are only h_j, not c_j. Arguments as in ``sg``."""
    return nt_xent(sentences, _one_layer(all_layers), own, temperature=temperature, excluded=excluded)


def opt3(
    sentences: Tensor,
    layers: Tensor,
    all_sentences: Tensor,
    all_layers: Tensor,
    own: Tensor,
    *,
    temperature: float,
    excluded: Exclusion | Tensor | None = None,
) -> Result:
    """L^opt3, section 3.2, "SG-OPT": each h_{i,k} is a separate positive of c_i; negatives are all h_{m,n} of other sentences.

    Arguments as in ``sg``, with every layer. The loss is the sum over i of the mean over k, so each sentence is one term.
    """
    sentences, all_layers = unit_vectors(sentences), unit_vectors(all_layers)
    number = all_layers.shape[1]
    positives = (sentences.unsqueeze(1) * all_layers[own]).sum(dim=2)  # (B, L)
    rules = Exclusion.of(excluded).with_own(own).spread(number)
    negatives = contrast_with_negatives(sentences, all_layers.flatten(0, 1), temperature, rules)
    return cross_entropy(positives, negatives, temperature)


def _one_layer(layers: Tensor) -> Tensor:
    if layers.shape[1] != 1:
        raise ValueError(f"expected one layer per sentence, got {layers.shape[1]}; sample one of them first")
    return layers[:, 0]
