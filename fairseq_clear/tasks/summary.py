"""Logs the summary of a run before its first update: ten lines, each on one subject; one more with ``--mix``."""

import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fairseq_clear.data.mixed_dataset import MixedDataset
from fairseq_clear.tasks.corpus_mix import describe_mix

__all__ = ["log_summary"]

logger = logging.getLogger("fairseq_clear")


def log_summary(task: Any, trainer: Any) -> None:
    """Log data, model, objective, batches and checkpoints of a run, and the update from which a resumed run continues.

    Args:
        task: a ClearLMTask whose training set is loaded.
        trainer: fairseq's trainer, with the checkpoint loaded if there is one.
    """
    for subject, text in _lines(task, trainer):
        logger.info("%-10s %s", subject, text)
    done, last = trainer.get_num_updates(), trainer.cfg.optimization.max_update or math.inf
    if done:
        over = ": the run is complete" if done >= last else ""
        logger.info("%-10s from update %d of %s%s", "resumes", done, trainer.cfg.checkpoint.save_dir, over)


def _lines(task: Any, trainer: Any) -> Iterator[tuple[str, str]]:
    cfg, model, criterion = trainer.cfg, trainer.get_model(), trainer.get_criterion()
    data = task.datasets[cfg.dataset.train_subset]
    items = "documents" if data.texts is not None and task.reads_documents else "texts"
    is_mixed = isinstance(data, MixedDataset)
    read = f"{len(data):,} {items} {'an epoch' if is_mixed else 'to train on'}"
    yield "data", f"{cfg.task.data}, {read}, vocabulary of {len(task.dictionary):,}"
    if is_mixed:
        yield "mix", describe_mix(task.mix, data, items)
    longest, mean = int(data.sizes.max(initial=0)), float(np.mean(data.totals)) if len(data) else 0.0
    yield "tokens", f"at most {longest} in a text or view, {mean:.0f} an item on average with its masked copy and views"
    if task.needs_views:
        yield "views", f"{cfg.task.views}, augmented by {cfg.task.augment}"
    else:
        yield "views", "none"
    yield "objective", _objective(cfg, criterion)
    yield "model", _architecture(model.args)
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    yield "parameters", f"{trained:,} trained, {sum(size for size, _ in sizes) - trained:,} frozen"
    workers = trainer.data_parallel_world_size
    yield "workers", f"{workers} on {'GPU' if trainer.cuda else 'CPU'}{'s' * (workers > 1)}, {_precision(cfg.common)}"
    yield "batch", _batch(cfg, workers)
    yield "updates", _length(cfg)
    unsaved = cfg.checkpoint.no_save
    yield "saves", "nothing (--no-save)" if unsaved else f"{cfg.checkpoint.save_dir}, {_when(cfg.checkpoint)}"


def _objective(cfg: Any, criterion: Any) -> str:
    settings, terms = cfg.criterion, []
    if getattr(criterion, "needs_mlm", True):
        weight = getattr(settings, "mlm_weight", 1.0)
        terms.append("masked LM" if weight == 1 else f"{weight:g} x masked LM")
    if getattr(criterion, "needs_views", False):
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


def _precision(common: Any) -> str:
    return next((name for name in ("fp16", "bf16", "amp") if common[name]), "float32")


def _batch(cfg: Any, workers: int) -> str:
    data, frequency = cfg.dataset, list(cfg.optimization.update_freq)
    limits = [f"{data.batch_size} items"] * bool(data.batch_size) + [f"{data.max_tokens} tokens"] * bool(
        data.max_tokens
    )
    each = " or ".join(limits)
    accumulated = "" if frequency == [1] else f" x {','.join(map(str, frequency))} micro-batches"
    return f"at most {each} a worker{accumulated}" + (f" x {workers} workers" if workers > 1 else "")


def _length(cfg: Any) -> str:
    limits = cfg.optimization
    ends = [f"{limits.max_update:,}"] * bool(limits.max_update) + [f"{limits.max_epoch} epochs"] * bool(
        limits.max_epoch
    )
    end = " or ".join(ends) or "without end (--max-update, --max-epoch)"
    rates = ",".join(f"{rate:g}" for rate in limits.lr)
    return f"{end}, {cfg.optimizer._name} at {rates}, {cfg.lr_scheduler._name}"


def _when(checkpoint: Any) -> str:
    every = [f"every {checkpoint.save_interval_updates:,} updates"] * (checkpoint.save_interval_updates > 0)
    if checkpoint.save_interval < 10**6:
        every.append(
            "after each epoch" if checkpoint.save_interval == 1 else f"after {checkpoint.save_interval} epochs"
        )
    return " and ".join([*every, "at the end"])
