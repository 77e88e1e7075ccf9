"""scripts/bench: what a benchmark hands on, the table, missing peers and failures; each new one at a tiny size."""

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_clear.cli import COMMANDS
from tests.conftest import ROOT
from tests.zygote import forked_python

pytestmark = pytest.mark.slow

BENCH = ROOT / "scripts" / "bench"
KEYS = {"what", "unit", "ours", "baseline", "theirs", "ratio", "aim", "met", "mib", "their_mib"}
MISSING_KEYS = {"what", "baseline", "aim", "missing"}


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


@pytest.fixture(scope="module")
def runner(bench):
    spec = importlib.util.spec_from_file_location("bench_main", BENCH / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def forks(monkeypatch):
    """Lets a benchmark fork what it starts, rather than import everything again."""
    monkeypatch.setattr(sys, "executable", forked_python())


def call(module, monkeypatch, capsys, *flags):
    """The result that ``main`` ends with, its table checked."""
    monkeypatch.setattr(sys, "argv", [module.__file__, *map(str, flags)])
    module.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["table"]
    for row in result["table"]:
        assert set(row) == (MISSING_KEYS if "missing" in row else KEYS)
        if "missing" not in row:
            assert np.isfinite(row["ours"]) and row["unit"]
            assert (row["met"] is None) == (row["aim"] == "")
    return result


@pytest.mark.parametrize(
    ("ours", "ratio", "aim", "met"),
    [
        (5.0, 0.95, ">= 0.95", True),
        (5.0, 0.94, ">= 0.95", False),
        (5.0, 1.2, "<= 1.1", False),
        (1.0, None, "<= 1.1", True),  # of ours where there is no ratio
        (9.0, None, "<= 1.1", False),
        (5.0, 1.0, "", None),
    ],
)
def test_an_aim_is_met_or_not(bench, ours, ratio, aim, met):
    assert bench("results").row("x", "s", ours, ratio=ratio, aim=aim)["met"] is met


def test_an_aim_without_a_sign_is_an_error(bench):
    with pytest.raises(ValueError, match="0.95"):
        bench("results").row("x", "s", 1.0, aim="0.95")


def test_the_table(bench, capsys):
    results = bench("results")
    full = results.row(
        "update", "s", 0.01234, baseline="other", theirs=2.0, ratio=162.07, aim=">= 50", mib=67.2, their_mib=4360.0
    )
    lone = results.row("encode", "texts/s", 1234.5)
    found = {
        "one": {"table": [full, lone]},
        "two": {"table": [results.missing_row("views", "nlpaug", ">= 50")]},
        "three": {"failed": "no\n|text|"},
    }
    assert results.markdown(found).splitlines()[2:] == [
        "| one | update | 0.0123 s | other | 2.00 | 162 | >= 50 | yes | 67 / 4,360 |",
        "| one | encode | 1,234 texts/s |  |  |  |  |  |  |",
        "| two | views |  | nlpaug | not installed |  | >= 50 |  |  |",
        "| three | failed: no /text/ | | | | | | | |",
    ]
    assert "nlpaug is not installed" in capsys.readouterr().out
    widths = {line.count("|") for line in results.markdown(found).splitlines()}
    assert len(widths) == 1


def test_the_runner_takes_the_last_json_and_outlives_failures(runner, tmp_path, monkeypatch, capsys):
    scripts = {
        "good": "print('{\"table\": []}'); print('words'); print('{\"table\": [], \"n\": 2}')",
        "bad": "import sys; print('{\"table\": []}'); sys.exit('it broke\\nhere')",
        "silent": "print('no json')",
        "peer": "import json, peer_of_bench as p; print(json.dumps({'table': [], 'found': p.N}))",
    }
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)
    peers = tmp_path / "peers"
    peers.mkdir()
    (peers / "peer_of_bench.py").write_text("N = 7")
    monkeypatch.setattr(runner, "FOLDER", tmp_path)
    monkeypatch.setattr(runner, "BENCHES", tuple(scripts))
    output = tmp_path / "out" / "bench"
    assert runner.main(["--output", str(output), "--peers", str(peers)]) == 1
    results = json.loads(output.with_suffix(".json").read_text())["results"]
    assert results["good"]["n"] == 2 and results["good"]["seconds"] >= 0
    assert results["bad"]["failed"] == "here"
    assert results["silent"]["failed"] == "silent.py ended without a line of JSON"
    assert results["peer"]["found"] == 7
    shown = capsys.readouterr().out
    assert shown == output.with_suffix(".md").read_text() and "| bad | failed: here |" in shown
    scripts["good"] = 'print(\'{"table": [], "n": 3}\')'
    (tmp_path / "good.py").write_text(scripts["good"])
    assert runner.main(["good", "--output", str(output)]) == 0  # a failure of another benchmark is not its own
    again = json.loads(output.with_suffix(".json").read_text())["results"]
    assert list(again) == list(scripts) and again["good"]["n"] == 3 and again["peer"] == results["peer"]


