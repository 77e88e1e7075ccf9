"""What the examples' measure.py share: nothing is measured twice, names are fit for files and hydra, the table adds up."""

import importlib.util
import json
import lzma
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def measuring():
    spec = importlib.util.spec_from_file_location("measuring", ROOT / "examples/measuring.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["measuring"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_a_run_is_measured_once_and_kept(measuring, tmp_path):
    calls = []

    def score(checkpoint, recipe, seed):
        calls.append((checkpoint, seed))
        return {"task": 10.0 * seed}

    recipe = measuring.Recipe(ROOT / "examples/cert/config/cert.yaml", ("a=1",), trains=False)
    recipes = {"no queue (batch), EDA": recipe}
    first = measuring.measure(recipes, [1, 2], tmp_path, score, ["b=2"], Path("start.pt"))
    again = measuring.measure(recipes, [1, 2, 3], tmp_path, score, ["b=2"], Path("start.pt"))
    assert calls == [(Path("start.pt"), 1), (Path("start.pt"), 2), (Path("start.pt"), 3)]
    assert again["no queue (batch), EDA"][:2] == first["no queue (batch), EDA"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"no_queue_batch_EDA.{seed}.json" for seed in (1, 2, 3)]
    kept = json.loads((tmp_path / "no_queue_batch_EDA.2.json").read_text())
    assert kept["scores"] == {"task": 20.0} and kept["overrides"] == ["b=2", "a=1"] and kept["commit"]


def test_the_table_has_means_deviations_and_the_best(measuring):
    rows = {"one": [{"A": 1.0, "B": 5.0}, {"A": 3.0, "B": 5.0}], "other": [{"A": 2.5, "B": 4.0}]}
    assert measuring.table(rows).splitlines() == [
        "| | A | B |",
        "|---|---|---|",
        "| one | 2.00 +- 1.41 | **5.00** +- 0.00 |",
        "| other | **2.50** | 4.00 |",
    ]


def test_documents_of_the_corpora(measuring, tmp_path):
    (tmp_path / "20news.train.jsonl.xz").write_bytes(
        lzma.compress(b'{"group": "a", "id": "1", "text": "From: x\\n\\nHello\\n there\\n\\n--\\nme"}\n')
    )
    (tmp_path / "20news.test.jsonl.xz").write_bytes(lzma.compress(b'{"group": "a", "id": "2", "text": "y"}\n'))
    (tmp_path / "movie_reviews.jsonl.xz").write_bytes(
        lzma.compress(b'{"label": "neg", "text": "bad .\\n\\nvery bad ."}\n')
    )
    (tmp_path / "wikitext2.valid.txt.xz").write_bytes(
        lzma.compress(b" \n = One = \n \n Text . \n = = Part = = \n More . \n \n = Two = \n End . \n")
    )
    found = {name: read(tmp_path) for name, read in measuring.DOCUMENTS.items()}
    assert found == {
        "20news": ["Hello\nthere"],
        "movie_reviews": ["bad .\nvery bad ."],
        "wikitext2": ["= One =\nText .\n= = Part = =\nMore .", "= Two =\nEnd ."],
    }


def test_commands_are_those_of_the_checkout_that_measures(measuring, tmp_path, monkeypatch):
    """And not of another one that it is called from."""
    (tmp_path / "fairseq_clear").mkdir()
    (tmp_path / "fairseq_clear/__init__.py").write_text("raise SystemExit('another checkout')\n")
    monkeypatch.chdir(tmp_path)
    measuring.clear("views", "--help")
    with pytest.raises(SystemExit, match="no-such"):
        measuring.clear("no-such")
