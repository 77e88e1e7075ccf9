"""Checks ``--best-checkpoint-metric``: that the run logs the metric, and the direction in which it improves."""

import difflib
from typing import Any

from fairseq_clear.errors import UserError

__all__ = ["check_metric"]

STS = "sts_spearman"
HIGHER_IS_BETTER = {STS, "contrastive_accuracy"}
OF_MLM = {"mlm_loss", "ppl"}
OF_CONTRAST = {
    *("contrastive_loss", "contrastive_accuracy", "positive_cosine", "negative_cosine", "alignment", "uniformity"),
    *("negatives_per_query", "view_length_ratio"),
}


def check_metric(cfg: Any) -> None:
    """Check the metric that chooses the best checkpoint before training, rather than after the first validation.

    Args:
        cfg: fairseq's configuration.

    Raises:
        UserError: a metric that this run never logs, or the wrong direction.
    """
    metric, criterion = cfg.checkpoint.best_checkpoint_metric, cfg.criterion
    flag = f"--best-checkpoint-metric {metric}"
    if metric == STS and not cfg.task.eval_sts:
        raise UserError(
            f"{flag}: nothing measures it; give --eval-sts with a folder of STSBenchmark or a file of scored pairs"
        )
    if metric == STS and cfg.dataset.disable_validation:
        raise UserError(f"{flag}: it is measured in validation; leave --disable-validation out")
    if str(criterion._name).startswith("clear_"):
        known = (
            {"loss", STS}
            | (OF_MLM if criterion.mlm_weight else set())
            | (OF_CONTRAST if criterion.contrastive_weight else set())
        )
        if metric not in known:
            near = difflib.get_close_matches(metric, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"{flag}: this run does not log it{hint} It logs {', '.join(sorted(known))}")
    if (metric in HIGHER_IS_BETTER) != cfg.checkpoint.maximize_best_checkpoint_metric:
        what = "higher is better; add" if metric in HIGHER_IS_BETTER else "lower is better; leave out"
        raise UserError(f"{flag}: {what} --maximize-best-checkpoint-metric")
