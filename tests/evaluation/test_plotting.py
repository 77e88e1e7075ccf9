"""Bars are the reports' numbers."""

import json

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.plotting import draw_compare, read_bars
from fairseq_clear.evaluation.reports import Report, Row

ROWS = [Row("a", {"STS-B": 80.0, "RTE": 60.0}, deviations={"RTE": 2.0}), Row("b", {"STS-B": 70.0})]


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "one.json"
    Report("sts", {}, {}, ["STS-B", "RTE"], ROWS).write(path)
    return path


def bars_of(figure):
    return [
        [bar.get_width() for bar in container]
        for container in figure.axes[0].containers
        if hasattr(container, "patches")
    ]


def test_bars_are_the_scores(report):
    figure = draw_compare(read_bars([report]))
    assert bars_of(figure) == [[80.0, 60.0], [70.0]]
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["STS-B", "RTE"]
    assert axis.get_xlim()[0] <= 0
    drawn = next(container for container in axis.containers if hasattr(container, "errorbar"))
    spread = drawn.errorbar.lines[2][0].get_segments()[1]
    assert spread[:, 0].tolist() == [58.0, 62.0]
    assert bars_of(draw_compare(read_bars([report]), ["RTE"])) == [[60.0], []]


def test_rows_of_one_name_are_told_apart_by_their_file(report, tmp_path):
    other = tmp_path / "two.json"
    other.write_text(report.read_text())
    assert [bar.label for bar in read_bars([report, other])] == ["one: a", "one: b", "two: a", "two: b"]


def test_mistakes(report, tmp_path):
    with pytest.raises(UserError, match="--columns MR: no report has it; there are STS-B, RTE"):
        draw_compare(read_bars([report]), ["MR"])
    with pytest.raises(UserError, match="10 rows are too many"):
        draw_compare(read_bars([report] * 5))
    for content in ("{", "[]", json.dumps({"format": 1, "rows": []}), json.dumps({"rows": [1]})):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(UserError, match=r"bad.json: is not a report of fairseq-clear"):
            read_bars([tmp_path / "bad.json"])
    with pytest.raises(UserError, match="cannot read it"):
        read_bars([tmp_path / "absent.json"])
