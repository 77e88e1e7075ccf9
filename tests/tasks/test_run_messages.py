"""What a run logs: a summary before the first metric, its share of waiting, and everything in --log-file."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq.logging import metrics

from fairseq_clear.patches import stopping
from tests.faults.commands import NT_XENT, train_and_read

FLAGS = tuple("--max-update 6 --update-freq 6 --log-interval 2 --log-format simple --disable-validation".split())


SUBJECTS = ("data", "tokens", "views", "objective", "model", "parameters", "workers", "batch", "updates", "saves")


def test_a_run_prints_a_summary_and_the_log_file_has_everything(data_bin: Path, tmp_path: Path) -> None:
    flags = (*FLAGS, "--log-file", str(tmp_path / "log.txt"), "--tensorboard-logdir", str(tmp_path / "board"))
    code, text = train_and_read(data_bin, tmp_path / "run", *flags, recipe=NT_XENT)
    lines, kept = text.splitlines(), (tmp_path / "log.txt").read_text()
    assert code == 0, text[-3000:]
    assert {path.parent.name for path in tmp_path.glob("board/*/events.*")} >= {"train", "train_inner"}
    said = [line.rpartition("fairseq_clear | ")[2].split(maxsplit=1) for line in lines if "fairseq_clear | " in line]
    summary = {subject: text for subject, text in said if subject in SUBJECTS}
    assert tuple(summary) == SUBJECTS
    assert "120 texts" in summary["data"] and "del-word" in summary["views"]
    assert summary["objective"] == "masked LM + nt-xent (temperature 0.1)"
    assert re.fullmatch(r"[\d,]+ trained, 0 frozen", summary["parameters"])
    assert summary["workers"] == "1 on CPU, float32"
    assert summary["updates"] == "6, adam at 0.003, fixed"
    waits = [float(share) for line in lines for share in re.findall(r"data_wait=([\d.]+)", line)]
    assert len(waits) == 3 and min(waits) >= 0 and 0 < max(waits) < 1
    assert "'tokens_per_sample': 32" in kept and "(projection_head): ProjectionHead(" in kept
    assert "begin training epoch 2" in kept
    for line in lines[1:]:
        if line.startswith("INFO | train") or "fairseq_clear | " in line:
            assert line.split(" | ", 2)[-1] in kept
    assert kept.count("train_inner") == sum("train_inner" in line for line in lines), "once, however many epochs"


def test_the_share_of_the_time_that_a_run_waits_for_data(monkeypatch: pytest.MonkeyPatch) -> None:
    state, now = stopping._State(), 0.0
    monkeypatch.setattr(stopping, "_state", state)
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: now))
    with metrics.aggregate(new_root=True) as logged:
        for waited, computed in ((7, 1), (2, 6), (3, 2)):
            now += waited
            stopping.log_data_wait()
            stopping.log_data_wait()  # as when --amp repeats the update
            now += computed
            state.ended = now
    assert logged.get_smoothed_value("data_wait") == pytest.approx((2 + 3) / (1 + 2 + 6 + 3), abs=5e-4)
