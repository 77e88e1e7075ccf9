"""The valid range of every numeric setting of a run, checked before anything is written."""

import difflib
import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fairseq_clear.errors import UserError
from fairseq_clear.patches.compatibility import evaluate_literal
from fairseq_clear.views.view_table import find_view_source

# Range in words -> whether a finite number is in it -> names of settings (flags with _ for -) in any section of fairseq's
# configuration. If a setting is a list, each number must be in the range. None means "not given" and is always allowed.
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "a whole number, 1 or more": (
        lambda number: isinstance(number, int) and number >= 1,
        "log_interval fp16_init_scale fp16_scale_window amp_init_scale amp_scale_window all_gather_list_size "
        "model_parallel_size distributed_world_size distributed_num_procs bucket_cap_mb localsgd_frequency "
        "nprocs_per_node max_tokens batch_size max_tokens_valid batch_size_valid required_batch_size_multiple "
        "required_seq_len_multiple validate_interval num_shards update_freq save_interval checkpoint_shard_count "
        "ema_update_freq mask_multiple_length mlm_copies queue_size lr_deacy_period encoder_layers encoder_embed_dim "
        "encoder_ffn_embed_dim encoder_attention_heads max_positions quant_noise_pq_block_size segments",
    ),
    "a whole number from 0 to 4294967295": (
        lambda number: isinstance(number, int) and 0 <= number <= 2**32 - 1,
        "seed fixed_validation_seed",
    ),
    "a number from 0 to 1": (
        lambda number: 0 <= number <= 1,
        "fp16_scale_tolerance ema_decay leave_unmasked_prob random_token_prob phase_ratio quant_noise_pq "
        "quant_noise_scalar key_momentum",
    ),
    "0 or more": (
        lambda number: number >= 0,
        "min_loss_scale stop_time_hours clip_norm lr mask_stdev contrastive_weight mlm_weight regularizer_weight "
        "weight_decay end_learning_rate power min_lr lr_threshold init_lr_scale mha_reg_scale_factor ffn_reg_scale_factor",
    ),
    "a number above 0": (
        lambda number: number > 0,
        "threshold_loss_scale temperature adam_eps total_num_update max_lr t_mult lr_shrink final_lr_scale layer_norm_eps",
    ),
    "a whole number, 0 or more": (
        lambda number: isinstance(number, int) and number >= 0,
        "amp_batch_retries empty_cache_freq distributed_rank device_id pipeline_chunks num_workers data_buffer_size "
        "validate_interval_updates validate_after_updates max_valid_steps curriculum shard_id max_epoch max_update "
        "save_interval_updates ema_start_update frozen_layers warmup_updates force_anneal lr_patience warmup_steps "
        "hold_steps decay_steps min_params_to_wrap projection_layers projection_hidden_dim projection_dim "
        "encode_chunk_size",
    ),
    "a port from 1 to 65535, or -1 for none": (
        lambda number: isinstance(number, int) and -1 <= number <= 65535,
        "distributed_port",
    ),
    "a whole number of seconds, or -1 for none": (
        lambda number: isinstance(number, int) and number >= -1,
        "heartbeat_timeout",
    ),
    "0 or more and below 1": (
        lambda number: 0 <= number < 1,
        "slowmo_momentum mask_prob momentum dropout attention_dropout activation_dropout pooler_dropout encoder_layerdrop",
    ),
    "a finite number": (lambda number: True, "stop_min_lr warmup_init_lr"),
    "a whole number, 0 or more, or -1 for none": (
        lambda number: isinstance(number, int) and number >= -1,
        "keep_interval_updates keep_interval_updates_pattern keep_last_epochs keep_best_checkpoints patience "
        "mha_heads_to_keep ffn_blocks_to_remove",
    ),
    "a whole number, 3 or more": (lambda number: isinstance(number, int) and number >= 3, "tokens_per_sample"),
    "two numbers, 0 or more and below 1, as in '(0.9, 0.98)'": (lambda number: 0 <= number < 1, "adam_betas"),
    "a number above 0, or -1 for all after the warmup": (lambda number: number >= -1, "lr_period_updates"),
    "a number above 0, 1 at most": (lambda number: 0 < number <= 1, "lr_decay"),
    "an even number, or 0 for full attention": (
        lambda number: isinstance(number, int) and number >= 0 and number % 2 == 0,
        "attention_window",
    ),
}
NUMBERS = {name: words for words, (_, names) in RANGES.items() for name in names.split()}
# Sections of fairseq's configuration that are checked; the others do not concern training.
SECTIONS = (
    *("common", "distributed_training", "dataset", "optimization", "checkpoint", "ema"),
    *("task", "criterion", "optimizer", "lr_scheduler", "model"),
)


def check_numbers(cfg: DictConfig) -> None:
    """Check the range of every number of a run, and numbers that must be consistent.

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
    # a value that starts with ? or $ is missing, or interpolated from another section
    return {name: v for name, v in section.items() if v is not None and not str(v).startswith(("???", "${"))}


def _numbers(value: Any) -> list[float]:
    """Return the one or several numbers of a setting; ValueError for anything else."""
    if isinstance(value, str) and value.strip().startswith(("(", "[")):
        value = evaluate_literal(value)  # adam's betas
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values or not all(isinstance(number, int | float) for number in values):
        raise ValueError
    return values


def _check(name: str, value: Any) -> None:
    is_in_range, _ = RANGES[NUMBERS[name]]
    try:
        is_right = all(math.isfinite(number) and is_in_range(number) for number in _numbers(value))
    except ValueError:
        is_right = False
    if not is_right:
        raise UserError(f"{_typed(name, value)}: out of range; give {NUMBERS[name]}")


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
        yield f"{_typed('adam_betas', betas)}: not the decay rates of the two moments; give {NUMBERS['adam_betas']}"
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
    has_contrast = criterion.get("_name") != "masked_lm" and criterion.get("contrastive_weight", 1) > 0
    if task.get("hard_negatives") and not has_contrast:
        yield "--hard-negatives: there is no contrastive term to use them; leave it out, or give --contrastive-weight 1"
    if str(task.get("augment_texts")) == "positives" and task.get("augment") == "none":
        yield "--augment-texts positives: --augment none changes no text; leave it out, or give --augment mask-span"
    views, setting = str(task.get("views", "same")), "same_document_negatives"
    if str(task.get(setting)) == "exclude" and setting not in find_view_source(views)[0].settings:
        yield f"--same-document-negatives exclude: has no effect with --views {views}; leave it out, or give --views span"
    if task.get("mlm_copies", 1) > 1 and criterion.get("anchor_mlm") == "joint":
        yield "--mlm-copies: --anchor-mlm joint masks the anchors once; leave it out, or give --anchor-mlm separate"
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
HIGHER_IS_BETTER = {*MEASURED, "contrastive_accuracy", "positive_cosine"}
OF_MLM = {"mlm_loss", "ppl"}
OF_CONTRAST = {
    *("contrastive_loss", "contrastive_accuracy", "positive_cosine", "negative_cosine", "alignment", "uniformity"),
    *("negatives_per_query", "view_length_ratio"),
}


def check_metric(cfg: Any) -> None:
    """Check before training the metric that chooses the best checkpoint; fairseq only does so after a validation.

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
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UserError(f"{flag}: this run does not log it{hint}; it logs {', '.join(sorted(known))}")
    if (metric in HIGHER_IS_BETTER) != cfg.checkpoint.maximize_best_checkpoint_metric:
        what = "higher is better; add" if metric in HIGHER_IS_BETTER else "lower is better; leave out"
        raise UserError(f"{flag}: {what} --maximize-best-checkpoint-metric")
