"""The figures that a criterion logs: sums and counts of a micro-batch, which fairseq sums over workers, and their averages."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.utils import get_perplexity
from torch import Tensor

LN2 = math.log(2)
# Figures of a micro-batch, in the order of the logging output. fairseq adds the figures of several workers by position.
FIGURES = (
    *("loss", "ntokens", "nsentences", "sample_size", "mlm_loss", "masked_tokens", "distance", "distance_rows"),
    *("contrastive_loss", "queries", "without_negatives", "correct", "positive_cosine", "negatives", "negative_cosine"),
    *("alignment", "uniformity", "candidates", "queue_fill", "queue_readings"),
    *("view_length", "text_length", "words", "substituted", "fell_back"),
)


def record_figures(found: Mapping[str, Any], device: torch.device) -> dict[str, Tensor]:
    """Return the logging output of a micro-batch, with the same keys, order and type on every worker.

    Args:
        found: figures of this worker, numbers or tensors; a missing figure counts as 0. Statistics of an objective that are not
            in FIGURES come last, in alphabetical order.
    """
    names = (*FIGURES, *sorted(found.keys() - set(FIGURES)))
    zero = torch.zeros((), dtype=torch.float64, device=device)  # shared: most criterions lack several figures
    values = {name: found.get(name, zero) for name in names}
    return {
        # not a tensor of the number, whose copy to the GPU would block the CPU
        name: value.detach().double() if isinstance(value, Tensor) else torch.full_like(zero, value)
        for name, value in values.items()
    }


def read_figures(logging_outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return logging outputs whose tensors of one element are on the CPU, in float64.

    All of them are copied from the GPU at once. Otherwise each figure that fairseq logs waits for the GPU.
    """
    found = [dict(log) for log in logging_outputs]
    places = [
        (log, name) for log in found for name, value in log.items() if isinstance(value, Tensor) and value.numel() == 1
    ]
    if places:
        device = places[0][0][places[0][1]].device
        values = torch.stack([log[name].detach().double().reshape(()).to(device) for log, name in places]).cpu()
        for (log, name), value in zip(places, values, strict=True):
            log[name] = value
    return found


def log_numbers(logging_outputs: list[dict[str, Any]]) -> None:
    """Log averages over all workers and micro-batches."""

    def total(name: str) -> Any:
        return sum(log.get(name, 0) for log in logging_outputs)

    def ratio(name: str, numerator: Any, count: str, digits: int = 3) -> None:
        denominator = total(count)
        if denominator > 0:
            metrics.log_scalar(name, numerator / denominator, denominator, round=digits)

    # Logged even if sample_size is 0, because fairseq warns if there is no loss.
    metrics.log_scalar("loss", total("loss") / LN2 / max(total("sample_size"), 1), total("sample_size"), round=3)
    if total("masked_tokens") > 0:
        ratio("mlm_loss", total("mlm_loss") / LN2, "masked_tokens")
        metrics.log_derived("ppl", lambda meters: get_perplexity(meters["mlm_loss"].avg) if "mlm_loss" in meters else 0)
    ratio("squared_distance", total("distance"), "distance_rows", 6)
    ratio("contrastive_loss", total("contrastive_loss") / LN2, "queries")
    ratio("contrastive_accuracy", total("correct"), "queries")
    ratio("positive_cosine", total("positive_cosine"), "queries")
    ratio("negative_cosine", total("negative_cosine"), "negatives")
    ratio("alignment", total("alignment"), "queries")
    ratio("negatives_per_query", total("negatives"), "queries", 1)
    ratio("view_length_ratio", total("view_length"), "text_length")
    ratio("substituted_share", total("substituted"), "words")
    ratio("false_negative_share", total("candidates") - total("negatives"), "candidates")
    ratio("queue_fill", total("queue_fill"), "queue_readings", 0)
    if total("fell_back") > 0:
        metrics.log_scalar_sum("paraphrases_missing", total("fell_back"), round=0)
    if total("negatives") > 0:  # uniformity is the logarithm of a mean: meters average the potential
        ratio("_gaussian_potential", total("uniformity"), "negatives")
        metrics.log_derived("uniformity", lambda meters: _rounded_log(meters["_gaussian_potential"].avg))


def _rounded_log(mean: Any) -> float:
    """The logarithm of a meter's mean; 0, as fairseq's perplexity, of a meter that has counted nothing since its reset."""
    return 0.0 if mean is None else round(math.log(max(float(mean), 1e-30)), 3)
