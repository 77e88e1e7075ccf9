"""Messages of a training run: a summary before the first update, and warnings, each logged once."""

import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_clear.data.mixed_dataset import MixedDataset
from fairseq_clear.lifecycle import Needs
from fairseq_clear.tasks.corpus_mix import describe_mix
from fairseq_clear.views.view_table import find_view_source

logger = logging.getLogger("fairseq_clear")

EASY_ACCURACY = 0.99
WINDOW = 20  # updates
CANDIDATES = 32  # per query, the positive included
EARLY_SHARE = 0.01
EARLY_UPDATES = 100


def log_summary(task: Any, trainer: Any) -> None:
    """Log data, model, objective, batches and checkpoints of a run, and the update from which a resumed run continues."""
    for subject, text in _lines(task, trainer):
        logger.info("%-10s %s", subject, text)
    done, last = trainer.get_num_updates(), trainer.cfg.optimization.max_update or math.inf
    if done:
        over = ": the run is complete" if done >= last else ""
        logger.info("%-10s from update %d of %s%s", "resumes", done, trainer.cfg.checkpoint.save_dir, over)


def _lines(task: Any, trainer: Any) -> Iterator[tuple[str, str]]:
    cfg, model = trainer.cfg, trainer.get_model()
    data = task.datasets[cfg.dataset.train_subset]
    is_of_documents = data.view_maker is not None and find_view_source(cfg.task.views)[0].needs_documents
    items = "documents" if is_of_documents else "texts"
    is_mixed = isinstance(data, MixedDataset)
    read = f"{len(data):,} {items} {'per epoch' if is_mixed else 'to train on'}"
    yield "data", f"{cfg.task.data}, {read}, vocabulary of {len(task.dictionary):,}"
    if is_mixed:
        yield "mix", describe_mix(task.mix, data, items)
    longest, mean = int(data.sizes.max(initial=0)), float(np.mean(data.totals)) if len(data) else 0.0
    yield "tokens", f"at most {longest} in a text or view, {mean:.0f} per item on average (masked copy and views)"
    yield "views", f"{cfg.task.views}, augmented by {cfg.task.augment}" if task.needs.views else "none"
    yield "objective", _objective(cfg, task.needs)
    yield "model", _architecture(model.args)
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    yield "parameters", f"{trained:,} trained, {sum(size for size, _ in sizes) - trained:,} frozen"
    workers, precisions = trainer.data_parallel_world_size, ("fp16", "bf16", "amp")
    precision = next((name for name in precisions if cfg.common[name]), "float32")
    yield "workers", f"{workers} on {'GPU' if trainer.cuda else 'CPU'}{'s' * (workers > 1)}, {precision}"
    yield "batch", _batch(cfg, workers)
    yield "updates", _length(cfg)
    yield "saves", _saves(cfg.checkpoint)


def _objective(cfg: Any, needs: Needs) -> str:
    settings, terms = cfg.criterion, []
    if needs.mlm:
        weight = getattr(settings, "mlm_weight", 1.0)
        terms.append("masked LM" if weight == 1 else f"{weight:g} x masked LM")
    if needs.views:
        weight = "" if settings.contrastive_weight == 1 else f"{settings.contrastive_weight:g} x "
        name = getattr(settings, "objective", None) or settings._name
        dimensions = f", dimensions {settings.matryoshka}" if getattr(settings, "matryoshka", "") else ""
        directions = ", one direction" if str(getattr(settings, "directions", "")) == "one" else ""
        terms.append(f"{weight}{name} (temperature {settings.temperature:g}{directions}{dimensions})")
    if getattr(settings, "regularizer_weight", 0):
        terms.append(f"{settings.regularizer_weight:g} x squared distance from the start")
    return " + ".join(terms)


def _architecture(args: Any) -> str:
    name = getattr(args, "_name", None) or getattr(args, "arch", "model")
    size = f"{args.encoder_layers} layers x {args.encoder_embed_dim}"
    if not hasattr(args, "pooling"):
        return f"{name}, {size}"
    head = f"head of {args.projection_layers} layers" if args.projection_layers else "no head"
    return f"{name}, {size}, pooling {args.pooling}, {head}"


