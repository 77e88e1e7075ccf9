"""How an update's time changes with the number of GPUs."""

from dataclasses import replace

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.planning.machine import Machine, make_plan
from fairseq_clear.planning.scaling import GPUS, make_curve
from tests.planning.test_machine import RECIPE

V100 = Machine(workers=1)


def test_a_point_is_the_plan_for_its_gpus() -> None:
    points = make_curve(RECIPE, V100, 8192)
    assert [point.gpus for point in points] == list(GPUS)
    for point in points:
        plan = make_plan(RECIPE, replace(V100, workers=point.gpus), 8192)
        assert (point.texts, point.update_freq, point.chunk) == (plan.texts, plan.update_freq, plan.chunk)
        assert (point.compute_seconds, point.communication_seconds) == (
            plan.compute_seconds,
            plan.communication_seconds,
        )
        assert point.texts * point.update_freq * point.gpus == 8192
    alone, paper, many = points[0], points[8], points[-1]
    assert alone.communication_seconds == 0 and alone.chunk and alone.efficiency < 0.8  # computes twice what it reads
    assert paper.chunk == 0
    total = paper.compute_seconds + paper.communication_seconds
    assert paper.efficiency == pytest.approx(paper.compute_seconds / total)
    assert paper.texts_per_second == pytest.approx(8192 / total)
    assert many.efficiency < 0.5 * paper.efficiency


def test_a_share_for_each_gpu_lets_the_batch_grow() -> None:
    points = make_curve(RECIPE, V100, 32, per_gpu=True, gpus=(1, 256, 4096))
    assert [point.texts for point in points] == [32, 32, 32]
    assert points[0].efficiency == 1.0 and points[1].efficiency > points[2].efficiency > 0.8
    # each GPU's queries meet the keys of all, and receives them
    assert points[2].compute_seconds > points[1].compute_seconds and points[2].sent > points[1].sent


def test_numbers_that_do_not_divide_the_batch_are_left_out() -> None:
    assert [point.gpus for point in make_curve(RECIPE, V100, 24, gpus=(1, 2, 8, 16, 32))] == [1, 2, 8]
    with pytest.raises(UserError, match="--global-batch 3: cannot be dealt out"):
        make_curve(RECIPE, V100, 3, gpus=(2, 4))
    assert make_curve(replace(RECIPE, max_update=0), V100, 32, gpus=(1,))
