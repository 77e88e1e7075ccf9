"""The command line of fairseq-train for one restart."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fairseq_clear
from fairseq_clear.evaluation.checkpoints import LoadedModel
from fairseq_clear.evaluation.glue.recipes import FineTuning
from fairseq_clear.evaluation.glue.tasks import GlueTask

__all__ = ["PRECISIONS", "training_command"]

# fp16 as in fairseq's examples/roberta/config/finetuning
PRECISIONS: dict[str, tuple[str, ...]] = {
    "float32": (),
    "fp16": ("--fp16", "--fp16-init-scale", "4", "--threshold-loss-scale", "1", "--fp16-scale-window", "128"),
    "bf16": ("--bf16",),
}
# What decides about the shape of the encoder, from the checkpoint's own settings.
_VALUES = (
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "activation_fn",
    "pooler_activation_fn",
    "attention_window",
    "layer_norm_eps",
    "segments",
)
_SWITCHES = ("encoder_normalize_before", "layernorm_embedding", "untie_weights_roberta")


def training_command(
    task: GlueTask,
    data: Path,
    examples: int,
    checkpoint: Path,
    loaded: LoadedModel,
    settings: FineTuning,
    seed: int,
    folder: Path,
    *,
    device: str,
    precision: str = "float32",
) -> list[str]:
    """One restart: fairseq-train on ``sentence_prediction``, validated and saved after each epoch.

    Calling it again goes on from ``checkpoint_last.pt``, where there is one. The best epoch is that of the highest dev
    accuracy, as fairseq's recipes have it, and for STS-B of the lowest loss.

    Args:
        task: which.
        data: folder in the layout of sentence_prediction.
        examples: of the training split.
        checkpoint: to start from.
        loaded: the same, for its sizes.
        settings: of the recipe.
        seed: of dropout, head and order.
        folder: for checkpoints.
        device, precision: cpu or cuda; of PRECISIONS.
    """
    best = () if task.is_regression else ("--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric")
    flags: list[Any] = [
        data, "--user-dir", Path(fairseq_clear.__file__).parent,
        "--task", "sentence_prediction", "--criterion", "sentence_prediction", "--num-classes", task.outputs,
        *(["--regression-target"] if task.is_regression else []),
        "--init-token", loaded.dictionary.bos(), *_separator(loaded),
        "--max-positions", int(loaded.model.max_positions()),
        "--arch", "clear_roberta", *_sizes(loaded.model.args),
        "--dropout", settings.dropout, "--attention-dropout", settings.dropout, "--pooler-dropout", settings.dropout,
        "--finetune-from-model", checkpoint, "--save-dir", folder, "--no-epoch-checkpoints", *best,
        "--optimizer", "adam", "--adam-betas", settings.adam_betas, "--adam-eps", settings.adam_eps,
        "--weight-decay", settings.weight_decay, "--clip-norm", settings.clip_norm,
        "--lr", settings.learning_rate, "--lr-scheduler", "polynomial_decay",
        "--warmup-updates", settings.warmup_updates(examples), "--total-num-update", settings.updates(examples),
        "--max-update", settings.updates(examples), "--max-epoch", settings.epochs,
        "--batch-size", settings.batch_size, "--required-batch-size-multiple", 1,
        "--seed", seed, "--num-workers", 0, "--distributed-world-size", 1,
        "--log-format", "json", "--log-interval", 100,
        *PRECISIONS[precision], *(["--cpu"] if device == "cpu" else []),
    ]  # fmt: skip
    return [sys.executable, "-m", "fairseq_cli.train", *map(str, flags)]


def _separator(loaded: LoadedModel) -> Sequence[str]:
    """RoBERTa writes ``</s>`` twice between two texts; BERT, whose segments the first one ends, once."""
    return () if loaded.model.args.segments > 1 else ("--separator-token", str(loaded.dictionary.eos()))


def _sizes(args: Any) -> Sequence[str]:
    flags: list[str] = []
    for name in _VALUES:
        if getattr(args, name, None):
            flags += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    return [*flags, *(f"--{name.replace('_', '-')}" for name in _SWITCHES if getattr(args, name, False))]
