"""Every recipe composes, and trains at the smallest size."""

import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, run

CONFIGS = sorted(ROOT.glob("examples/*/config/*.yaml"))
SMALL = (
    *("common.fp16=false", "common.cpu=true", "model._name=clear_roberta_tiny", "model.max_positions=32"),
    *("task.tokens_per_sample=32", "dataset.batch_size=4", "dataset.num_workers=0", "dataset.disable_validation=true"),
    *("optimization.max_update=2", "lr_scheduler.warmup_updates=1", "lr_scheduler.total_num_update=10"),
)


def test_there_are_recipes() -> None:
    assert {path.parent.parent.name for path in CONFIGS} >= {"clear"}


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.parent.name}/{path.stem}")
def test_recipe_trains(path: Path, data_bin: Path, tmp_path: Path) -> None:
    run(
        *(sys.executable, "-c", "from fairseq_cli.hydra_train import cli_main; cli_main()"),
        *("--config-dir", path.parent, "--config-name", path.stem, f"task.data={data_bin}"),
        *(f"++{setting}" for setting in SMALL),
        *(f"checkpoint.save_dir={tmp_path / 'run'}", f"hydra.run.dir={tmp_path / 'outputs'}"),
    )
    assert (tmp_path / "run" / "checkpoint_last.pt").exists()