def test_the_runner_knows_its_benchmarks(runner, capsys):
    known = {path.stem for path in BENCH.glob("*.py") if "\nif __name__ ==" in path.read_text()}
    # they need data and an encoder, and a GPU
    assert set(runner.BENCHES) == known - {"evaluation", "gpu", "__main__"}
    for wrong in (["fast"], ["--", "--repeats", "1"], ["views", "moco", "--", "--repeats", "1"]):
        with pytest.raises(SystemExit):
            runner.main(wrong)
    assert "no such benchmark" in capsys.readouterr().err


def test_startup_has_a_row_for_each_command(bench, monkeypatch, capsys):
    rows = call(bench("startup"), monkeypatch, capsys, "--runs", 1)["table"]
    shown = [row["what"].removeprefix("fairseq-clear ").removesuffix("--help").strip() for row in rows]
    assert shown == ["", *COMMANDS]
    assert all(row["unit"] == "s" and row["ours"] > 0 for row in rows)


@pytest.mark.parametrize(("name", "rows"), [("encode", 3), ("sentence_transformers_step", 2)])
def test_a_missing_peer_is_a_row(bench, monkeypatch, capsys, name, rows):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)  # as if it were not installed
    result = call(bench(name), monkeypatch, capsys)
    assert [row["missing"] for row in result["table"]] == ["sentence-transformers"] * rows


