"""examples/clear/scaling/simulate.py in short: two workers send what is planned and learn what one does; mistakes are seen."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairseq_clear.planning.costs import Recipe
from fairseq_clear.planning.recipe import compose_recipe
from tests.conftest import ROOT

FOLDER = ROOT / "examples/clear/scaling"
UPDATES = 3  # the second shows the first one's step, the third that of the second, whose gradient is wrong
WRONG_SCALE = """
import torch.distributed as dist
from fairseq.distributed import legacy_distributed_data_parallel as host
import worker

class WrongScale(host.LegacyDistributedDataParallel):
    steps = 0

    def all_reduce_grads(self):
        self.steps += 1
        if dist.get_rank() == 1 and self.steps == 2:
            for parameter in self.parameters():
                parameter.grad.mul_(1.5)
        super().all_reduce_grads()

from fairseq.models import distributed_fairseq_model
distributed_fairseq_model.LegacyDistributedDataParallel = WrongScale
worker.main()
"""


@pytest.fixture(scope="module")
def simulation() -> Any:
    spec = importlib.util.spec_from_file_location("simulate", FOLDER / "simulate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulate"] = module  # dataclasses look their module up
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


@pytest.mark.slow
def test_two_workers_send_what_is_planned_and_learn_what_one_learns(simulation: Any, tmp_path: Path) -> None:
    data = simulation.make_data(tmp_path, UPDATES * simulation.batch_size())
    vocabulary = len((data / "dict.txt").read_text().splitlines()) + 6
    recipe = Recipe(compose_recipe(str(simulation.CONFIG)), vocabulary)
    broken = tmp_path / "wrong_scale.py"
    broken.write_text(WRONG_SCALE)
    alone = simulation.simulate(1, UPDATES, data, tmp_path)
    two = simulation.simulate(2, UPDATES, data, tmp_path, worker=broken)
    assert (alone.workers, alone.texts, two.texts) == (1, 64, 32)
    assert simulation.check(alone, alone, recipe) == []
    (mistake,) = simulation.check(two, alone, recipe)  # no byte, and neither of the first losses
    assert "2 workers: the loss of update 3 differs by" in mistake
    assert alone.losses["loss"][0] != pytest.approx(alone.losses["loss"][1], abs=0.01)
    wider = Recipe(compose_recipe(str(simulation.CONFIG), ["++model.projection_dim=33"]), vocabulary)
    assert len(simulation.check(two, alone, wider)) == 2 * UPDATES + 1
    found = simulation.rows([alone, two], recipe)
    assert found["1"]["differs by, 1e-6"] == [] and found["2"]["planned, B"] == found["2"]["sent around a ring, B"]
    assert simulation.table(found).count("\n") == 3


def test_a_failing_worker_ends_the_others(simulation: Any, tmp_path: Path) -> None:
    waits = [sys.executable, "-c", "import time; time.sleep(600)"]
    fails = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    with pytest.raises(SystemExit, match="no such thing"):
        simulation.run_together([waits, fails], [tmp_path / "0.log", tmp_path / "1.log"])


def test_a_loss_that_is_no_number_is_a_mistake(simulation: Any) -> None:
    recipe = Recipe(compose_recipe(str(simulation.CONFIG)), 206)
    good = simulation.Run(1, 64, {"loss": [1.0, 2.0]}, [[[], []]])
    assert simulation.check(good, good, recipe) == []
    bad = replace(good, losses={"loss": [1.0, float("nan")]})
    assert len(simulation.check(bad, good, recipe)) == 1
