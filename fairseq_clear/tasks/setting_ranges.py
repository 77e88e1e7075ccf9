"""The valid ranges of the plugin's settings, and of some of fairseq, checked before anything is written."""

import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fairseq_clear.errors import UserError
from fairseq_clear.views.view_table import find_view_source

# Range in words -> whether a number is in it -> names of settings: the plugin's, and those of fairseq that fail late or
# train nothing. If a setting is a list, each number must be in the range. None means "not given" and is always allowed.
Ranges = dict[str, tuple[Callable[[float], bool], str]]
WHOLE: Ranges = {
    "a whole number, 1 or more": (
        lambda n: n >= 1,
        "batch_size max_tokens update_freq mlm_copies queue_size segments log_interval save_interval validate_interval",
    ),
    # fairseq adds the epoch to it; numpy takes seeds below 2**32
    "a whole number from 0 to 2147483647": (lambda n: 0 <= n < 2**31, "seed"),
    "a whole number, 0 or more": (
        lambda n: n >= 0,
        "frozen_layers projection_layers projection_hidden_dim projection_dim encode_chunk_size",
    ),
    "a whole number, 3 or more": (lambda n: n >= 3, "tokens_per_sample"),
    "an even number, or 0 for full attention": (lambda n: n >= 0 and n % 2 == 0, "attention_window"),
}
REAL: Ranges = {
    "0 or more": (lambda n: n >= 0, "lr contrastive_weight mlm_weight regularizer_weight"),
    "a number above 0": (lambda n: n > 0, "temperature layer_norm_eps"),
    "a number from 0 to 1": (
        lambda n: 0 <= n <= 1,
        "key_momentum random_token_prob leave_unmasked_prob "
        "dropout attention_dropout activation_dropout encoder_layerdrop",
    ),
}
NUMBERS = {name: words for words, (_, names) in (WHOLE | REAL).items() for name in names.split()}
SECTIONS = ("common", "dataset", "optimization", "checkpoint", "task", "criterion", "model", "optimizer")
STOCK_CRITERIONS = ("masked_lm", "cross_entropy", "label_smoothed_cross_entropy")  # of fairseq, on masked texts
# Flags of masked_lm that clear_lm does not read
UNREAD = ("include_target_tokens", "skip_masking", "d2v2_multi")


def check_numbers(cfg: DictConfig) -> None:
    """Check the range of every number of a run, and settings that must be consistent; UserError for a wrong one."""
    sections = {name: dict(_settings(cfg.get(name))) for name in SECTIONS}
    for settings in sections.values():
        for name in NUMBERS.keys() & settings.keys():
            _check(name, settings[name])
    if found := [*_contradictions_of_training(sections), *_contradictions_of_texts(sections)]:
        raise UserError(found[0])


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


def _check(name: str, value: Any) -> None:
    words, numbers = NUMBERS[name], _listed(value)
    is_in_range, _ = (WHOLE | REAL)[words]
    kinds = int if words in WHOLE else int | float
    if not numbers or not all(isinstance(n, kinds) and math.isfinite(n) and is_in_range(n) for n in numbers):
        raise UserError(f"{_typed(name, value)}: out of range; give {words}")


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _typed(name: str, value: Any) -> str:
    """Format a setting as a flag with its value."""
    return f"--{name.replace('_', '-')} {','.join(str(one).removesuffix('.0') for one in _listed(value))}"


