"""The valid range of every numeric setting of a run, checked before anything is written."""

import difflib
import math
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fairseq_clear.errors import UserError
from fairseq_clear.patches.compatibility import evaluate_literal

__all__ = ["ANY", "NUMBERS", "SECTIONS", "Range", "check_metric", "check_numbers"]

INFINITY = math.inf


@dataclass(frozen=True)
class Range:
    """A range of finite numbers, from ``low`` to ``high``.

    Args:
        allowed: the range in words, for the message.
        low, high: bounds of the range.
        above, below: whether ``low``, or ``high``, is excluded.
        whole: whether only integers are allowed.
        step: numbers must be multiples of this.
    """

    allowed: str
    low: float = -INFINITY
    high: float = INFINITY
    above: bool = False
    below: bool = False
    whole: bool = False
    step: int | None = None

    def holds(self, number: float) -> bool:
        """Whether the number is in the range; NaN and infinities never are."""
        if (
            not math.isfinite(number)
            or (self.whole and not isinstance(number, int))
            or (self.step and number % self.step)
        ):
            return False
        is_above = number > self.low if self.above else number >= self.low
        return is_above and (number < self.high if self.below else number <= self.high)


ANY = Range("any number")  # finite
POSITIVE = Range("a number above 0", 0, above=True)
NOT_NEGATIVE = Range("0 or more", 0)
SHARE = Range("a number from 0 to 1", 0, 1)
RATE = Range("0 or more and below 1", 0, 1, below=True)
BETAS = Range("two numbers, 0 or more and below 1, as in '(0.9, 0.98)'", 0, 1, below=True)
COUNT = Range("a whole number, 1 or more", 1, whole=True)
WHOLE = Range("a whole number, 0 or more", 0, whole=True)
OR_OFF = Range("a whole number, 0 or more, or -1 for none", -1, whole=True)

