"""measuring.py and result_tables.py of the examples: no run is repeated, names are valid file names, tables are correct."""

import json
import math

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
    assert measuring.measure({"start": rows["start"]}, [2], tmp_path / "runs", score, results, "table") == {
        "start": first["start"]
    }
    with pytest.raises(SystemExit, match="--seeds 1 1 2: give different seeds"):
        measuring.measure(rows, [1, 1, 2], tmp_path / "runs", score, results, "table")
    with pytest.raises(SystemExit, match="seed 1 was made with another scoring"):
        measuring.measure(rows, [1], tmp_path / "runs", score, results, "table", {"epochs": 3})
    tuned = [measuring.measure(rows, [1], tmp_path / "tuned", score, results, "tuned", {"epochs": 3}) for _ in range(2)]
    assert tuned[0] == tuned[1] and tuned[0][name][0]["scoring"] == {"epochs": 3}
    Row.about = lambda self: {"recipe": "other"}
    with pytest.raises(SystemExit, match="seed 1 was made with another recipe"):
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
    rows = {"one": [{"A": 1.0, "B": 5.0}, {"A": 3.0, "B": 5.0}], "other": [{"A": 2.5, "B": 4.0}]}
    assert result_tables.table(rows).splitlines() == [
        "| | A | B |",
        "|---|---|---|",
        "| one | 2.00 +- 1.41 | **5.00** +- 0.00 |",
        "| other | **2.50** | 4.00 |",
    ]


def test_differences_are_paired_by_seed(result_tables):
    """Both rows rise with the seed: the deviations are large, the error of the difference is small."""
    rows = {"base": [{"A": 10.0}, {"A": 30.0}], "one": [{"A": 11.0}, {"A": 33.0}], "start": [{"A": 9.0, "B": 1.0}]}
    assert result_tables.differences({k: rows[k] for k in ("base", "one")}, "base") == {"one": {"A": (2.0, 1.0)}}
    assert result_tables.difference_table({k: rows[k] for k in ("start", "one")}, "start").splitlines() == [
        "| minus start | A |",
        "|---|---|",
        "| one | +13.00 (11.00) |",
    ]
    difference, error = result_tables.differences(rows, "one")["start"]["A"]
    assert difference == -2.0 and math.isnan(error)  # the base has another seed, which "start" lacks
    assert result_tables.differences(rows, "one", {"start"})["start"]["A"] == pytest.approx((-13.0, 11.0))


def test_runs_without_a_column_are_left_out_of_it(result_tables):
    rows = {"base": [{"A": 1.0}, {"A": 2.0, "B": 5.0}], "one": [{"A": 2.0}, {"A": 4.0, "B": 8.0}, {"A": 9.0, "B": 1.0}]}
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