def _batch(cfg: Any, workers: int) -> str:
    data, frequency = cfg.dataset, list(cfg.optimization.update_freq)
    limits = [f"{size} {what}" for size, what in ((data.batch_size, "items"), (data.max_tokens, "tokens")) if size]
    accumulated = "" if frequency == [1] else f" x {','.join(map(str, frequency))} micro-batches"
    return f"at most {' or '.join(limits)} per worker{accumulated}" + (f" x {workers} workers" if workers > 1 else "")


def _length(cfg: Any) -> str:
    limits = cfg.optimization
    ends = [f"{limits.max_update:,}"] * (limits.max_update > 0)
    ends += [f"{limits.max_epoch} epochs"] * (limits.max_epoch > 0)
    rates = ",".join(f"{rate:g}" for rate in limits.lr)
    return f"{' or '.join(ends) or 'without end'}, {cfg.optimizer._name} at {rates}, {cfg.lr_scheduler._name}"


def _saves(checkpoint: Any) -> str:
    if checkpoint.no_save:
        return "nothing (--no-save)"
    updates, epochs = checkpoint.save_interval_updates, checkpoint.save_interval
    every = [f"every {updates:,} updates"] * (updates > 0)
    every += [f"after {'each epoch' if epochs == 1 else f'{epochs} epochs'}"] * (epochs < 10**6)
    return f"{checkpoint.save_dir}, {' and '.join([*every, 'at the end'])}"


class Watch:
    """Watches the statistics of updates, and logs each warning once.

    In CLEAR section 4.2, training with only substitution or reordering converges at once or diverges, because matching such
    views is too easy. A warning is logged if the accuracy over the last 20 updates is above 0.99, with at least 32 candidates
    per query on average. This is checked during the first 1 % of the updates, but at least during the first 100, unless views
    differ only by dropout (``dropout_only``). ``update`` is the number of the update to check; None in validation.
    """

    def __init__(self, *, dropout_only: bool = False) -> None:
        self.dropout_only = dropout_only
        self.update: int | None = None
        self.said: set[str] = set()
        self.recent: deque[tuple[float, float, float]] = deque(maxlen=WINDOW)  # correct, queries, negatives

    def __call__(self, logs: Sequence[Mapping[str, Any]], max_update: int) -> None:
        """Check the logging outputs of one update, of all workers."""
        if self.update is None:
            return
        # an empty queue needs no warning, because it fills in the first updates
        if not _total(logs, "queue_readings") and _total(logs, "without_negatives"):
            trained = "only trained the masked language model" if _total(logs, "masked_tokens") else "trained nothing"
            self._warn_once(
                f"a batch held no negatives: it {trained}. To get negatives, use larger batches "
                "(--batch-size, --max-tokens), --negatives global with several workers, or less repetitive text"
            )
        # --false-negatives masks the candidates that are closer than the positive, so a high accuracy is expected
        is_expected = self.dropout_only or _total(logs, "candidates") > 0
        if is_expected or self.update >= max(EARLY_SHARE * max_update, EARLY_UPDATES):
            return
        self.recent.append((_total(logs, "correct"), _total(logs, "queries"), _total(logs, "negatives")))
        correct, queries, negatives = (sum(numbers) for numbers in zip(*self.recent, strict=True))
        is_enough = len(self.recent) == WINDOW and queries + negatives >= CANDIDATES * queries > 0
        if is_enough and correct / queries > EASY_ACCURACY:
            self._warn_once(
                f"contrastive accuracy is above {EASY_ACCURACY} over {WINDOW} updates: the views are too easy to tell apart "
                "(CLEAR section 4.2). Delete more (del-word:ratio=0.7), chain augmentations, or enlarge the batch"
            )

    def _warn_once(self, message: str) -> None:
        if message not in self.said:
            self.said.add(message)
            logger.warning(message)


def _total(logs: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(sum(log.get(name, 0) for log in logs))