# Name of a setting (its flag with _ for -), in any section of fairseq's configuration -> its range, and its meaning. If the
# setting is a list, each number must be in the range. None means "not given" and is always allowed.
NUMBERS: dict[str, tuple[Range, str]] = {
    # common
    "log_interval": (COUNT, "updates between two lines of the log"),
    "seed": (Range("a whole number from 0 to 4294967295", 0, 2**32 - 1, whole=True), "the seed of every random number"),
    "fp16_init_scale": (COUNT, "the first loss scale"),
    "fp16_scale_window": (COUNT, "updates before the loss scale is increased"),
    "fp16_scale_tolerance": (SHARE, "the share of updates that may overflow before the loss scale is decreased"),
    "min_loss_scale": (NOT_NEGATIVE, "the loss scale at which training stops"),
    "threshold_loss_scale": (POSITIVE, "the minimum loss scale"),
    "amp_batch_retries": (WHOLE, "retries of a batch that overflows"),
    "amp_init_scale": (COUNT, "the first loss scale"),
    "amp_scale_window": (COUNT, "updates before the loss scale is increased"),
    "empty_cache_freq": (WHOLE, "updates between two clearings of the GPU's cache"),
    "all_gather_list_size": (COUNT, "bytes for the statistics that workers exchange"),
    "model_parallel_size": (COUNT, "GPUs that share one model"),
    # distributed_training
    "distributed_world_size": (COUNT, "the number of workers"),
    "distributed_num_procs": (COUNT, "processes to start"),
    "distributed_rank": (WHOLE, "the number of this worker"),
    "distributed_port": (Range("a port from 1 to 65535, or -1 for none", -1, 65535, whole=True), "where workers meet"),
    "device_id": (WHOLE, "the GPU of this worker"),
    "bucket_cap_mb": (COUNT, "megabytes of gradients that workers exchange at a time"),
    "heartbeat_timeout": (Range("a whole number of seconds, or -1 for none", -1, whole=True), "the longest wait"),
    "slowmo_momentum": (RATE, "the momentum of SlowMo"),
    "localsgd_frequency": (COUNT, "updates between two averages"),
    "nprocs_per_node": (COUNT, "workers of a machine"),
    "pipeline_chunks": (WHOLE, "micro-batches of a pipeline"),
    # dataset
    "num_workers": (WHOLE, "processes that read data, 0 to read in the training process"),
    "max_tokens": (COUNT, "the maximum number of tokens of a batch"),
    "batch_size": (COUNT, "the maximum number of items of a batch"),
    "max_tokens_valid": (COUNT, "the maximum number of tokens of a validation batch"),
    "batch_size_valid": (COUNT, "the maximum number of items of a validation batch"),
    "required_batch_size_multiple": (COUNT, "batch sizes are multiples of it"),
    "required_seq_len_multiple": (COUNT, "lengths are padded to multiples of it"),
    "data_buffer_size": (WHOLE, "batches that are read ahead"),
    "validate_interval": (COUNT, "epochs between two validations"),
    "validate_interval_updates": (WHOLE, "updates between two validations, 0 for none"),
    "validate_after_updates": (WHOLE, "updates before the first validation"),
    "fixed_validation_seed": (
        Range("a whole number from 0 to 4294967295", 0, 2**32 - 1, whole=True),
        "the seed of validation",
    ),
    "max_valid_steps": (WHOLE, "the maximum number of batches of a validation"),
    "curriculum": (WHOLE, "epochs without shuffling"),
    "num_shards": (COUNT, "parts of the data"),
    "shard_id": (WHOLE, "the part of the data to read"),
    # optimization
    "max_epoch": (WHOLE, "the last epoch, 0 for no limit"),
    "max_update": (WHOLE, "the last update, 0 for no limit"),
    "stop_time_hours": (NOT_NEGATIVE, "hours after which training stops, 0 for no limit"),
    "clip_norm": (NOT_NEGATIVE, "the maximum norm of the gradient, 0 for no limit"),
    "update_freq": (COUNT, "batches of an update"),
    "lr": (NOT_NEGATIVE, "the learning rate"),
    "stop_min_lr": (ANY, "the learning rate at which training stops"),
    # checkpoint
    "save_interval": (COUNT, "epochs between two checkpoints"),
    "save_interval_updates": (WHOLE, "updates between two checkpoints, 0 for none"),
    "keep_interval_updates": (OR_OFF, "checkpoints of --save-interval-updates to keep"),
    "keep_interval_updates_pattern": (OR_OFF, "keep checkpoints of multiples of this many updates"),
    "keep_last_epochs": (OR_OFF, "checkpoints of epochs to keep"),
    "keep_best_checkpoints": (OR_OFF, "best checkpoints to keep"),
    "patience": (OR_OFF, "validations without improvement before training stops"),
    "checkpoint_shard_count": (COUNT, "files of a checkpoint"),
    # ema
    "ema_decay": (SHARE, "the weight of the average's past"),
    "ema_start_update": (WHOLE, "the update from which weights are averaged"),
    "ema_update_freq": (COUNT, "updates between two steps of the average"),
    # task
    "tokens_per_sample": (
        Range("a whole number, 3 or more", 3, whole=True),
        "the maximum number of tokens of a text, <s> and </s> included",
    ),
    "mask_prob": (RATE, "the share of the tokens that are masked"),
    "leave_unmasked_prob": (SHARE, "the share of the masked tokens that are not replaced"),
    "random_token_prob": (SHARE, "the share of the masked tokens that become random ones"),
    "mask_multiple_length": (COUNT, "tokens masked in a row"),
    "mask_stdev": (NOT_NEGATIVE, "the standard deviation of --mask-multiple-length"),
    "mlm_copies": (COUNT, "masked copies of each text; 2 for the Double MLM baseline"),
    # criterions
    "contrastive_weight": (NOT_NEGATIVE, "the weight of the contrastive term"),
    "mlm_weight": (NOT_NEGATIVE, "the weight of the masked language model"),
    "regularizer_weight": (NOT_NEGATIVE, "the weight of the distance from the initial weights"),
    "frozen_layers": (WHOLE, "the number of lowest layers that are not trained"),
    "temperature": (POSITIVE, "divides the cosine"),
    "queue_size": (COUNT, "keys in the queue"),
    # optimizers
    "adam_betas": (BETAS, "the decay rates of the two moments"),
    "adam_eps": (POSITIVE, "is added to the divisor of the update"),
    "weight_decay": (NOT_NEGATIVE, "the weight decay"),
    "momentum": (RATE, "the momentum of the gradient"),
    # learning rate schedules
    "warmup_updates": (WHOLE, "updates in which the learning rate rises"),
    "warmup_init_lr": (ANY, "the first learning rate of the warmup; below 0 for the schedule's own"),
    "force_anneal": (WHOLE, "the epoch from which the learning rate falls"),
    "end_learning_rate": (NOT_NEGATIVE, "the last learning rate"),
    "power": (NOT_NEGATIVE, "the exponent of the decay"),
    "total_num_update": (
        POSITIVE,
        "the update at which the learning rate reaches its end (--max-update where it is not given)",
    ),
    "min_lr": (NOT_NEGATIVE, "the minimum learning rate"),
    "max_lr": (POSITIVE, "the maximum learning rate"),
    "t_mult": (POSITIVE, "the factor by which each period is longer than the one before"),
    "lr_period_updates": (
        Range("a number above 0, or -1 for all after the warmup", -1),
        "updates of a period",
    ),
    "lr_shrink": (POSITIVE, "the factor by which the learning rate falls"),
    "lr_threshold": (NOT_NEGATIVE, "the minimum change that counts as an improvement"),
    "lr_patience": (WHOLE, "epochs without improvement before the learning rate falls"),
    "lr_deacy_period": (COUNT, "updates between two falls of the learning rate"),
    "lr_decay": (Range("a number above 0, 1 at most", 0, 1, above=True), "the factor by which the learning rate falls"),
    "warmup_steps": (WHOLE, "updates in which the learning rate rises"),
    "hold_steps": (WHOLE, "updates at the peak"),
    "decay_steps": (WHOLE, "updates in which the learning rate falls"),
    "phase_ratio": (SHARE, "the shares of warmup, peak and decay"),
    "init_lr_scale": (NOT_NEGATIVE, "the first learning rate, as a share of the peak"),
    "final_lr_scale": (POSITIVE, "the last learning rate, as a share of the peak"),
    # model
    "encoder_layers": (COUNT, "blocks of the encoder"),
    "encoder_embed_dim": (COUNT, "the width of the encoder"),
    "encoder_ffn_embed_dim": (COUNT, "the width of the feed-forward layers"),
    "encoder_attention_heads": (COUNT, "attention heads of a block"),
    "dropout": (RATE, "the share of activations that are dropped"),
    "attention_dropout": (RATE, "the share of attention weights that are dropped"),
    "activation_dropout": (RATE, "the share of activations of the feed-forward layers that are dropped"),
    "pooler_dropout": (RATE, "the share of activations of the classification head that are dropped"),
    "encoder_layerdrop": (RATE, "the share of blocks that are dropped"),
    "max_positions": (COUNT, "the maximum length of a text, in tokens"),
    "quant_noise_pq": (SHARE, "the share of weights with quantization noise"),
    "quant_noise_pq_block_size": (COUNT, "the size of quantized blocks"),
    "quant_noise_scalar": (SHARE, "the share of weights with quantization noise"),
    "min_params_to_wrap": (WHOLE, "the number of parameters from which fully sharded training wraps a layer"),
    "mha_reg_scale_factor": (NOT_NEGATIVE, "the weight of the penalty on attention heads"),
    "ffn_reg_scale_factor": (NOT_NEGATIVE, "the weight of the penalty on feed-forward layers"),
    "mha_heads_to_keep": (OR_OFF, "attention heads that pruning keeps"),
    "ffn_blocks_to_remove": (OR_OFF, "feed-forward units that pruning removes"),
    "projection_layers": (WHOLE, "linear layers of the projection head"),
    "projection_hidden_dim": (WHOLE, "the width between the layers of the projection head, 0 for the encoder's"),
    "projection_dim": (WHOLE, "the width of the projection, 0 for the encoder's"),
    "layer_norm_eps": (POSITIVE, "is added to the variance in LayerNorm"),
    "attention_window": (
        Range("an even number, or 0 for full attention", 0, whole=True, step=2),
        "the tokens that each token attends to, half on each side",
    ),
    "segments": (COUNT, "the number of segment embeddings"),
    "key_momentum": (SHARE, "the momentum of the key encoder"),
    "encode_chunk_size": (WHOLE, "the tokens encoded at a time, 0 for all"),
}
# Sections of fairseq's configuration that are checked; the others do not concern training.
SECTIONS = (
    *("common", "distributed_training", "dataset", "optimization", "checkpoint", "ema"),
    *("task", "criterion", "optimizer", "lr_scheduler", "model"),
)


