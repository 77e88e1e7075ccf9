"""The four objectives of Self-Guided contrastive learning (Kim, Yoo and Lee 2021, arXiv:2106.07345), section 3.

c_i is the sentence vector of the tuned encoder, h_{i,k} the pooled hidden states of layer k of the frozen one, both after the
projection head f; phi(u, v) = exp(cos(f(u), f(v)) / tau). All share one signature, so that a criterion chooses by name.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_clear.objectives.nt_xent import nt_xent
from fairseq_clear.objectives.statistics import alignment_sum, uniformity_sums

__all__ = ["opt1", "opt2", "opt3", "sg"]

Result = tuple[Tensor, Tensor, dict[str, Tensor]]


def sg(
    sentences: Tensor,
    guides: Tensor,
    all_sentences: Tensor,
    all_guides: Tensor,
    own: Tensor,
    *,
    temperature: float,
    excluded: Tensor | None = None,
) -> Result:
    """L^base, section 3.1: symmetric NT-Xent over X = {c_i} and {h_i}, one layer a sentence; the sum of its 2b terms.

    Args:
        sentences: (B, D) c_i of this worker.
        guides: (B, L, D) h_{i,k} of this worker; sg, opt1 and opt2 need L = 1, the layer that the sampler chose.
        all_sentences: (K, D) c of all workers.
        all_guides: (K, L, D) h of all workers.
        own: (B,) where this worker's sentences are among the K.
        temperature: tau > 0.
        excluded: (B, K) bool, True where a sentence is no negative of another: its own row, duplicates of its text.

    Returns:
        The summed loss in nats, the number of its terms (here two a sentence), and sums for logging, as nt_xent's.
    """
    queries = torch.cat([sentences, _one_layer(guides)])  # (2B, D)
    keys = torch.cat([all_sentences, _one_layer(all_guides)])  # (2K, D)
    excluded = _with_own(own, all_sentences.shape[0], excluded)  # (B, K)
    positive = torch.cat([own + all_sentences.shape[0], own])  # (2B,)
    return nt_xent(queries, keys, positive, temperature=temperature, excluded=excluded.repeat(2, 2))


def opt1(
    sentences: Tensor,
    guides: Tensor,
    all_sentences: Tensor,
    all_guides: Tensor,
    own: Tensor,
    *,
    temperature: float,
    excluded: Tensor | None = None,
) -> Result:
    """L^opt1, section 3.2: c_i alone are queries; candidates are the other c_j and all h_j. Arguments as in ``sg``."""
    keys = torch.cat([all_sentences, _one_layer(all_guides)])  # (2K, D)
    excluded = _with_own(own, all_sentences.shape[0], excluded).repeat(1, 2)  # (B, 2K)
    return nt_xent(sentences, keys, own + all_sentences.shape[0], temperature=temperature, excluded=excluded)


def opt2(
    sentences: Tensor,
    guides: Tensor,
    all_sentences: Tensor,
    all_guides: Tensor,
    own: Tensor,
    *,
    temperature: float,
    excluded: Tensor | None = None,
) -> Result:
    """L^opt2, section 3.2: candidates of c_i are all h_j, no c_j. Arguments as in ``sg``."""
    return nt_xent(sentences, _one_layer(all_guides), own, temperature=temperature, excluded=excluded)


def opt3(
    sentences: Tensor,
    guides: Tensor,
    all_sentences: Tensor,
    all_guides: Tensor,
    own: Tensor,
    *,
    temperature: float,
    excluded: Tensor | None = None,
) -> Result:
    """L^opt3, section 3.2, "SG-OPT": each layer's h_{i,k} is a positive of c_i by itself, among all h_{m,n} of other sentences.

    Arguments as in ``sg``, with every layer. The sum over i of the mean over k, so that its terms are sentences.
    """
    sentences = F.normalize(sentences.float(), dim=-1)  # float32 whatever the training precision, as in nt_xent
    all_guides = F.normalize(all_guides.float(), dim=-1)
    others, layers = all_guides.shape[:2]
    cosine = (sentences @ all_guides.flatten(0, 1).T).view(len(sentences), others, layers)  # (B, K, L)
    is_negative = ~_with_own(own, others, excluded)  # (B, K)
    counted = is_negative.any(dim=1)  # (B,)
    positive = cosine.gather(1, own.view(-1, 1, 1).expand(-1, 1, layers)).squeeze(1)  # (B, L)

    logits = (cosine / temperature).masked_fill(~is_negative.unsqueeze(2), -math.inf)
    negatives = torch.logsumexp(logits.flatten(1), dim=1)  # (B,); -inf without any, where the terms below are 0
    terms = F.softplus(negatives.unsqueeze(1) - positive / temperature)  # (B, L) log(phi+ + sum) - log phi+
    loss = (terms.mean(dim=1) * counted).sum()
    return loss, counted.sum().float(), _statistics(cosine.detach(), positive.detach(), is_negative, counted)


def _one_layer(guides: Tensor) -> Tensor:
    if guides.shape[1] != 1:
        raise ValueError(f"one layer a sentence is due, got {guides.shape[1]}: sample one of them first")
    return guides[:, 0]


def _with_own(own: Tensor, keys: int, excluded: Tensor | None) -> Tensor:
    """(B, K) bool: what is excluded, and the sentence itself."""
    itself = torch.zeros(own.shape[0], keys, dtype=torch.bool, device=own.device)
    itself.scatter_(1, own.unsqueeze(1), True)
    return itself if excluded is None else itself | excluded


@torch.no_grad()
def _statistics(cosine: Tensor, positive: Tensor, is_negative: Tensor, counted: Tensor) -> dict[str, Tensor]:
    """As nt_xent's; what concerns the positive is the mean over its layers."""
    layers = positive.shape[1]
    negative = is_negative.unsqueeze(2).expand_as(cosine)
    hardest = cosine.masked_fill(~negative, -math.inf).flatten(1)
    hardest = F.pad(hardest, (0, 1), value=-math.inf).amax(dim=1, keepdim=True)  # (B, 1)
    each = counted.unsqueeze(1)
    return {
        "correct": ((positive > hardest) & each).sum().float() / layers,
        "positive_cosine": (positive * each).sum() / layers,
        "negative_cosine": cosine.masked_fill(~negative, 0.0).sum(),
        "negatives": negative.sum().float(),
        "alignment": alignment_sum(positive, each) / layers,
        "uniformity": uniformity_sums(cosine, negative),
    }
