"""Logs are read as fairseq writes them, and what was logged is what is drawn."""

import json

import matplotlib
import numpy as np
import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.plots.curves import draw_curves
from fairseq_clear.evaluation.plots.logs import read_log
from fairseq_clear.evaluation.plots.style import check_picture_path, save_figure


def record(part, updates, prefix=None, **values):
    named = {f"{prefix}_{key}" if prefix else key: str(value) for key, value in values.items()}
    number = f"{prefix}_num_updates" if prefix else "num_updates"
    return f"2026-01-01 00:00:00 | INFO | {part} | " + json.dumps({"epoch": 1, **named, number: str(updates)})


LINES = [
    "2026-01-01 00:00:00 | INFO | fairseq_cli.train | {'common': {'no_progress_bar': False}}",
    record("train_inner", 10, mlm_loss=9, contrastive_loss=5, alignment=0.2, uniformity=-1, ppl="inf"),
    record("train_inner", 20, mlm_loss=8, contrastive_loss=4, alignment=0.3, uniformity=-2),
    record("valid", 20, "valid", mlm_loss=8.5, contrastive_loss=4.5, best_loss="nan"),
    record("train", 20, "train", mlm_loss=8.2, contrastive_loss=4.2, accuracy=50),
    record("train_inner", 20, loss=11.5, mlm_loss=7.5, contrastive_loss=4, alignment=0.35, uniformity=-2),
]


def write(tmp_path, lines, name="train.log", folder="run"):
    path = tmp_path / folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines))
    return path


def lines_of(figure):
    """Axis label -> (x, y) of each line."""
    return {
        axis.get_ylabel(): [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axis.lines]
        for axis in figure.axes
    }


def test_what_was_logged_is_drawn(tmp_path):
    log = read_log(write(tmp_path, LINES))
    assert log.name == "run" and log.validations == ["valid"]
    drawn = lines_of(draw_curves([log]))
    # the update that was logged again after resuming counts once, as it was logged last
    assert drawn["MLM loss (bits/token)"] == [([10, 20], [9, 7.5]), ([20], [8.5])]
    assert drawn["contrastive loss (bits)"] == [([10, 20], [5, 4]), ([20], [4.5])]
    assert drawn["accuracy (%)"] == [([20], [50])]
    assert drawn["uniformity (lower is better)"][0] == ([0.2, 0.35], [-1, -2])
    assert "loss (bits)" not in drawn


def test_runs_without_parts_show_their_loss_and_several_runs_differ_in_colour(tmp_path):
    plain = [record("train_inner", at, loss=12 - at / 10) for at in (10, 20)]
    logs = [read_log(write(tmp_path, LINES)), read_log(write(tmp_path, plain, "mlm.log"), "MLM alone")]
    figure = draw_curves(logs)
    assert lines_of(figure)["loss (bits)"] == [([10, 20], [11, 10])]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["run", "MLM alone", "training", "validation"]
    colours = {line.get_color() for line in figure.legends[0].legend_handles[:2]}
    assert len(colours) == 2
    assert len({axis.get_xlim() for axis in figure.axes[:-1]}) == 1
    # asked for by name, every run's is drawn, sum or not
    assert lines_of(draw_curves(logs, ["loss"])) == {"loss": [([20], [11.5]), ([10, 20], [11, 10])]}


def test_hydras_logs_and_half_written_ones_are_read(tmp_path):
    hydra = ['[2026-01-01 00:00:00,000][train_inner][INFO] - {"loss": "3", "num_updates": "5"}', LINES[1][:-20]]
    log = read_log(write(tmp_path, hydra, "hydra_train.log"))
    np.testing.assert_array_equal(log.training("loss").values, [3])
    with pytest.raises(UserError, match=r"train.log:1: a record of the log is no JSON"):
        read_log(write(tmp_path, [LINES[1][:-20], LINES[2]]))


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match="holds no records of training; run fairseq-train with --log-format json"):
        read_log(write(tmp_path, ["epoch 001 | loss 3"]))
    with pytest.raises(UserError, match="cannot read it"):
        read_log(tmp_path / "absent.log")
    log = read_log(write(tmp_path, LINES))
    with pytest.raises(UserError, match="run: no log has any of bleu"):
        draw_curves([log], ["bleu"])
    with pytest.raises(UserError, match="9 logs are too many"):
        draw_curves([log] * 9)


def test_both_files_are_written_whole_and_the_same_each_time(tmp_path):
    log = read_log(write(tmp_path, LINES))
    before = dict(matplotlib.rcParams)
    contents = []
    for name in ("a", "b.svg"):
        files = save_figure(draw_curves([log]), tmp_path / name)
        assert [file.suffix for file in files] == [".png", ".svg"]
        contents.append([file.read_bytes() for file in files])
    assert contents[0] == contents[1]
    assert contents[0][0].startswith(b"\x89PNG") and b"<svg" in contents[0][1]
    assert dict(matplotlib.rcParams) == before
    assert {path.name for path in tmp_path.iterdir()} == {"run", "a.png", "a.svg", "b.png", "b.svg"}
    with pytest.raises(UserError, match="a.png: exists already"):
        check_picture_path(tmp_path / "a", overwrite=False)
    assert check_picture_path(tmp_path / "a.png", overwrite=True) == [tmp_path / "a.png", tmp_path / "a.svg"]
    with pytest.raises(UserError, match="ending in .png or .svg"):
        check_picture_path(tmp_path / "a.pdf", overwrite=False)
    with pytest.raises(UserError, match="there is no folder"):
        check_picture_path(tmp_path / "absent" / "a", overwrite=False)


def test_pictures_are_a_column_wide(tmp_path):
    figure = draw_curves([read_log(write(tmp_path, LINES))])
    assert figure.get_size_inches()[0] == pytest.approx(3.3)
