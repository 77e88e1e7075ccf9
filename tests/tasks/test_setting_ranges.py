"""Every number of the plugin has a range; bad ones are one line that names the flag; good ones pass."""

import argparse
import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf

from fairseq_clear.errors import UserError
from fairseq_clear.tasks.clear_lm import ClearLMTask
from fairseq_clear.tasks.setting_ranges import NUMBERS, check_metric, check_numbers
from tests.training import configuration

pytestmark = pytest.mark.slow

MOCO = "--criterion clear_moco "
GUIDED = "--criterion clear_self_guided "
DECAY = "--lr-scheduler polynomial_decay --total-num-update 9"

# The last flag and value are named in the message.
BAD = [
    *("--seed -1", "--seed 2147483648", "--batch-size 0", "--max-tokens 0", "--update-freq 0", "--update-freq 2,0"),
    *("--lr -0.001", "--lr 0", "--lr 0.1,-0.2", "--tokens-per-sample 2", "--mlm-copies 0", "--contrastive-weight -1"),
    *("--mlm-weight -0.1", "--regularizer-weight -1", "--frozen-layers -1", "--temperature 0", "--temperature nan"),
    *("--temperature inf", GUIDED + "--temperature -0.5", MOCO + "--queue-size 0", "--key-momentum 1.5"),
    *("--key-momentum -1", "--max-positions 31", "--projection-layers -1", "--projection-dim -1"),
    *("--projection-hidden-dim -1", "--layer-norm-eps 0", "--attention-window -2", "--attention-window 3"),
    *("--segments 0", "--encode-chunk-size -1", "--mask-prob 0", "--mask-prob 1.5", "--random-token-prob -0.1"),
    *("--leave-unmasked-prob 2", "--log-interval 0", "--save-interval 0", "--validate-interval 0", "--dropout 1.5"),
    *("--encoder-layerdrop -0.1", "--num-workers -1", "--batch-size-valid 0", "--max-valid-steps -1", "--encoder-layers 0"),
    *("--encoder-embed-dim 0", "--encoder-attention-heads 0", "--clip-norm nan"),
    *(f"--optimizer adam {flag}" for flag in ("--adam-eps nan", "--weight-decay inf")),
    *(f"--optimizer adam --adam-betas {value}" for value in ("(2,3)", "abc", "0.9")),
    *(f"{DECAY} {value}" for value in ("--end-learning-rate nan", "--power -1", "--total-num-update 0")),
]  # fmt: skip

GOOD = [
    "--encode-chunk-size 0 --max-update 0 --batch-size 1 --seed 0 --lr 0,0.1 --update-freq 1,2 --tokens-per-sample 3",
    "--seed 2147483647 --lr 1e-12 --mlm-weight 0 --projection-layers 0 --projection-dim 0 --key-momentum 0",
    "--mlm-copies 2 --attention-window 4 --segments 2 --max-positions 32 --key-momentum 1 --frozen-layers 0",
    *("", "--contrastive-weight 0", "--optimizer adam --adam-betas (0,0.98) --lr-scheduler inverse_sqrt", MOCO, GUIDED),
    *("--criterion masked_lm", "--criterion adaptive_loss"),
    *("--optimizer clear_adamw --fp16 --decay-vectors", "--views span --short-documents skip"),
]  # fmt: skip


@pytest.mark.parametrize("flags", BAD)
def test_a_number_out_of_range_is_one_line_that_names_the_flag(flags: str) -> None:
    cfg = configuration("data", *flags.split())
    flag, value = flags.split()[-2:]
    with pytest.raises(UserError, match=f"^{flag} {re.escape(value)}: .*; give "):
        check_numbers(cfg)


@pytest.mark.parametrize("flags", GOOD)
def test_a_number_in_range_passes(flags: str) -> None:
    check_numbers(configuration("data", *flags.split()))


def test_missing_batch_sizes() -> None:
    cfg = configuration("data")
    cfg.dataset.batch_size = None
    with pytest.raises(UserError, match="--batch-size and --max-tokens"):
        check_numbers(cfg)
    cfg.dataset.max_tokens = 100
    check_numbers(cfg)


def test_a_validation_set_that_no_flag_names(tmp_path: Path) -> None:
    (tmp_path / "valid1.idx").touch()
    with pytest.raises(UserError, match=r"Valid paths \['valid1'\] will be ignored.*--ignore-unused-valid-subsets"):
        ClearLMTask.check_run(configuration(tmp_path))
    ClearLMTask.check_run(configuration(tmp_path / "gone"))  # reported by setup_task


WITHOUT_EFFECT = [
    *("--skip-masking", "--include-target-tokens", "--d2v2-multi", "--short-documents skip", "--document-boundary line"),
    *("--same-document-negatives exclude", "--shorten-method truncate", "--views cloze --shorten-method random_crop"),
    *("--random-token-prob 0.6 --leave-unmasked-prob 0.5", "--optimizer clear_adamw --fp16"),
    "--encode-chunk-size 64 --criterion masked_lm",
    *("--mlm-copies 2 --mlm-weight 0", "--prompts query --contrastive-weight 0", "--mix-batches one"),
    *("--valid-subset valid,train", GUIDED + "--encoder-layerdrop 0.5 --guide-dropout"),
    *("--hard-negatives de --contrastive-weight 0", "--hard-negatives de --criterion cross_entropy"),
    "--criterion clear_nt_xent --hard-negatives de,zh,de",
    *("--augment-texts positives --augment none", "--mlm-copies 2 --anchor-mlm joint --views span"),
    "--views span --anchor-mlm joint --mask-whole-words --mask-multiple-length 2",
    *("--optimizer clear_adamw --memory-efficient-bf16", "--optimizer clear_adamw --memory-efficient-fp16"),
]  # fmt: skip


