"""The valid ranges of the plugin's settings, and of some of fairseq, checked before anything is written."""

import math
from argparse import Namespace
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fairseq_clear.errors import UserError
from fairseq_clear.tasks.config import ClearLMConfig
from fairseq_clear.views.view_table import find_view_source

# Range in words -> whether a number is in it -> names of settings: the plugin's, and those of fairseq that fail late or
# train nothing. If a setting is a list, each number must be in the range. None means "not given" and is always allowed.
Ranges = dict[str, tuple[Callable[[float], bool], str]]
WHOLE: Ranges = {
    "a whole number, 1 or more": (
        lambda n: n >= 1,
        "batch_size max_tokens update_freq mlm_copies queue_size segments log_interval save_interval validate_interval "
        "batch_size_valid max_valid_steps encoder_layers encoder_embed_dim encoder_ffn_embed_dim encoder_attention_heads",
    ),
    # fairseq adds the epoch to it; numpy takes seeds below 2**32
    "a whole number from 0 to 2147483647": (lambda n: 0 <= n < 2**31, "seed"),
    "a whole number, 0 or more": (
        lambda n: n >= 0,
        "frozen_layers projection_layers projection_hidden_dim projection_dim encode_chunk_size num_workers",
    ),
    "a whole number, 3 or more": (lambda n: n >= 3, "tokens_per_sample"),
    "an even number, or 0 for full attention": (lambda n: n >= 0 and n % 2 == 0, "attention_window"),
}
REAL: Ranges = {
    "0 or more": (
        lambda n: n >= 0,
        "lr contrastive_weight mlm_weight regularizer_weight weight_decay clip_norm adam_eps end_learning_rate power",
    ),
    "a number above 0": (lambda n: n > 0, "layer_norm_eps total_num_update"),
    "a number from 1e-8 to 1000": (lambda n: 1e-8 <= n <= 1e3, "temperature"),
    "a number from 0 to 1": (
        lambda n: 0 <= n <= 1,
        "key_momentum random_token_prob leave_unmasked_prob "
        "dropout attention_dropout activation_dropout encoder_layerdrop",
    ),
}
NUMBERS = {name: words for words, (_, names) in (WHOLE | REAL).items() for name in names.split()}
SECTIONS = "common dataset optimization checkpoint task criterion model optimizer lr_scheduler"
STOCK_CRITERIONS = ("masked_lm", "cross_entropy", "label_smoothed_cross_entropy")  # of fairseq, on masked texts
# Flags of masked_lm that clear_lm does not read
UNREAD = ("include_target_tokens", "skip_masking", "d2v2_multi")


def check_numbers(cfg: DictConfig) -> None:
    """Check the range of every number of a run, and settings that must be consistent; UserError for a wrong one."""
    sections = {name: dict(_settings(cfg.get(name))) for name in SECTIONS.split()}
    for settings in sections.values():
        for name, value in settings.items():  # in their order, as some take the value of one before
            if name in NUMBERS:
                _check(name, value)
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
    split = dataset.get("train_subset")
    if split in str(dataset.get("valid_subset")).split(",") and not dataset.get("disable_validation"):
        yield f"--valid-subset {split}: is trained on, and a validation would end its epoch; give another split"
    common, optimizer = sections["common"], sections["optimizer"]
    is_flat = common.get("fp16") and not common.get("fp16_no_flatten_grads")
    saves_memory = common.get("memory_efficient_fp16") or common.get("memory_efficient_bf16")
    if optimizer.get("_name") == "clear_adamw" and saves_memory:
        yield "--optimizer clear_adamw: does not work with --memory-efficient-*; leave that out, or give --optimizer adam"
    if optimizer.get("_name") == "clear_adamw" and is_flat and not optimizer.get("decay_vectors"):
        yield "--optimizer clear_adamw: with --fp16 it needs --fp16-no-flatten-grads or --decay-vectors; add one of them"
    if not _are_betas(betas := optimizer.get("adam_betas", "(0.9, 0.98)")):
        yield f"--adam-betas {betas}: out of range; give two numbers from 0 to below 1, as in '(0.9, 0.98)'"
    if model.get("encode_chunk_size") and (name := criterion.get("_name")) in STOCK_CRITERIONS:
        instead = "give --criterion clear_nt_xent --contrastive-weight 0"
        yield f"--encode-chunk-size: has no effect with --criterion {name}; leave it out, or {instead}"
    if model.get("encoder_layerdrop") and criterion.get("guide_dropout"):
        yield "--guide-dropout: --encoder-layerdrop would drop layers of the guide; leave one of the two out"
    positions, longest = model.get("max_positions"), task.get("tokens_per_sample")
    if positions is not None and longest is not None and positions < longest:
        yield f"--max-positions {positions}: is less than --tokens-per-sample {longest}; give {longest} or more"


def _are_betas(value: Any) -> bool:
    with suppress(ValueError, SyntaxError, TypeError):
        first, second = literal_eval(value) if isinstance(value, str) else value
        return 0 <= first < 1 and 0 <= second < 1
    return False


