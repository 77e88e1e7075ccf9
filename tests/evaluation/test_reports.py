"""The table and the JSON of a report."""

import json

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.reports import Report, Row

ROWS = (
    Row("one", {"A": 70.004, "B": 9.0}, {"checkpoint": "one.pt"}, {"A": 0.5}),
    Row("second", {"A": 70.0, "B": 10.126, "C": 1.0}, details={"note": [1]}),
)
REPORT = Report("sts", {"metric": "spearman", "pairs": {"A": 3}}, {"A": {"a.txt": "00"}}, ("A", "B", "C"), ROWS, (1, 2))


def test_the_best_is_marked_and_ties_share_the_mark():
    assert REPORT.table().splitlines() == [
        "                  A       B      C",
        "one     70.00\u00b10.50*   9.00      -",
        "second       70.00*  10.13*  1.00",
    ]
    alone = Report("x", {}, {}, ("A", "B"), ROWS[1:]).table()
    assert alone.splitlines()[1] == "second  70.00  10.13"


def test_json_names_everything(tmp_path):
    REPORT.write(tmp_path / "r.json")
    read = json.loads((tmp_path / "r.json").read_text())
    assert read["format"] == 1 and read["command"] == "sts" and read["seeds"] == [1, 2]
    assert read["data"] == {"A": {"a.txt": "00"}} and read["protocol"]["metric"] == "spearman"
    assert read["rows"][0] == {
        "label": "one", "encoder": {"checkpoint": "one.pt"}, "scores": {"A": 70.004, "B": 9.0},
        "deviations": {"A": 0.5}, "details": {},
    }  # fmt: skip
    assert {"fairseq_clear", "python", "numpy", "torch", "transformers", "tokenizers"} <= set(read["versions"])
    assert REPORT.caption() == "metric spearman; pairs A=3; seeds 1 2"


def test_no_report_is_overwritten_or_half_written(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("old")
    for bad, kind in ((float("nan"), ValueError), (object(), TypeError)):
        with pytest.raises(kind):
            Report("x", {"bad": bad}, {}, (), ()).write(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match="--output .*: cannot write it"):
        REPORT.write(tmp_path / "no" / "r.json")
