"""examples/clear/scaling/simulate.py in short: two workers send what is planned and learn what one does; mistakes are seen."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairseq_clear.planning.composing import compose_recipe
from fairseq_clear.planning.reading import read_recipe
from tests.conftest import ROOT

FOLDER = ROOT / "examples/clear/scaling"
UPDATES = 2  # the second shows the first one's step
WRONG_SCALE = """
import torch.distributed as dist
from fairseq.distributed import legacy_distributed_data_parallel as host
import worker

class WrongScale(host.LegacyDistributedDataParallel):
    def all_reduce_grads(self):
        if dist.get_rank() == 1:
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
    recipe = read_recipe(compose_recipe(str(simulation.CONFIG)), vocabulary)
    alone, two = (simulation.simulate(workers, UPDATES, data, tmp_path) for workers in (1, 2))
    assert (alone.workers, alone.texts, two.texts) == (1, 64, 32)
    assert alone.losses["loss"][0] != alone.losses["loss"][1]
    assert simulation.check(alone, alone, recipe) == simulation.check(two, alone, recipe) == []
    wider = replace(recipe, encoder=replace(recipe.encoder, projection=(64, 64, 33)))
    assert len(simulation.check(two, alone, wider)) == 2 * UPDATES
    broken = tmp_path / "wrong_scale.py"
    broken.write_text(WRONG_SCALE)
    scaled = simulation.simulate(2, UPDATES, data, tmp_path, worker=broken)
    (mistake,) = simulation.check(scaled, alone, recipe)
    assert "2 workers: the loss of update 2 differs by" in mistake
    assert simulation.difference(scaled, alone)[0] <= simulation.TOLERANCE
    assert simulation.table([alone, two], recipe).count("\n") == 3


def test_a_failing_worker_ends_the_others(simulation: Any, tmp_path: Path) -> None:
    waits = [sys.executable, "-c", "import time; time.sleep(600)"]
    fails = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    with pytest.raises(SystemExit, match="no such thing"):
        simulation.run_together([waits, fails], [tmp_path / "0.log", tmp_path / "1.log"])


def test_a_loss_that_is_no_number_is_a_mistake(simulation: Any) -> None:
    recipe = read_recipe(compose_recipe(str(simulation.CONFIG)), 206)
    good = simulation.Run(1, 64, {"loss": [1.0, 2.0]}, [[[], []]])
    assert simulation.check(good, good, recipe) == []
    bad = replace(good, losses={"loss": [1.0, float("nan")]})
    assert len(simulation.check(bad, good, recipe)) == 1
