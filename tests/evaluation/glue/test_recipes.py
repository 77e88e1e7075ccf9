"""The table of hyper-parameters against fairseq's own files."""

from pathlib import Path

import fairseq
import pytest
import yaml

from fairseq_clear.evaluation.glue.glue_running import table_scores
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS, RECIPES


@pytest.mark.parametrize("name", sorted(set(GLUE_TASKS) - {"WNLI"}))
def test_clear_is_fairseqs_roberta(name):
    folder = Path(fairseq.__file__).parent / "examples" / "roberta" / "config" / "finetuning"
    if not folder.is_dir():
        pytest.skip(f"this fairseq comes without {folder}")
    theirs = yaml.safe_load((folder / f"{name.lower().replace('-', '_')}.yaml").read_text())
    ours = RECIPES["clear"][name]
    assert name in RECIPES["cert"]
    assert [ours.lr] == [float(value) for value in theirs["optimization"]["lr"]]
    assert ours.batch_size == theirs["dataset"]["batch_size"]
    assert ours.epochs == theirs["optimization"]["max_epoch"]
    assert ours.clip_norm == theirs["optimization"]["clip_norm"]
    assert ours.weight_decay == theirs["optimizer"]["weight_decay"]
    assert ours.adam_betas.replace(" ", "") == theirs["optimizer"]["adam_betas"]
    assert ours.adam_eps == float(theirs["optimizer"]["adam_eps"])
    assert ours.dropout == theirs["model"]["dropout"] == theirs["model"]["attention_dropout"]
    share = theirs["lr_scheduler"]["warmup_updates"] / theirs["optimization"]["max_update"]
    assert share == pytest.approx(0.25 if name == "QQP" else ours.warmup_share, abs=0.001)


def test_a_constant_prediction_scores_0():
    """fairseq then logs NaN, which is left out of the result."""
    result = {"task": "STS-B", "metrics": {"valid": {"loss": 1.0}}}
    assert table_scores([result], "clear", max) == {"STS-B": 0.0}
