"""mteb scores an exported encoder, which SentenceTransformer loads, as ``evaluate_sts`` scores the checkpoint."""

import numpy as np
import pytest

from fairseq_clear import SentenceEncoder
from fairseq_clear.cli.main import main
from fairseq_clear.evaluation.sts import evaluate_sts
from fairseq_clear.evaluation.sts_data import Pairs, StsData
from tests.conftest import sentences
from tests.interop.folders import make_folder

mteb = pytest.importorskip("mteb", reason="optional (make test-mteb)")
pytestmark = pytest.mark.filterwarnings("ignore")  # of mteb and its libraries
TEXTS = [line for line in sentences(80, seed=7) if line][:60]
PAIRS = Pairs(tuple(TEXTS[:30]), tuple(TEXTS[30:]), np.random.default_rng(7).random(30) * 5)


def test_mteb_scores_an_export(tmp_path, monkeypatch):
    class Local(mteb.abstasks.AbsTaskSTS):
        metadata = mteb.TaskMetadata(
            name="Local", description="Local pairs.", type="STS", category="t2t", main_score="cosine_spearman",
            dataset={"path": "local", "revision": "1"}, eval_splits=["test"], eval_langs=["eng-Latn"],
        )  # fmt: skip

        def load_data(self, *_, **__):
            columns = {"sentence1": PAIRS.first, "sentence2": PAIRS.second, "score": PAIRS.scores}
            self.dataset, self.data_loaded = {"test": datasets.Dataset.from_dict(columns)}, True

    datasets, library = (pytest.importorskip(name) for name in ("datasets", "sentence_transformers"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ours, form = tmp_path / "ours", ["--format", "sentence-transformers", "--pooling", "mean"]
    assert main(["import", str(make_folder(tmp_path / "hf", "bert")), "--dest", str(ours)]) == 0
    command = ["export", str(ours / "model.pt"), "--data-bin", str(ours), "--dest", str(tmp_path / "st")]
    assert main([*command, *form]) == 0
    model = library.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    (found,) = mteb.evaluate(model, Local(), cache=None).task_results
    encoder = SentenceEncoder.from_pretrained(ours / "model.pt", ours, pooling="mean", device="cpu")
    expected = evaluate_sts(encoder, [StsData("local", {"local": PAIRS}, {})])["local"].spearman
    assert 100 * found.scores["test"][0]["cosine_spearman"] == pytest.approx(expected, abs=0.01)
