"""measuring.py, result_tables.py and the proof of the examples: no run is repeated, and tables are correct."""

import importlib
import json
import math
import sys

import pytest
import torch

from tests.conftest import ROOT, load_file
from tests.zygote import forked_python


@pytest.fixture(scope="module")
def measuring():
    return load_file(ROOT / "examples" / "measuring.py")


@pytest.fixture(scope="module")
def result_tables():
    return load_file(ROOT / "examples" / "result_tables.py")


@pytest.fixture(scope="module")
def correctness():
    path = list(sys.path)
    sys.path.insert(0, str(ROOT / "examples" / "proof"))
    yield importlib.import_module("correctness")
    sys.path[:] = path


def test_a_run_is_measured_once_and_kept(measuring, tmp_path):
    calls = []

    class Row:
        once = False

        def train(self, seed, folder):
            folder.mkdir()
            (folder / "model.pt").write_text("large")
            (folder / "export").mkdir()
            (folder / "export" / "model.safetensors").write_text("large")
            return folder / "model.pt"

        def about(self):
            return {"recipe": "of the row"}

    def score(checkpoint, row, seed):
        calls.append((checkpoint.parent.name, checkpoint.exists(), seed))
        return {"task": 10.0 * seed}

    name = "no queue (batch), EDA"
    rows = {"start": measuring.Untrained(ROOT / "start.pt"), name: Row()}
    results = tmp_path / "results.json"
    results.write_text('{"other": []}')
    first = measuring.measure(rows, [1, 2], tmp_path / "runs", score, results, "table")
    again = measuring.measure(rows, [1, 2, 3], tmp_path / "runs", score, results, "table")
    stem = "no_queue_batch_EDA"
    assert calls == [(ROOT.name, False, 1), *((f"{stem}.{seed}", True, seed) for seed in (1, 2, 3))]
    assert again[name][:2] == first[name] and again["start"] == first["start"] and len(first["start"]) == 1
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    kept = json.loads(results.read_text())
    assert kept["other"] == [] and [run["seed"] for run in kept["table"]] == [1, 1, 2, 3]
    assert kept["table"][2]["scores"] == {"task": 20.0}
    assert kept["table"][2]["recipe"] == "of the row" and kept["table"][2]["commit"]
    # a row that does not depend on the seed is scored once; runs with other settings are an error
    start = {"start": rows["start"]}
    assert measuring.measure(start, [2], tmp_path / "runs", score, results, "table") == {"start": first["start"]}
    with pytest.raises(SystemExit, match="--seeds 1 1 2: give different seeds"):
        measuring.measure(rows, [1, 1, 2], tmp_path / "runs", score, results, "table")
    with pytest.raises(SystemExit, match="seed 1 was made with another scoring"):
        measuring.measure(rows, [1], tmp_path / "runs", score, results, "table", {"epochs": 3})
    tuned = [measuring.measure(rows, [1], tmp_path / "tuned", score, results, "tuned", {"epochs": 3}) for _ in range(2)]
    assert tuned[0] == tuned[1] and tuned[0][name][0]["scoring"] == {"epochs": 3}
    for about, name in (({"recipe": "other"}, "recipe"), ({"recipe": "of the row", "text": "new"}, "text")):
        Row.about = lambda self, about=about: about
        with pytest.raises(SystemExit, match=f"seed 1 was made with another {name}"):
            measuring.measure(rows, [1], tmp_path / "runs", score, results, "table")


@pytest.mark.slow
def test_an_untrained_row_has_the_initial_weights(measuring, data_bin, tmp_path, monkeypatch):
    """Weights of one seed are equal though the runs are trained differently, and differ if the rate is not tiny."""
    monkeypatch.setattr(measuring, "HYDRA", (forked_python(), *measuring.HYDRA[1:]))
    common = (
        *(f"task.data={data_bin}", "checkpoint.finetune_from_model=null", "dataset.batch_size=4", *measuring.TINY),
        *("task.tokens_per_sample=34", "task.views='span:anchors=1,positives=1,min=8,max=16'"),
        *measuring.schedule(2, 1e-3),
        "lr_scheduler.warmup_updates=0",  # with a warm-up, fairseq's first update has the rate 0
    )

    def weights(name, *overrides):
        recipe = measuring.Recipe(ROOT / "examples/declutr/config/small.yaml", overrides).with_overrides(common)
        model = torch.load(recipe.train(1, tmp_path / name), weights_only=False)["model"]
        return model["encoder.sentence_encoder.layers.0.fc1.weight"]

    untrained = weights("both", *measuring.UNTRAINED)
    assert torch.equal(untrained, weights("alone", "+ablation=mlm_only", *measuring.UNTRAINED))
    assert not torch.equal(untrained, weights("trained"))
    with pytest.raises(SystemExit, match="failed: .*--lr 0: the learning rate"):
        weights("failed", "optimization.lr=[0.0]")


