"""Every number that training reads has a range; bad ones are one line that names the flag; good ones pass."""

import argparse
import dataclasses
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fairseq.criterions
import pytest
from fairseq.dataclass import configs
from fairseq.models import MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY, OPTIMIZER_REGISTRY
from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf

from fairseq_clear.errors import UserError
from fairseq_clear.tasks.setting_ranges import NUMBERS, SECTIONS, check_numbers
from tests.test_recipes import BASE, CHANGES, CONFIGS, compose
from tests.training import compose as compose_flags
from tests.training import configuration

pytestmark = pytest.mark.slow

ADAM = "--optimizer adam "
POLYNOMIAL = "--lr-scheduler polynomial_decay --total-num-update 9 "
COSINE = "--lr-scheduler cosine "
MOCO = "--criterion clear_moco "
GUIDED = "--criterion clear_self_guided "

# The last flag and value are named in the message.
BAD = [
    *("--log-interval 0", "--seed -1", "--seed 4294967296", "--fp16-init-scale 0", "--fp16-init-scale -4"),
    *("--fp16-scale-window 0", "--fp16-scale-tolerance 1.5", "--min-loss-scale -1", "--min-loss-scale nan"),
    *("--threshold-loss-scale 0", "--empty-cache-freq -1", "--amp-batch-retries -1", "--amp-init-scale 0"),
    *("--num-workers -1", "--batch-size 0", "--batch-size -8", "--max-tokens 0", "--max-tokens -1"),
    *("--batch-size-valid 0", "--max-tokens-valid -1", "--required-batch-size-multiple 0", "--data-buffer-size -1"),
    *("--required-seq-len-multiple 0", "--validate-interval 0", "--validate-interval-updates -1"),
    *("--validate-after-updates -1", "--max-valid-steps -1", "--fixed-validation-seed -1", "--curriculum -1"),
    *("--num-shards 0", "--shard-id -1", "--shard-id 1"),
    *("--max-epoch -1", "--max-update -1", "--stop-time-hours -1", "--stop-time-hours nan", "--clip-norm -1"),
    *("--clip-norm nan", "--clip-norm inf", "--update-freq 0", "--update-freq -1", "--update-freq 2,0", "--lr -0.001"),
    *("--lr 0", "--lr 0.1,-0.2", "--stop-min-lr nan"),
    *("--save-interval 0", "--save-interval-updates -1", "--keep-interval-updates -2", "--keep-last-epochs -2"),
    *("--keep-best-checkpoints -2", "--keep-interval-updates-pattern 0", "--patience -2", "--checkpoint-shard-count 0"),
    *("--tokens-per-sample 0", "--tokens-per-sample 2", "--tokens-per-sample -5", "--mask-prob 1.5", "--mask-prob -1"),
    *("--mask-prob 1", "--mask-prob 0", "--mask-prob nan", "--leave-unmasked-prob 1.5", "--random-token-prob -0.1"),
    *("--mask-multiple-length 0", "--mask-stdev -1", "--mlm-copies 0", "--mlm-copies -1"),
    *("--contrastive-weight nan", "--contrastive-weight -1", "--mlm-weight inf", "--mlm-weight -0.1"),
    *("--regularizer-weight nan", "--regularizer-weight -1", "--frozen-layers -1"),
    *("--temperature 0", "--temperature -1", "--temperature nan", "--temperature inf", MOCO + "--temperature 0"),
    *(GUIDED + "--temperature -0.5", MOCO + "--queue-size 0", MOCO + "--queue-size -7"),
    *("--key-momentum 1.5", "--key-momentum -1", "--key-momentum nan"),
    *("--momentum 1.5", "--momentum -0.1", "--weight-decay -1", "--weight-decay nan", ADAM + "--weight-decay -1"),
    *(ADAM + "--adam-eps 0", ADAM + "--adam-eps nan"),
    *(ADAM + "--adam-betas (0.9,1)", ADAM + "--adam-betas (-0.1,0.9)", ADAM + "--adam-betas (0.9,)"),
    *("--optimizer clear_adamw --adam-betas (0.9,2)", "--optimizer clear_adamw --adam-eps -1"),
    *("--optimizer nag --momentum 1", "--warmup-updates -5", POLYNOMIAL + "--warmup-updates -5"),
    *(POLYNOMIAL + "--total-num-update 0", POLYNOMIAL + "--total-num-update -10"),
    *(POLYNOMIAL + "--end-learning-rate -1", POLYNOMIAL + "--power -1", POLYNOMIAL + "--force-anneal -1"),
    *("--lr-scheduler inverse_sqrt --warmup-updates 0", "--lr-scheduler inverse_sqrt --warmup-init-lr nan"),
    *(COSINE + "--min-lr -1", COSINE + "--t-mult 0", COSINE + "--lr-shrink 0", COSINE + "--lr-period-updates -2"),
    *(COSINE + "--warmup-updates 7 --max-update 5", "--lr-shrink 0", "--lr-scheduler step --lr-deacy-period 0"),
    *("--lr-scheduler triangular --max-lr 1 --lr-period-updates 0", "--lr-scheduler reduce_lr_on_plateau --lr-patience -1"),
    *("--encoder-layers 0", "--encoder-layers -1", "--encoder-embed-dim 0", "--encoder-ffn-embed-dim 0"),
    *("--encoder-attention-heads 0", "--encoder-attention-heads 3", "--encoder-embed-dim 30 --encoder-attention-heads 4"),
    *("--dropout 1.5", "--dropout -0.1", "--dropout 1", "--dropout nan", "--attention-dropout 1.5"),
    *("--activation-dropout -0.1", "--pooler-dropout 2", "--encoder-layerdrop -1", "--encoder-layerdrop 1"),
    *("--max-positions 0", "--max-positions -1", "--max-positions 31", "--quant-noise-pq 2", "--quant-noise-scalar -1"),
    *("--quant-noise-pq-block-size 0", "--mha-heads-to-keep -2", "--ffn-reg-scale-factor nan"),
    *("--projection-layers -1", "--projection-dim -1", "--projection-hidden-dim -1", "--layer-norm-eps 0"),
    *("--layer-norm-eps -1", "--layer-norm-eps nan", "--attention-window -2", "--attention-window 3", "--segments 0"),
    *("--encode-chunk-size -1", "--distributed-port -2", "--ema-decay 1.5"),
]  # fmt: skip