def _contradictions_of_texts(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield messages about settings of texts, views and masks that contradict each other, or have no effect."""
    task, criterion = sections["task"], sections["criterion"]
    kind, _ = find_view_source(views := str(task.get("views", "same")))
    has_contrast = criterion.get("_name") not in STOCK_CRITERIONS and criterion.get("contrastive_weight", 1) > 0
    has_copies = criterion.get("anchor_mlm") != "joint" and criterion.get("mlm_weight", 1) > 0
    reads_blocks = not kind.needs_documents and str(task.get("sample_break_mode")) != "eos"
    for name, has_effect, where in (
        ("hard_negatives", has_contrast, "without a contrastive term"),
        ("prompts", has_contrast or kind.needs_documents, "without a contrastive term"),
        ("augment_texts", task.get("augment") != "none", "with --augment none"),
        ("same_document_negatives", "same_document_negatives" in kind.settings, f"with --views {views}"),
        ("short_documents", "short_documents" in kind.settings, f"with --views {views}"),
        ("document_boundary", kind.needs_documents, f"with --views {views}"),
        ("shorten_method", reads_blocks, "on lines, of which long ones are split"),
        ("mix_batches", task.get("mix"), "without --mix"),
        ("mlm_copies", has_copies, "with --anchor-mlm joint or --mlm-weight 0"),
        *((name, False, "with --task clear_lm") for name in UNREAD),
    ):
        default = ClearLMConfig.__dataclass_fields__[name].default
        if not has_effect and str(value := task.get(name, default)) != str(default):
            yield f"{_typed(name, value)}: has no effect {where}; leave it out"
    if (names := task.get("hard_negatives")) and len(set(names.split(","))) <= names.count(","):
        yield f"{_typed('hard_negatives', names)}: names a data set twice, so it would count twice; give it once"
    masked = task.get("mask_prob", 0.15)
    if not 0 < masked < 1 and criterion.get("mlm_weight", 1) > 0:
        yield f"{_typed('mask_prob', masked)}: out of range; give a number above 0 and below 1"
    spans = task.get("mask_multiple_length", 1) > 1 or task.get("mask_stdev", 0) > 0
    if spans and task.get("mask_whole_words") and criterion.get("anchor_mlm") == "joint":
        yield "--mask-whole-words: masks no spans with --anchor-mlm joint; leave out --mask-multiple-length and --mask-stdev"
    if task.get("random_token_prob", 0) + task.get("leave_unmasked_prob", 0) > 1:
        yield "--random-token-prob and --leave-unmasked-prob: their sum is above 1; give smaller ones"


# Metric -> the task's setting that measures it in validation, and what its flag takes.
MEASURED = {
    "sts_spearman": ("eval_sts", "--eval-sts with a folder of STSBenchmark or a file of scored pairs"),
    "retrieval_mrr": ("eval_retrieval", "--eval-retrieval with a file of queries and their passages"),
}
HIGHER_IS_BETTER = {*MEASURED, "contrastive_accuracy", "positive_cosine"}
OF_MLM = {"mlm_loss", "ppl"}
OF_CONTRAST = {
    *("contrastive_loss", "contrastive_accuracy", "positive_cosine", "negative_cosine", "alignment", "uniformity"),
    *("negatives_per_query", "view_length_ratio", "substituted_share", "false_negative_share", "squared_distance"),
}


def check_metric(cfg: Any) -> None:
    """Check, before training, the metric that chooses the best checkpoint, and its direction; UserError if one is wrong."""
    metric, criterion = cfg.checkpoint.best_checkpoint_metric, cfg.criterion
    flag = f"--best-checkpoint-metric {metric}"
    setting, source = MEASURED.get(metric, ("", ""))
    if setting and (not getattr(cfg.task, setting) or cfg.dataset.disable_validation):
        raise UserError(f"{flag}: nothing measures it; give {source}, without --disable-validation")
    if str(criterion._name).startswith("clear_"):
        known = {"loss", *MEASURED, *(OF_MLM if criterion.mlm_weight else ())}
        known |= OF_CONTRAST if criterion.contrastive_weight else set()
        known -= {"false_negative_share"} if criterion.get("false_negatives", "none") == "none" else set()
        known -= set() if criterion.regularizer_weight else {"squared_distance"}
        if metric not in known:
            raise UserError(f"{flag}: this run does not log it; it logs {', '.join(sorted(known))}")
    if criterion._name in STOCK_CRITERIONS and metric in {"mlm_loss", *OF_CONTRAST}:
        raise UserError(f"{flag}: --criterion {criterion._name} does not log it; give loss or ppl")
    is_known = metric in {"loss", *MEASURED, *OF_MLM, *OF_CONTRAST}  # another is of a user's own criterion
    if is_known and (metric in HIGHER_IS_BETTER) != cfg.checkpoint.maximize_best_checkpoint_metric:
        what = "higher is better; add" if metric in HIGHER_IS_BETTER else "lower is better; leave out"
        raise UserError(f"{flag}: {what} --maximize-best-checkpoint-metric")
