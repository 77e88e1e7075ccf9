"""The tables of hyper-parameters against fairseq's own files and the paper's sentence."""

from pathlib import Path

import fairseq
import pytest
import yaml

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.glue_recipes import RECIPES, choose_recipe
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS

TRAINED = {name for name, task in GLUE_TASKS.items() if task.evaluated_as == name}


@pytest.mark.parametrize("name", sorted(TRAINED - {"WNLI"}))
def test_clear_is_fairseqs_roberta(name):
    folder = Path(fairseq.__file__).parent / "examples" / "roberta" / "config" / "finetuning"
    if not folder.is_dir():
        pytest.skip(f"this fairseq comes without {folder}")
    theirs = yaml.safe_load((folder / f"{name.lower().replace('-', '_')}.yaml").read_text())
    ours = RECIPES["clear"][name]
    assert [ours.learning_rate] == [float(value) for value in theirs["optimization"]["lr"]]
    assert ours.batch_size == theirs["dataset"]["batch_size"]
    assert ours.epochs == theirs["optimization"]["max_epoch"]
    assert ours.clip_norm == theirs["optimization"]["clip_norm"]
    assert ours.weight_decay == theirs["optimizer"]["weight_decay"]
    assert ours.adam_betas.replace(" ", "") == theirs["optimizer"]["adam_betas"]
    assert ours.adam_eps == float(theirs["optimizer"]["adam_eps"])
    assert ours.dropout == theirs["model"]["dropout"] == theirs["model"]["attention_dropout"]
    share = theirs["lr_scheduler"]["warmup_updates"] / theirs["optimization"]["max_update"]
    assert share == pytest.approx(0.25 if name == "QQP" else ours.warmup_share, abs=0.001)


def test_cert_is_its_section_5_2():
    rates = {3e-5: "CoLA MNLI STS-B", 2e-5: "RTE QNLI MRPC SST-2 WNLI", 1e-5: "QQP"}
    epochs = {20: "CoLA", 5: "RTE WNLI QQP", 3: "QNLI MNLI", 15: "MRPC", 4: "SST-2", 10: "STS-B"}
    for name, settings in RECIPES["cert"].items():
        assert name in rates[settings.learning_rate].split()
        assert name in epochs[settings.epochs].split()
        assert (settings.batch_size, settings.max_length) == (16, 128)


def test_every_recipe_has_every_task_that_is_trained():
    assert all(set(table) == TRAINED for table in RECIPES.values())


def test_updates_count_the_small_last_batch():
    settings = choose_recipe("clear", "RTE", epochs=3, batch_size=16)
    assert settings.updates(32) == 6 and settings.updates(33) == 9
    assert settings.warmup_updates(1600) == 18


def test_overrides_replace_single_values_within_their_range():
    settings = choose_recipe("cert", "RTE", epochs=1, max_length=20)
    assert (settings.epochs, settings.dropout, settings.max_length) == (1, 0.1, 20)
    assert settings.learning_rate == 2e-5
    for name, value in (("epochs", 0), ("batch_size", 0), ("warmup_share", 1.5), ("max_length", 3), ("dropout", -0.1)):
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')} {value}"):
            choose_recipe("cert", "RTE", **{name: value})
