"""``fairseq-clear mine`` as a user types it, and training on what it writes."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch

from fairseq_clear.cli.main import main
from tests.conftest import ROOT, WORDS, run, tool

TOYS = "tests.evaluation.toys"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """40 pairs with two words in common."""
    path = tmp_path / "pairs.tsv"
    rows = [(WORDS[n], WORDS[(n * 7 + 1) % 64], WORDS[(n * 3 + 2) % 64]) for n in range(40)]
    path.write_text("".join(f"{a} {b} {c}\t{a} {b} {b} {WORDS[-1]}\n" for a, b, c in rows))
    return path


def mine(*flags: str | Path) -> int:
    return main(["mine", *map(str, flags)])


def test_the_folder_and_the_table(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    further, dest = tmp_path / "more.jsonl", tmp_path / "out" / "mined"
    also = tmp_path / "also" / "more.jsonl"
    also.parent.mkdir()
    also.write_text('{"body": "nuju"}\n')
    further.write_text('{"body": "bada kefe"}\n{"body": "ligi\\nmoho"}\n')
    flags = (
        *("--candidates", further, also, "--text-field", "body", "--negatives", "2", "--margin", "0.02"),
        *("--first-rank", "2"),
    )
    assert mine("--pairs", pairs, "--encoder", f"{TOYS}:Letters", *flags, "--dest", dest) == 0
    out, err = capsys.readouterr()
    assert err == ""
    report = json.loads((dest / "mine.json").read_text())
    kept = report["counts"]["kept"]
    assert report["counts"] == {"pairs": 40, "kept": kept, "candidates": 43} and 0 < kept <= 40
    assert sorted(path.name for path in dest.iterdir()) == sorted([*report["files"], "mine.json"])
    for name, digest in report["files"].items():
        content = (dest / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest and content.count(b"\n") == kept
    assert set(report["inputs"]) == {"pairs.tsv", str(further), str(also)} and report["settings"]["margin"] == 0.02
    assert out == f"pairs 40; kept {kept}; candidates 43; wrote {dest}\n"
    means = [report["mean_similarity"]["positive"], *report["mean_similarity"]["negatives"]]
    assert means[0] > means[1] + 0.02 and means[1] > means[2]
    assert 2 <= report["mean_rank"][0] < report["mean_rank"][1]


@pytest.mark.slow
def test_from_pairs_to_training(pairs: Path, tmp_path: Path, checkpoint: Path, data_bin: Path) -> None:
    """A checkpoint mines, and the commands of the documentation train on the result."""
    flags = ("--data-bin", data_bin, "--tokenizer", "whitespace", "--negatives", "2")
    assert mine("--pairs", pairs, "--encoder", checkpoint, *flags, "--dest", tmp_path / "mined") == 0
    names = ("positive", "negative1", "negative2")
    files = [f"{name}={tmp_path / 'mined' / name}.txt" for name in names]
    prepare = ("prepare", tmp_path / "mined" / "query.txt", "--paraphrase", *files, "--document-start", ".")
    small = ("--dest", tmp_path / "mined-bin", "--vocab-size", "300", "--valid-share", "0.1")
    assert main([str(word) for word in (*prepare, *small)]) == 0
    log = run(
        *(*tool("train"), tmp_path / "mined-bin", "--user-dir", ROOT / "fairseq_clear", "--task", "clear_lm"),
        *("--criterion", "clear_nt_xent", "--views", "paraphrase:original,positive", "--sample-break-mode", "eos"),
        *("--hard-negatives", "negative1,negative2", "--cpu", "--save-dir", tmp_path / "run", "--max-update", "3"),
        *("--arch", "clear_roberta_tiny", "--mlm-weight", "0", "--tokens-per-sample", "24", "--batch-size", "6"),
        *("--optimizer", "adam", "--lr", "0.001", "--log-format", "json", "--log-interval", "1"),
    )
    # 12 queries: each sees 10 views and 12 hard negatives, less those that are texts of the batch
    counts = [float(n) for n in re.findall(r'"negatives_per_query": "?([\d.]+)', log.stdout + log.stderr)]
    assert len(counts) >= 3 and all(14 < count <= 22 for count in counts[:3])
    assert torch.load(tmp_path / "run" / "checkpoint_last.pt", weights_only=False)["model"]