def check_numbers(cfg: DictConfig) -> None:
    """Check the range of every number of a run, and numbers that must be consistent.

    Args:
        cfg: fairseq's configuration, from a command line or hydra.

    Raises:
        UserError: the first number that is out of range.
    """
    sections = {name: dict(_settings(cfg.get(name))) for name in SECTIONS}
    for settings in sections.values():
        for name in NUMBERS:
            if name in settings:
                _check(name, settings[name])
    for message in (*_wrong_schedules(sections), *_wrong_pairs(sections)):
        raise UserError(message)


def _settings(section: Any) -> Mapping[str, Any]:
    """Return the settings of a section that have a value.

    A model or optimizer without a dataclass has a Namespace with all flags of the run. In it, flags of dataclasses whose
    default is another setting are not converted: they are text, and are checked in their own section.
    """
    if isinstance(section, DictConfig):
        section = OmegaConf.to_container(section, resolve=True)
    if isinstance(section, Namespace):
        section = {name: value for name, value in vars(section).items() if not isinstance(value, str)}
    if not isinstance(section, Mapping):
        return {}
    return {name: value for name, value in section.items() if value is not None and not _is_unset(value)}


def _is_unset(value: Any) -> bool:
    """Whether a value is missing or interpolated from another section."""
    return isinstance(value, str) and (value == "???" or value.startswith("${"))