def test_the_table_has_means_deviations_and_the_best(result_tables):
    rows = {"one": {1: {"A": 1.0, "B": 5.0}, 2: {"A": 3.0, "B": 5.0}}, "other": {1: {"A": 2.5, "B": 4.0}}}
    assert result_tables.table(rows).splitlines() == [
        "| | A | B |",
        "|---|---|---|",
        "| one | 2.00 +- 1.41 | **5.00** +- 0.00 |",
        "| other | **2.50** | 4.00 |",
    ]


def test_differences_are_paired_by_seed(result_tables):
    """Both rows rise with the seed: the deviations are large, the error of the difference is small."""
    rows = {
        "base": {1: {"A": 10.0}, 2: {"A": 30.0}},
        "one": {1: {"A": 11.0}, 2: {"A": 33.0}},
        "start": {1: {"A": 9.0, "B": 1.0}},
        "late": {4: {"A": 1.0}, 2: {"A": 40.0}},
    }
    assert result_tables.differences({k: rows[k] for k in ("base", "one")}, "base") == {"one": {"A": (2.0, 1.0)}}
    assert result_tables.difference_table({k: rows[k] for k in ("start", "one")}, "start").splitlines() == [
        "| minus start | A |",
        "|---|---|",
        "| one | +13.00 (11.00) |",
    ]
    difference, error = result_tables.differences(rows, "one")["start"]["A"]
    assert difference == -2.0 and math.isnan(error)  # the base has another seed, which "start" lacks
    assert result_tables.differences(rows, "one", {"start"})["start"]["A"] == pytest.approx((-13.0, 11.0))
    assert result_tables.differences(rows, "base")["late"]["A"][0] == 10.0  # of seed 2, the only one that both have


def test_runs_without_a_column_are_left_out_of_it(result_tables):
    rows = {
        "base": {1: {"A": 1.0}, 2: {"A": 2.0, "B": 5.0}},
        "one": {1: {"A": 2.0}, 2: {"A": 4.0, "B": 8.0}, 3: {"A": 9.0, "B": 1.0}},
    }
    assert result_tables.table(rows).splitlines()[2:] == [
        "| base | 1.50 +- 0.71 | **5.00** |",
        "| one | **5.00** +- 3.61 | 4.50 +- 4.95 |",
    ]
    assert result_tables.difference_table(rows, "base").splitlines()[2] == "| one | +1.50 (0.50) | +3.00 (nan) |"


@pytest.mark.parametrize("is_steady", [True, False])
def test_a_training_of_the_proof_takes_the_given_seconds(is_steady, monkeypatch, tmp_path):
    proof = load_file(ROOT / "examples" / "proof" / "measure.py")
    made = []

    def run(self, seed, folder, updates):
        folder.mkdir(parents=True)
        made.append(updates)
        rate = 0.3 if updates <= 10 else 0.5  # the first texts are short
        rate *= 1 if is_steady else 1 + len(made) % 2
        return [{"read_at": 7 + rate * number, "num_updates": number} for number in (1, updates)]

    monkeypatch.setattr(proof.Ours, "_run", run)
    ours = proof.Ours("titles", tmp_path, tmp_path, proof.Limit(180, None))
    if not is_steady:
        with pytest.raises(SystemExit, match="takes another time at every trial"):
            ours.train(1, tmp_path / "run")
        return
    assert ours.train(1, tmp_path / "run") == tmp_path / "run" / "checkpoint_last.pt"
    assert json.loads((tmp_path / "run" / "trained.json").read_text()) == {"updates": 360, "seconds": 180.0}
    assert made == [10, 80, 360]


# examples/proof/correctness.py


def test_updates_that_are_made_twice_count_once(correctness, tmp_path):
    lines = [[1, 5, 6], [2, 7, 8], [2, 7, 9], [3, 8, 4]]
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert correctness.texts_of(tmp_path) == (1, {1: [5, 6], 2: [7, 9], 3: [8, 4]})


def test_gradients_are_compared(correctness):
    def half(size, *_):
        rows = torch.eye(4)
        queues = [rows.flip(0), rows] if size == 2 else [rows]
        return [{"gradient": torch.ones(4) / size, "queue": queue} for queue in queues]

    gradients, queues = correctness.gradient_rows(half, "data")
    assert gradients[0]["16 + 16: relative error"] == 0.5 and gradients[0]["16 + 16: cosine"] == pytest.approx(1)
    assert queues[0]["same vectors on both workers"] and not queues[0]["same order"]