def test_nt_xent_without_pytorch_metric_learning(bench, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    result = call(bench("nt_xent"), monkeypatch, capsys, "--sizes", "8x16", "--repeats", "1")
    assert [row.get("missing", row["what"]) for row in result["table"]] == [
        "NT-Xent, 8 x 16",
        "pytorch-metric-learning",
    ]


def test_prepare_sees_other_ids(bench, tmp_path):
    module = bench("prepare")
    bench("mapped").write_data(tmp_path / "a", 60)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    mine, other = tmp_path / "a" / "train", tmp_path / "b" / "train"
    assert module.first_difference(mine, other) == ""
    ids = np.fromfile(f"{other}.bin", np.uint16)
    sizes = np.frombuffer(Path(f"{other}.idx").read_bytes(), np.int32, 60, 26)
    ids[sizes[:30].sum()] += 1  # the first of line 31
    ids.tofile(f"{other}.bin")
    assert module.first_difference(mine, other).startswith("line 31: ")
    bench("mapped").write_index(other, np.append(sizes[:-1], sizes[-1] - 1).astype(np.int32))
    assert module.first_difference(mine, other).startswith("line 60 has ")
    bench("mapped").write_index(other, sizes[:-1].astype(np.int32))
    assert module.first_difference(mine, other) == "60 lines, theirs has 59"


def test_prepare_at_a_tiny_size(bench, forks, monkeypatch, capsys):
    sizes = ("--lines", "300", "--vocab-size", "600", "--repeats", "1", "--python-encoder")
    result = call(bench("prepare"), monkeypatch, capsys, *sizes)
    assert result["encoder"] == "sentencepiece's Python encoder"
    assert result["lines"] == 300 + 14  # and the blank lines


VIEWS = (
    "--words",
    "30",
    "--texts",
    "6",
    "--documents",
    "3",
    "--repeats",
    "1",
    "--vocab-size",
    "500",
    "--sample-lines",
    "400",
)


def test_views_at_a_tiny_size(bench, monkeypatch, capsys):
    for package in ("nlpaug", "textaugment"):
        monkeypatch.setitem(sys.modules, package, None)
    result = call(bench("views"), monkeypatch, capsys, *VIEWS)
    assert [row.get("missing") for row in result["table"]] == ["nlpaug"] * 5 + ["textaugment", None]
    assert result["table"][-1]["ratio"] > 0


@pytest.mark.real
def test_views_compared_with_what_is_installed(bench, monkeypatch, capsys, tmp_path):
    for package in ("nlpaug", "textaugment", "textblob_aptagger"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (make bench-peers, PYTHONPATH=build/bench-peers)")
    module = bench("views")
    result = call(module, monkeypatch, capsys, *VIEWS)
    assert not any("missing" in row for row in result["table"]) and len(result["table"]) == 10
    augmenters = module.nlpaug({"good": ["fine"]}, tmp_path)
    assert augmenters["synonym"]("good news") == augmenters["tagged synonym"]("good news") == ["fine news"]
    monkeypatch.setattr("nltk.tag.perceptron.PerceptronTagger.tag", lambda self, words: [])
    assert augmenters["synonym"]("good news") == ["fine news"]
    assert augmenters["tagged synonym"]("good news") == ["good news"], "words come by way of the tagger"


def test_spans_of_like_length_compared_with_padded_ones(bench, forks, monkeypatch, capsys):
    module, lengths = bench("spans"), (1_100, 2_200, 4_400)
    tokens = torch.ones(3, 4_400, dtype=torch.int64)
    widths = [len(module.chunking.Parts(tokens, 1, lengths).parts)]
    with module.all_padded():
        widths.append(len(module.chunking.Parts(tokens, 1, lengths).parts))
    assert widths == [3, 1], "only the second pads all to the longest"
    call(module, monkeypatch, capsys, "--documents", 2, "--repeats", 1)


# torch's own, of how it looks at what it is given
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_blocks_compared_with_plain_ones(bench, forks, monkeypatch, capsys):
    sizes = ("--words", 5, 9, "--batch", 4, "--repeats", 1, "--arch", "clear_roberta_tiny", "--backend", "eager")
    result = call(bench("compiled"), monkeypatch, capsys, *sizes)
    assert [row["baseline"] for row in result["table"]] == ["plain blocks", ""]
    with pytest.raises(Exception, match="no_such"):
        call(bench("compiled"), monkeypatch, capsys, *sizes, "--backend", "no_such")


def test_the_sampler_written_anew_keeps_the_papers_bounds(bench):
    sample = bench("text_peers").declutr(low=4, high=32)
    text = " ".join(map(str, range(150)))
    starts, lengths = [], []
    for _ in range(200):
        spans = [np.array(span.split(), int) for span in sample(text)]
        assert len(spans) == 6
        for span in spans:
            assert (np.diff(span) == 1).all() and 4 <= len(span) <= 32
            lengths.append(len(span))
        for anchor, *positives in (spans[:3], spans[3:]):
            starts.append(anchor[0])
            for positive in positives:  # overlaps its anchor, or touches it
                assert positive[-1] + 1 >= anchor[0] and positive[0] <= anchor[-1] + 1
        first, second = sorted((spans[0], spans[3]), key=lambda span: span[0])
        assert first[-1] < second[0]
    assert min(starts) < 8 and max(starts) > 90 and len(set(lengths)) > 15


def test_generated_words_and_synonyms(bench):
    texts = bench("texts")
    lines = list(texts.generate(50, (3, 9)))
    assert lines == list(texts.generate(50, (3, 9))) != list(texts.generate(50, (3, 9), seed=2))
    assert {len(line.split()) for line in lines} == set(range(3, 10))
    words = texts.make_words(2_000)
    assert len(set(words)) == 2_000
    table = texts.neighbours(words)
    assert 0.35 < np.mean([bool(others) for others in table.values()]) < 0.45
    assert max(map(len, table.values())) == 8 and set(table) == set(words)


@pytest.mark.parametrize("recipe", ["clear", "neighbor", "declutr", "masked_lm"])
def test_growth_goes_through_its_steps(bench, monkeypatch, capsys, tmp_path, recipe):
    module = bench("growth")
    bench("mapped").write_data(tmp_path / "data", 400)
    monkeypatch.setattr(sys, "argv", [module.__file__, "--child", str(tmp_path / "data"), recipe, "--batch-size", "8"])
    module.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(figures[f"{step}_seconds"] > 0 and figures[f"{step}_mib"] >= 0 for step in module.STEPS)
    assert figures["epoch_share"] == 1 and (tmp_path / "data" / "checkpoints" / "checkpoint_last.pt").exists()


def test_growth_reads_a_share_of_an_epoch(bench, monkeypatch, capsys, tmp_path):
    module = bench("growth")
    bench("mapped").write_data(tmp_path / "data", 420)
    module.child(tmp_path / "data", "simcse", 8, 40)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["epoch_share"] == (40 + 8) / 400


def test_growth_compares_the_ends(bench):
    module = bench("growth")

    def figures(lines, factor):
        per_line = {"start": 1e-4, "epoch": 1e-3 * (lines / 30) ** 0.5, "checkpoint": 0}
        found = {f"{step}_seconds": seconds * lines + (step == "checkpoint") for step, seconds in per_line.items()}
        found |= {f"{step}_mib": 1.0 for step in module.STEPS} | {"lines": lines, "epoch_share": 0.5}
        return found | {"held_mib": 3 + factor * 20 * lines / 2**20}

    found = {name: [figures(30, factor), figures(120, factor)] for name, factor in (("clear", 2), ("masked_lm", 1))}
    rows = {row["what"]: row for row in module.table(found, "clear")}
    start, epoch, checkpoint, memory = (row for row in rows.values() if row["aim"])
    assert start["ours"] == pytest.approx(1) and start["met"]
    assert epoch["ours"] == pytest.approx(2) and not epoch["met"]  # the square root of four
    assert checkpoint["ours"] == pytest.approx(1)
    assert (memory["ours"], memory["theirs"], memory["met"]) == (pytest.approx(40), pytest.approx(20), False)
    assert "epoch, 120 lines (from 50% of it)" in rows


MEMORY = """
import json, sys
import numpy as np
from growth import step
figures, kept = {}, []
with step(figures, "start"):
    kept.append(np.ones(32 << 20))  # 256 MiB
with step(figures, "epoch"):
    pass
with step(figures, "checkpoint"):
    for _ in range(20):
        np.ones(16 << 20)  # 128 MiB, gone when the step ends: only the watcher sees it
print(json.dumps(figures))
"""


def test_growth_sees_memory(bench):
    """In a process of its own, as the bench does: here a collection of older tests' garbage would hide what is taken."""
    environment = {**os.environ, **bench("growth").ALLOCATOR, "PYTHONPATH": str(BENCH)}
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, env=environment, check=True)
    figures = json.loads(done.stdout)
    assert 255 < figures["start_mib"] < 270
    assert figures["epoch_mib"] < 10
    assert 20 < figures["checkpoint_mib"] < 140


def test_gpu_bench_is_tried_on_a_cpu(bench, forks, monkeypatch, capsys):
    """The figures mean nothing there; every part of it runs."""
    small = ("--arch", "clear_roberta_tiny", "--length", "32", "--long", "64", "--window", "16", "--texts", "2")
    runs = ("--updates", "2", "--repeats", "1", "--criterions", "clear_moco", "--precisions", "fp32", "bf16")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    result = call(bench("gpu"), monkeypatch, capsys, "--device", "cpu", *small, *runs)
    assert [len(losses) for losses in result["losses"]["clear_moco"].values()] == [2, 2]
    (precision,) = (row for row in result["table"] if "compared with fp32" in row["what"])
    assert 0 < precision["ours"] < 0.02, "bf16 rounds, and not more"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_script_needs_a_gpu(tmp_path):
    script = [str(BENCH / "gpu.sh"), str(tmp_path / "wheels"), str(tmp_path / "out")]
    done = subprocess.run(script, capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable})
    assert done.returncode == 2 and "sees no GPU" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_wheelhouse_keeps_what_is_there(tmp_path):
    (tmp_path / "kept.whl").touch()
    done = subprocess.run([str(ROOT / "scripts/wheelhouse.sh"), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 2 and "exists already" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["kept.whl"]
