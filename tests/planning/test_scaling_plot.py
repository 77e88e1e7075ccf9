"""The picture of a plan over numbers of GPUs."""

from types import SimpleNamespace

import pytest

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from fairseq_clear.planning.report import draw_scaling


def test_the_lines_are_the_points():
    points = [
        SimpleNamespace(gpus=1, compute_seconds=8.0, communication_seconds=0.0, efficiency=0.75),
        SimpleNamespace(gpus=2, compute_seconds=4.0, communication_seconds=0.5, efficiency=3 / 4.5),
        SimpleNamespace(gpus=4, compute_seconds=2.0, communication_seconds=0.5, efficiency=1.5 / 2.5),
    ]
    seconds, efficiency = draw_scaling(points, "planned").axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in seconds.lines}
    assert lines["computing"] == [[1, 8], [2, 4], [4, 2]]
    assert lines["sending"] == [[2, 0.5], [4, 0.5]]
    assert lines["sum"] == [[1, 8], [2, 4.5], [4, 2.5]]
    assert efficiency.lines[0].get_ydata().tolist() == [0.75, 3 / 4.5, 1.5 / 2.5]
    assert seconds.get_title() == "planned" and efficiency.get_xlabel() == "GPUs"
    said = efficiency.get_title().replace("\n", " ")
    assert said == "efficiency = computing without recomputation / (computing + sending)"
    assert [label.get_text() for label in efficiency.get_xticklabels()] == ["1", "2", "4"]