@pytest.mark.parametrize("flags", WITHOUT_EFFECT)
def test_settings_that_contradict_each_other(flags: str) -> None:
    with pytest.raises(UserError) as error:
        check_numbers(configuration("data", *flags.split()))
    assert any(str(error.value).startswith(word) for word in flags.split() if word.startswith("--"))


def test_values_of_hydra_that_argparse_would_not_let_through() -> None:
    """Models without a dataclass take any YAML."""
    for section, name, value in (
        ("model", "segments", 2.5),
        ("model", "layer_norm_eps", "a"),
        ("model", "encode_chunk_size", 1e3),
        ("model", "segments", []),
        ("optimization", "lr", [math.nan]),
    ):
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')}"):
            check_numbers(OmegaConf.create({section: {name: value}, "dataset": {"batch_size": 1}}))
    unset = {"model": {"segments": None}, "dataset": {"batch_size": 1}, "task": {"data": "???"}}
    check_numbers(OmegaConf.create(unset))


def is_number(annotation: Any) -> bool:
    return bool(re.search(r"\b(int|float|Any)\b", str(annotation))) and "Dict" not in str(annotation)


def test_every_number_of_the_plugin_has_a_range() -> None:
    kinds = [TASK_DATACLASS_REGISTRY["clear_lm"], *CRITERION_DATACLASS_REGISTRY.values()]
    ours = [kind for kind in kinds if kind.__module__.startswith("fairseq_clear.")]
    own = [base for kind in ours for base in kind.__mro__ if base.__module__.startswith("fairseq_clear.")]
    names = {name for kind in own for name in vars(kind).get("__annotations__", {})}
    found = {
        field.name
        for kind in ours
        for field in dataclasses.fields(kind)
        if field.name in names and is_number(field.type)
    }
    parsers = [argparse.ArgumentParser(), argparse.ArgumentParser()]
    for parser, model in zip(parsers, ("clear_roberta", "roberta"), strict=True):
        MODEL_REGISTRY[model].add_args(parser)
    ours_and_stock = [{action.dest for action in parser._actions if action.type in (int, float)} for parser in parsers]
    found |= ours_and_stock[0] - ours_and_stock[1]
    assert len(found) > 12
    # the last two are ours to check, as our masks replace fairseq's
    of_fairseq = set(
        "lr batch_size max_tokens update_freq seed log_interval save_interval validate_interval dropout attention_dropout "
        "activation_dropout encoder_layerdrop random_token_prob leave_unmasked_prob batch_size_valid max_valid_steps "
        "encoder_layers encoder_embed_dim encoder_ffn_embed_dim encoder_attention_heads num_workers weight_decay clip_norm "
        "adam_eps end_learning_rate power total_num_update".split()
    )
    assert found - {"max_update", "encoder_from"} == NUMBERS.keys() - of_fairseq


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("sts_spearman --maximize-best-checkpoint-metric", "sts_spearman: nothing measures it; .*--eval-sts"),
        ("retrieval_mrr --maximize-best-checkpoint-metric", "retrieval_mrr: nothing measures it; .*--eval-retr"),
        ("contrastive_los", "contrastive_los: this run does not log it; it logs .*contrastive_loss"),
        ("ppl --mlm-weight 0", "ppl: this run does not log it"),
        ("false_negative_share", "false_negative_share: this run does not log it"),
        ("squared_distance", "squared_distance: this run does not log it"),
        ("alignment --criterion masked_lm", "alignment: --criterion masked_lm does not log it; give loss or ppl"),
    ],
)
def test_metrics_that_no_validation_measures(flags: str, said: str) -> None:
    with pytest.raises(UserError, match=f"--best-checkpoint-metric {said}"):
        check_metric(configuration("data", "--best-checkpoint-metric", *flags.split()))


def test_metrics_that_some_runs_log() -> None:
    for metric in ("substituted_share", "false_negative_share", "squared_distance"):
        flags = ("--regularizer-weight", "0.1", "--false-negatives", "guide")
        check_metric(configuration("data", "--best-checkpoint-metric", metric, *flags))
    flags = ("--eval-sts", "a.tsv", "--eval-retrieval", "b.tsv", "--maximize-best-checkpoint-metric")
    for metric in ("sts_spearman", "retrieval_mrr"):
        check_metric(configuration("data", "--best-checkpoint-metric", metric, *flags))
    # that of a criterion of one's own has either direction
    cfg = configuration("data", "--best-checkpoint-metric", "recall", "--maximize-best-checkpoint-metric")
    cfg.criterion._name = "mine"
    check_metric(cfg)
    cfg.checkpoint.best_checkpoint_metric = "loss"
    with pytest.raises(UserError, match="lower is better"):
        check_metric(cfg)