GOOD = [
    *("", "--encode-chunk-size 0", "--max-update 0", "--max-epoch 0", "--batch-size 1", "--num-workers 0", "--seed 0"),
    *("--seed 4294967295", "--lr 0,0.1", "--lr 1e-12", "--clip-norm 0", "--update-freq 1,2", "--weight-decay 0"),
    *("--dropout 0", "--encoder-layerdrop 0.99", "--mask-prob 0 --mlm-weight 0", "--tokens-per-sample 3"),
    *("--leave-unmasked-prob 0.5 --random-token-prob 0.5", "--mlm-weight 0", "--contrastive-weight 0", "--mlm-copies 2"),
    *("--projection-layers 0", "--projection-dim 0", "--attention-window 4", "--segments 2", "--max-positions 32"),
    *("--key-momentum 0", "--key-momentum 1", "--patience 0", "--keep-interval-updates 0", "--momentum 0"),
    *("--keep-interval-updates-pattern 5", "--stop-min-lr 0.1", "--validate-interval-updates 0", "--frozen-layers 0"),
    *("--max-valid-steps 0", "--fixed-validation-seed 7", "--data-buffer-size 0", "--save-interval-updates 0"),
    *(ADAM + "--adam-betas (0,0.98)", ADAM + "--adam-betas [0.9,0.98]", "--optimizer clear_adamw"),
    *("--optimizer nag --momentum 0.9", POLYNOMIAL + "--warmup-updates 0", POLYNOMIAL + "--total-num-update 7"),
    *(COSINE + "--warmup-updates 99", COSINE + "--max-update 0 --lr-period-updates 10"),
    *("--lr-scheduler inverse_sqrt", "--lr-scheduler reduce_lr_on_plateau", "--criterion masked_lm"),
    *("--lr-scheduler triangular --max-lr 1", "--lr-scheduler step", MOCO, GUIDED),
]  # fmt: skip


@pytest.mark.parametrize("flags", BAD)
def test_a_number_out_of_range_is_one_line_that_names_the_flag(flags: str) -> None:
    cfg = configuration("data", *flags.split())
    flag, value = flags.split()[-2:]
    with pytest.raises(UserError) as error:
        check_numbers(cfg)
    message = str(error.value)
    assert message.startswith(f"{flag} {value}: ")
    assert "; give " in message and "\n" not in message


@pytest.mark.parametrize("flags", GOOD)
def test_a_number_in_range_passes(flags: str) -> None:
    check_numbers(configuration("data", *flags.split()))


