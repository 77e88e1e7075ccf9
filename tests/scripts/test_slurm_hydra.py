"""The sweep of scripts/slurm/hydra composes with a recipe, where hydra's launcher is there."""

import pytest
from hydra import compose, initialize_config_dir

from tests.conftest import ROOT

SEARCH = f"hydra.searchpath=[file://{ROOT}/scripts/slurm/hydra]"
launcher = pytest.importorskip(
    "hydra_plugins.hydra_submitit_launcher.config", reason="pip install hydra-submitit-launcher"
)


@pytest.mark.parametrize("recipe", ["tiny", "base_256gpu"])
def test_the_sweep_composes(recipe: str) -> None:
    with initialize_config_dir(config_dir=str(ROOT / "examples/clear/config"), version_base="1.1"):
        changes = [SEARCH, "+slurm=submitit", "task.data=/data", "hydra.launcher.partition=gpu"]
        found = compose(recipe, overrides=changes, return_hydra_config=True)
        alone = compose(recipe, overrides=["task.data=/data"], return_hydra_config=True)
    assert found.hydra.runtime.choices["hydra/launcher"] == "submitit_slurm"
    assert alone.hydra.runtime.choices["hydra/launcher"] == "basic"
    chosen = found.hydra.launcher
    assert (chosen._target_, chosen.partition, chosen.signal_delay_s) == (launcher.SlurmQueueConf._target_, "gpu", 120)
    assert found.criterion == alone.criterion and found.optimization == alone.optimization
