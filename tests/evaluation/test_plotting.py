"""Bars are the scores of a report's rows; both files of a picture are written, the same each time."""

import matplotlib
import pytest
from matplotlib.figure import Figure

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.plotting import draw_compare, picture_files, save_figure
from fairseq_clear.evaluation.reports import Row

ROWS = [Row("a", {"STS-B": 80.0, "RTE": 60.0}, deviations={"RTE": 2.0}), Row("b", {"STS-B": 70.0})]


def bars_of(figure: Figure) -> list[list[float]]:
    containers = figure.axes[0].containers
    return [[bar.get_width() for bar in container] for container in containers if hasattr(container, "patches")]


def test_bars_are_the_scores() -> None:
    figure = draw_compare(ROWS, ["STS-B", "RTE"])
    assert bars_of(figure) == [[80.0, 60.0], [70.0]]
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["STS-B", "RTE"]
    assert axis.get_xlim()[0] <= 0
    drawn = next(container for container in axis.containers if hasattr(container, "errorbar"))
    spread = drawn.errorbar.lines[2][0].get_segments()[1]
    assert spread[:, 0].tolist() == [58.0, 62.0]
    assert bars_of(draw_compare(ROWS, ["RTE"])) == [[60.0], []]
    with pytest.raises(UserError, match="10 rows are too many"):
        draw_compare(ROWS * 5, ["RTE"])


@pytest.mark.slow
def test_both_files_are_written_whole_and_the_same_each_time(tmp_path) -> None:
    before, contents = dict(matplotlib.rcParams), []
    for name in ("a", "b.svg", "v1.2"):
        files = save_figure(draw_compare(ROWS, ["STS-B"]), tmp_path / name)
        assert [file.suffix for file in files] == [".png", ".svg"]
        contents.append([file.read_bytes() for file in files])
    assert contents[0] == contents[1] == contents[2]
    assert contents[0][0].startswith(b"\x89PNG") and b"<svg" in contents[0][1]
    assert dict(matplotlib.rcParams) == before
    written = {f"{name}.{kind}" for name in ("a", "b", "v1.2") for kind in ("png", "svg")}
    assert {path.name for path in tmp_path.iterdir()} == written
    assert picture_files(tmp_path / "a.png", overwrite=True) == [tmp_path / "a.png", tmp_path / "a.svg"]
    for name, message in (("a", "a.png: exists already"), ("absent/a", "there is no folder")):
        with pytest.raises(UserError, match=message):
            picture_files(tmp_path / name, overwrite=False)