@pytest.mark.parametrize("flags", [GOOD[1], *GOOD[10::7], COSINE + "--min-lr 0.1 --ddp-backend legacy_ddp --fp16"])
def test_the_tests_read_flags_as_fairseq_does(flags: str) -> None:
    expected = compose_flags("data", flags.split())
    assert {**configuration("data", *flags.split())} == {**expected}


def test_sums_and_missing_batch_sizes() -> None:
    with pytest.raises(UserError, match="--leave-unmasked-prob 0.6 and --random-token-prob 0.5"):
        check_numbers(configuration("data", "--leave-unmasked-prob", "0.6", "--random-token-prob", "0.5"))
    cfg = configuration("data")
    cfg.dataset.batch_size = None
    with pytest.raises(UserError, match="--batch-size and --max-tokens"):
        check_numbers(cfg)
    cfg.dataset.max_tokens = 100
    check_numbers(cfg)


def test_values_of_hydra_that_argparse_would_not_let_through() -> None:
    """Models without a dataclass take any YAML."""
    for model, message in (
        ({"encoder_layers": 2.5}, "--encoder-layers 2.5"),
        ({"dropout": "a"}, "--dropout a"),
        ({"encode_chunk_size": 1e3}, "--encode-chunk-size 1000"),
        ({"dropout": []}, "--dropout"),
    ):
        with pytest.raises(UserError, match=message):
            check_numbers(OmegaConf.create({"model": model, "dataset": {"batch_size": 1}}))
    for section, name, value in (
        ("optimization", "lr", [math.nan]),
        ("optimizer", "adam_eps", -1e-8),
        ("optimizer", "adam_betas", "0.9"),
        ("optimizer", "adam_betas", "(0.9, exit())"),
        ("lr_scheduler", "total_num_update", math.nan),
    ):
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')}"):
            check_numbers(OmegaConf.create({section: {name: value}, "dataset": {"batch_size": 1}}))
    unset = {"model": {"encoder_layers": None, "dropout": 0.1}, "dataset": {"batch_size": 1}, "task": {"data": "???"}}
    check_numbers(OmegaConf.create({**unset, "lr_scheduler": {"max_lr": "???"}}))


@pytest.mark.parametrize("path", [*CONFIGS, *CHANGES], ids=lambda path: str(path.relative_to(path.parents[3])))
def test_every_recipe_passes(path: Path) -> None:
    if path in CONFIGS:
        config = compose(path)
    else:
        example = path.parents[2]
        config = compose(path.parents[1] / f"{BASE[example.name]}.yaml", f"+{path.parent.name}={path.stem}")
    check_numbers(OmegaConf.create(config))


def dataclasses_of_a_run() -> Iterator[type]:
    """fairseq's sections, then all that may stand in those that choose."""
    fields = {field.name: field for field in dataclasses.fields(configs.FairseqConfig)}
    for name in SECTIONS:
        if dataclasses.is_dataclass(fields[name].type):
            yield fields[name].type
    yield TASK_DATACLASS_REGISTRY["clear_lm"]
    criterions = fairseq.criterions.CRITERION_DATACLASS_REGISTRY
    yield from (kind for name, kind in criterions.items() if name == "masked_lm" or name.startswith("clear_"))
    yield from OPTIMIZER_DATACLASS_REGISTRY.values()
    yield from LR_SCHEDULER_DATACLASS_REGISTRY.values()


def is_number(annotation: Any) -> bool:
    return bool(re.search(r"\b(int|float|Any)\b", str(annotation))) and "Dict" not in str(annotation)


def test_every_number_has_a_range() -> None:
    found = {
        field.name for kind in dataclasses_of_a_run() for field in dataclasses.fields(kind) if is_number(field.type)
    }
    for has_flags in (MODEL_REGISTRY["clear_roberta"], OPTIMIZER_REGISTRY["sgd"]):
        parser = argparse.ArgumentParser()
        has_flags.add_args(parser)
        found |= {action.dest for action in parser._actions if action.type in (int, float)}
    assert len(found) > 100
    assert found - NUMBERS.keys() == set()
    assert NUMBERS.keys() - found == set()  # no setting that is gone


def test_a_new_number_would_be_missed() -> None:
    @dataclasses.dataclass
    class Config:
        layers: int = 1
        share: float | None = None
        name: str = ""

    assert [is_number(field.type) for field in dataclasses.fields(Config)] == [True, True, False]
