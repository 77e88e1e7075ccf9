"""The numbers that a run logs: sums over workers and micro-batches, each divided by its own count."""

import math
from typing import Any

from fairseq.logging import metrics
from fairseq.utils import get_perplexity

__all__ = ["log_numbers"]

LN2 = math.log(2)


def log_numbers(logging_outputs: list[dict[str, Any]]) -> None:
    """Log averages over all workers and micro-batches."""

    def total(name: str) -> Any:
        return sum(log.get(name, 0) for log in logging_outputs)

    def ratio(name: str, numerator: Any, count: str, digits: int = 3) -> None:
        denominator = total(count)
        if denominator > 0:
            metrics.log_scalar(name, numerator / denominator, denominator, round=digits)

    # also of an update that counted nothing: fairseq warns where no loss is logged
    metrics.log_scalar("loss", total("loss") / LN2 / max(total("sample_size"), 1), total("sample_size"), round=3)
    if any("masked_tokens" in log for log in logging_outputs):
        ratio("mlm_loss", total("mlm_loss") / LN2, "masked_tokens")
        metrics.log_derived("ppl", lambda meters: get_perplexity(meters["mlm_loss"].avg) if "mlm_loss" in meters else 0)
    if any("distance" in log for log in logging_outputs):
        ratio("squared_distance", total("distance"), "sample_size", 6)
    if any("queries" in log for log in logging_outputs):
        ratio("contrastive_loss", total("contrastive_loss") / LN2, "queries")
        ratio("contrastive_accuracy", total("correct"), "queries")
        ratio("positive_cosine", total("positive_cosine"), "queries")
        ratio("negative_cosine", total("negative_cosine"), "negatives")
        ratio("alignment", total("alignment"), "queries")
        ratio("negatives_per_query", total("negatives"), "queries", 1)
        ratio("view_length_ratio", total("view_length"), "text_length")
        ratio("substituted_share", total("substituted"), "words")
        ratio("queue_fill", total("queue_fill"), "queue_readings", 0)
        if any(log.get("fell_back", 0) for log in logging_outputs):
            metrics.log_scalar("paraphrases_missing", total("fell_back"), round=1)
        _log_uniformity(total("uniformity"), total("negatives"))


def _log_uniformity(potential: Any, pairs: Any) -> None:
    """The logarithm of a mean is not a mean of logarithms: average the potential, derive the metric."""
    if pairs > 0:
        metrics.log_scalar("_gaussian_potential", potential / pairs, pairs)
        metrics.log_derived(
            "uniformity",
            lambda meters: round(math.log(max(float(meters["_gaussian_potential"].avg), 1e-30)), 3),
        )