def _numbers(value: Any) -> list[float]:
    """Return the one or several numbers of a setting; ValueError for anything else."""
    if isinstance(value, str) and value.strip().startswith(("(", "[")):
        value = evaluate_literal(value)  # adam's betas
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values or not all(isinstance(number, int | float) for number in values):
        raise ValueError
    return values


def _check(name: str, value: Any) -> None:
    allowed, what = NUMBERS[name]
    try:
        is_right = all(allowed.holds(number) for number in _numbers(value))
    except ValueError:
        is_right = False
    if not is_right:
        raise UserError(f"{_typed(name, value)}: {what}; give {allowed.allowed}")


def _typed(name: str, value: Any) -> str:
    """Format a setting as a flag with its value."""
    values = value if isinstance(value, list | tuple) else [value]
    return f"--{name.replace('_', '-')} {','.join(str(one).removesuffix('.0') for one in values)}"


def _wrong_schedules(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield messages about learning rates and their schedule."""
    optimization, schedule = sections["optimization"], sections["lr_scheduler"]
    kind = schedule.get("_name", schedule.get("lr_scheduler"))
    rates = optimization.get("lr", [1])
    if not any(_numbers(rates)):
        yield f"{_typed('lr', rates)}: the learning rate; give one above 0, or nothing is learned"
    betas = sections["optimizer"].get("adam_betas")
    if betas is not None and len(_numbers(betas)) != 2:
        yield f"{_typed('adam_betas', betas)}: the decay rates of the two moments; give {BETAS.allowed}"
    if "phase_ratio" in schedule and len(_numbers(schedule["phase_ratio"])) != 3:
        yield f"{_typed('phase_ratio', schedule['phase_ratio'])}: give three shares: of warmup, peak and decay"
    warmup = schedule.get("warmup_updates", 0)
    if kind == "inverse_sqrt" and not warmup:
        yield "--warmup-updates 0: --lr-scheduler inverse_sqrt divides by it; give 1 or more"
    period = schedule.get("lr_period_updates", 1)
    if kind == "triangular" and period < 2:
        yield f"{_typed('lr_period_updates', period)}: updates of a period; give 2 or more"
    if kind == "cosine" and period <= 0:
        last = optimization.get("max_update", 0)
        if last <= warmup:
            yield (
                f"--max-update {last}: --lr-scheduler cosine decays from --warmup-updates {warmup} to it; give a larger "
                "one, or --lr-period-updates"
            )


def _wrong_pairs(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield messages about settings that contradict each other."""
    dataset, task, model, criterion = (sections[name] for name in ("dataset", "task", "model", "criterion"))
    if "batch_size" not in dataset and "max_tokens" not in dataset:
        yield "--batch-size and --max-tokens: neither is given; give one of them, or both"
    shard, shards = dataset.get("shard_id", 0), dataset.get("num_shards", 1)
    if shard >= shards:
        yield f"--shard-id {shard}: the part of the data to read; give 0 to {shards - 1}, or a larger --num-shards"
    pattern = sections["checkpoint"].get("keep_interval_updates_pattern", -1)
    if pattern == 0:
        yield "--keep-interval-updates-pattern 0: keep checkpoints of multiples of this many updates; give 1 or more, or -1"
    kept, random = task.get("leave_unmasked_prob", 0), task.get("random_token_prob", 0)
    if kept + random > 1:
        yield f"--leave-unmasked-prob {kept} and --random-token-prob {random}: are shares of one whole; give a sum of at most 1"
    has_mlm = criterion.get("_name") == "masked_lm" or criterion.get("mlm_weight", 0) > 0
    if has_mlm and task.get("mask_prob") == 0:
        yield "--mask-prob 0: the masked language model has nothing to predict; give a share above 0, or --mlm-weight 0"
    width, heads = model.get("encoder_embed_dim", 0), model.get("encoder_attention_heads", 1)
    if width % heads:
        yield f"--encoder-attention-heads {heads}: heads divide --encoder-embed-dim {width}; give a divisor of it"
    positions, longest = model.get("max_positions"), task.get("tokens_per_sample")
    if positions is not None and longest is not None and positions < longest:
        yield (
            f"--max-positions {positions}: the model cannot read texts of --tokens-per-sample {longest}; give "
            f"{longest} or more, or a smaller --tokens-per-sample"
        )


# Metric -> the task's setting that measures it in validation, and what its flag takes.
MEASURED = {
    "sts_spearman": ("eval_sts", "--eval-sts with a folder of STSBenchmark or a file of scored pairs"),
    "retrieval_mrr": ("eval_retrieval", "--eval-retrieval with a file of queries and their passages"),
}
HIGHER_IS_BETTER = {*MEASURED, "contrastive_accuracy"}
OF_MLM = {"mlm_loss", "ppl"}
OF_CONTRAST = {
    *("contrastive_loss", "contrastive_accuracy", "positive_cosine", "negative_cosine", "alignment", "uniformity"),
    *("negatives_per_query", "view_length_ratio"),
}


def check_metric(cfg: Any) -> None:
    """Check before training the metric that chooses the best checkpoint; fairseq only does so after a validation.

    Args:
        cfg: fairseq's configuration.

    Raises:
        UserError: this run never logs the metric, or ``--maximize-best-checkpoint-metric`` is wrong for it.
    """
    metric, criterion = cfg.checkpoint.best_checkpoint_metric, cfg.criterion
    flag = f"--best-checkpoint-metric {metric}"
    setting, source = MEASURED.get(metric, ("", ""))
    if setting and not getattr(cfg.task, setting):
        raise UserError(f"{flag}: nothing measures it; give {source}")
    if setting and cfg.dataset.disable_validation:
        raise UserError(f"{flag}: it is measured in validation; leave --disable-validation out")
    if str(criterion._name).startswith("clear_"):
        known = (
            {"loss", *MEASURED}
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
