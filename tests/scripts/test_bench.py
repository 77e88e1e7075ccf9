"""scripts/bench: the table, missing peers, the runner, and benchmarks at a tiny size."""

import importlib
import json
import sys

import pytest
from torch import nn

from tests.conftest import ROOT, load_file
from tests.zygote import forked_python

pytestmark = pytest.mark.slow

BENCH = ROOT / "scripts" / "bench"
TINY = {  # name -> flags, and the number of rows
    "clear_step": ("--texts 2 --words 3 6", 1),
    "criterions": ("--batch 2 --words 3 6 --queue-size 64 --backend eager --documents 1 --width 48", 5),
    "encode": ("", 3),  # without sentence-transformers
    "clear_hf": ("", 2),  # without sentence-transformers
    "growth": ("--lines 400 --epoch-lines 40 --batch-size 8", 4),
    "nt_xent": ("--sizes 8x16", 2),
    "prepare": ("--lines 300 --vocab-size 600 --python-encoder 1", 1),
    "retrieval": ("", 1),  # without faiss
    "sentence_transformers_step": ("", 2),
    "startup": ("", 3),
    "views": ("--batches 4 --words 30 --texts 16 --documents 4 --vocab-size 500 --sample-lines 400", 19),
    "gpu": (
        "--device cpu --arch clear_roberta_tiny --length 32 --long 64 --window 16 --texts 2 --sequences 2 --updates 2 "
        "--criterions clear_moco --precisions fp32 bf16",
        18,
    ),
}
ABSENT = ("sentence_transformers", "nlpaug", "textaugment", "pytorch_metric_learning", "faiss")


@pytest.fixture(scope="module")
def bench():
    """Imports a benchmark as its own folder's scripts see each other."""
    names = {path.stem for path in BENCH.glob("*.py")} - {"__main__"}
    shadowed = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(BENCH))
    yield importlib.import_module
    sys.path.remove(str(BENCH))
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(shadowed)


# torch's own, of how it looks at what it is given
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("name", TINY)
def test_at_a_tiny_size(bench, monkeypatch, capsys, name):
    module, (words, rows) = bench(name), TINY[name]
    for package in ABSENT:
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(module, "LAYERS", {48: "1"}, raising=False)  # of criterions
    monkeypatch.setattr(module, "COMMANDS", ("embed", "plot"), raising=False)  # of startup
    monkeypatch.setattr(nn.Module, "compile", lambda *_, **__: None)  # of gpu; tests/models/test_compile.py compiles
    monkeypatch.setattr(sys, "executable", forked_python())
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    monkeypatch.setattr(sys, "argv", [module.__file__, *words.split(), "--repeats", "1"])
    module.main()
    table = json.loads(capsys.readouterr().out.splitlines()[-1])["table"]
    assert len(table) == rows
    # losses are logged with three digits, so after two updates those in bf16 may be the same
    figures = [row["ours"] for row in table if "missing" not in row and "difference" not in row["unit"]]
    assert min(figures, default=1) > 0


def test_sides_take_turns_and_the_row_has_the_median_ratio(bench, capsys):
    results, calls = bench("results"), []
    clock = iter([0, 0, 10, 11, 11, 16, 20, 22, 22, 25]).__next__  # warm-up; 1 and 5 s; 2 and 3 s
    sides = [lambda number: calls.append(("ours", number)), lambda number: calls.append(("theirs", number))]
    row = results.compare("x", *sides, 2, baseline="y", aim=">= 3", unit="texts/s", amount=6, warm_up=1, clock=clock)
    assert calls == [(side, number) for number in range(3) for side in ("ours", "theirs")]
    assert (row["ours"], row["theirs"], row["ratio"], row["met"]) == (4, 1.5, (5 + 1.5) / 2, True)
    assert results.row("x", "s", 9.0, aim="<= 1.1")["met"] is False
    found = {"one": {"table": [row, results.missing_row("views", "nlpaug")]}, "two": {"failed": "no\n|text|"}}
    assert results.markdown(found).splitlines()[2:] == [
        "| one | x | 4.00 texts/s | y | 1.50 | 3.25 | >= 3 | yes |  |",
        "| one | views |  | nlpaug | not installed |  |  |  |  |",
        "| two | failed: no /text/ | | | | | | | |",
    ]


def test_the_runner_outlives_failures(bench, tmp_path, monkeypatch, capsys):
    runner = load_file(BENCH / "__main__.py", "bench_main")
    known = {path.stem for path in BENCH.glob("*.py") if "\nif __name__ ==" in path.read_text()}
    assert set(runner.BENCHES) == known - {"gpu", "__main__"}
    (tmp_path / "good.py").write_text("print('{\"table\": []}'); print('words'); print('{\"table\": [], \"n\": 2}')")
    (tmp_path / "bad.py").write_text("import sys; print('{\"table\": []}'); sys.exit('it broke\\nhere')")
    monkeypatch.setattr(runner, "FOLDER", tmp_path)
    monkeypatch.setattr(runner, "BENCHES", ("good", "bad"))
    output = tmp_path / "out" / "bench"
    assert runner.main(["--output", str(output)]) == 1
    results = json.loads(output.with_suffix(".json").read_text())["results"]
    assert results["good"]["n"] == 2 and results["bad"]["failed"] == "here"
    # a failure of another benchmark is not its own
    assert runner.main(["good", "--output", str(output), "--", "--corpora", str(tmp_path)]) == 0
    kept = json.loads(output.with_suffix(".json").read_text())["results"]["good"]
    assert kept["flags"] == ["--corpora", tmp_path.name], "no folder of this machine"
    assert "| bad | failed: here |" in capsys.readouterr().out