def _contradictions_of_training(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield messages about settings of training, validation and model that contradict each other, or have no effect."""
    dataset, task, model, criterion = (sections[name] for name in ("dataset", "task", "model", "criterion"))
    rates = sections["optimization"].get("lr", [1])
    if not any(_listed(rates)):
        yield f"{_typed('lr', rates)}: the learning rate; give one above 0, or nothing is learned"
    if "batch_size" not in dataset and "max_tokens" not in dataset:
        yield "--batch-size and --max-tokens: neither is given; give one of them, or both"
    if dataset.get("num_shards", 1) > 1 or dataset.get("shard_id"):
        yield "--num-shards and --shard-id: have no effect in training; leave them out"
    split = dataset.get("train_subset")
    if split in str(dataset.get("valid_subset")).split(",") and not dataset.get("disable_validation"):
        yield f"--valid-subset {split}: is trained on, and a validation would end its epoch; give another split"
    if sections["optimization"].get("sentence_avg") and str(criterion.get("_name")).startswith("clear_"):
        yield "--sentence-avg: has no effect with --criterion clear_*; leave it out"
    common, optimizer = sections["common"], sections["optimizer"]
    is_flat = common.get("fp16") and not common.get("fp16_no_flatten_grads")
    saves_memory = common.get("memory_efficient_fp16") or common.get("memory_efficient_bf16")
    if optimizer.get("_name") == "clear_adamw" and saves_memory:
        yield "--optimizer clear_adamw: does not work with --memory-efficient-*; leave that out, or give --optimizer adam"
    if optimizer.get("_name") == "clear_adamw" and is_flat and not optimizer.get("decay_vectors"):
        yield "--optimizer clear_adamw: with --fp16 it needs --fp16-no-flatten-grads or --decay-vectors; add one of them"
    measured = [name for name, _ in MEASURED.values() if task.get(name)]
    if dataset.get("disable_validation") and measured:
        yield f"--{measured[0].replace('_', '-')}: is measured in validation; leave --disable-validation out"
    if dataset.get("disable_validation") and sections["checkpoint"].get("patience", -1) > 0:
        yield f"--patience {sections['checkpoint']['patience']}: counts validations; leave --disable-validation out"
    if model.get("encode_chunk_size") and criterion.get("_name") in STOCK_CRITERIONS:
        ours = "--criterion clear_nt_xent --contrastive-weight 0"
        yield f"--encode-chunk-size: has no effect with --criterion {criterion['_name']}; give {ours}"
    if model.get("encoder_layerdrop") and criterion.get("guide_dropout"):
        yield "--guide-dropout: --encoder-layerdrop would drop layers of the guide; leave one of the two out"
    positions, longest = model.get("max_positions"), task.get("tokens_per_sample")
    if positions is not None and longest is not None and positions < longest:
        yield f"--max-positions {positions}: is less than --tokens-per-sample {longest}; give {longest} or more"


def _contradictions_of_texts(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield messages about settings of texts, views and masks that contradict each other, or have no effect."""
    dataset, task, criterion = (sections[name] for name in ("dataset", "task", "criterion"))
    has_contrast = criterion.get("_name") not in STOCK_CRITERIONS and criterion.get("contrastive_weight", 1) > 0
    if task.get("hard_negatives") and not has_contrast:
        yield "--hard-negatives: has no effect without a contrastive term; leave it out, or give --contrastive-weight 1"
    negatives = str(task.get("hard_negatives") or "").split(",")
    if len(set(negatives)) < len(negatives):
        yield f"{_typed('hard_negatives', task['hard_negatives'])}: names a text twice; give different texts"
    if str(task.get("augment_texts")) == "positives" and task.get("augment") == "none":
        yield "--augment-texts positives: has no effect with --augment none; leave one of them out"
    views = str(task.get("views", "same"))
    kind = find_view_source(views)[0]
    for setting, default in (("same_document_negatives", "include"), ("short_documents", "clip")):
        if str(task.get(setting, default)) != default and setting not in kind.settings:
            yield f"{_typed(setting, task[setting])}: has no effect with --views {views}; give --views span"
    if str(task.get("document_boundary", "blank")) != "blank" and not kind.needs_documents:
        yield f"{_typed('document_boundary', task['document_boundary'])}: has no effect with --views {views}; leave it out"
    reads_lines = kind.needs_documents or str(task.get("sample_break_mode")) == "eos"
    if str(task.get("shorten_method", "none")) != "none" and reads_lines:
        yield f"{_typed('shorten_method', task['shorten_method'])}: has no effect, as long lines are split; leave it out"
    for setting in UNREAD:
        if task.get(setting) and task.get("_name") == "clear_lm":
            yield f"--{setting.replace('_', '-')}: has no effect with --task clear_lm; leave it out"
    masked = task.get("mask_prob", 0.15)
    if not 0 < masked < 1 and criterion.get("mlm_weight", 1) > 0:
        yield f"{_typed('mask_prob', masked)}: out of range; give a number above 0 and below 1"
    if task.get("random_token_prob", 0) + task.get("leave_unmasked_prob", 0) > 1:
        yield "--random-token-prob and --leave-unmasked-prob: their sum is above 1; give smaller ones"
    if task.get("mlm_copies", 1) > 1 and (criterion.get("anchor_mlm") == "joint" or not criterion.get("mlm_weight", 1)):
        yield "--mlm-copies: has no effect with --anchor-mlm joint or --mlm-weight 0; leave one of them out"
    if task.get("prompts") and not has_contrast and not kind.needs_documents:
        yield "--prompts: has no effect without a contrastive term; leave it out"
    if dataset.get("combine_valid_subsets") and (kind.values or task.get("hard_negatives")):
        yield "--combine-valid-subsets: joins no aligned texts, which the views or --hard-negatives need; leave it out"


# Metric -> the task's setting that measures it in validation, and what its flag takes.
MEASURED = {
    "sts_spearman": ("eval_sts", "--eval-sts with a folder of STSBenchmark or a file of scored pairs"),
    "retrieval_mrr": ("eval_retrieval", "--eval-retrieval with a file of queries and their passages"),
}
HIGHER_IS_BETTER = {*MEASURED, "contrastive_accuracy", "positive_cosine"}
OF_MLM = {"mlm_loss", "ppl"}
BELOW_0 = {"uniformity", "negative_cosine"}
OF_CONTRAST = {
    *("contrastive_loss", "contrastive_accuracy", "positive_cosine", "negative_cosine", "alignment", "uniformity"),
    *("negatives_per_query", "view_length_ratio", "substituted_share", "false_negative_share"),
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
        known = {"loss", *MEASURED, *(OF_MLM if criterion.mlm_weight else ())}
        known |= OF_CONTRAST if criterion.contrastive_weight else set()
        known -= {"false_negative_share"} if criterion.get("false_negatives", "none") == "none" else set()
        known |= {"squared_distance"} if criterion.regularizer_weight else set()
        if metric not in known:
            raise UserError(f"{flag}: this run does not log it; it logs {', '.join(sorted(known))}")
    if criterion._name in STOCK_CRITERIONS and metric in {"mlm_loss", *OF_CONTRAST}:
        raise UserError(f"{flag}: --criterion {criterion._name} does not log it; give loss or ppl")
    if cfg.checkpoint.keep_best_checkpoints > 0 and metric in BELOW_0:
        raise UserError(f"{flag}: fairseq cannot order scores below 0; leave --keep-best-checkpoints out")
    is_known = metric in {"loss", *MEASURED, *OF_MLM, *OF_CONTRAST}  # another is of a user's own criterion
    if is_known and (metric in HIGHER_IS_BETTER) != cfg.checkpoint.maximize_best_checkpoint_metric:
        what = "higher is better; add" if metric in HIGHER_IS_BETTER else "lower is better; leave out"
        raise UserError(f"{flag}: {what} --maximize-best-checkpoint-metric")
