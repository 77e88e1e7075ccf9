"""``fairseq-clear mine`` as a user types it, and training on what it writes."""

import hashlib
import json
import re
import shlex
import sys
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
    lines = out.splitlines()
    assert lines[0] == f"pairs 40; kept {kept}; dropped {40 - kept}, with fewer than 2 negatives; candidates 43"
    means = [report["mean_similarity"]["positive"], *report["mean_similarity"]["negatives"]]
    assert means[0] > means[1] + 0.02 and means[1] > means[2]
    ranks = ["", *(f"{rank:.1f}" for rank in report["mean_rank"])]
    names = ("positive", "negative1", "negative2")
    assert [line.split() for line in lines[2:5]] == [
        [name, f"{mean:.3f}", *rank.split()] for name, mean, rank in zip(names, means, ranks, strict=True)
    ]
    assert lines[5] == "next:" and len(lines) == 8


def test_an_existing_folder_is_only_replaced_on_request(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--pairs", pairs, "--encoder", f"{TOYS}:Words", "--dest", tmp_path / "mined")
    assert mine(*flags) == 0
    before = (tmp_path / "mined" / "negative1.txt").read_bytes()
    assert mine(*flags, "--first-rank", "2") == 2 and "mined: exists already" in capsys.readouterr().err
    assert (tmp_path / "mined" / "negative1.txt").read_bytes() == before
    assert mine(*flags, "--first-rank", "2", "--overwrite") == 0
    assert (tmp_path / "mined" / "negative1.txt").read_bytes() != before


def test_mistakes_are_one_line_and_write_nothing(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.tsv").write_text("\n")
    before = sorted(tmp_path.iterdir())
    data, ends = ["--pairs", str(pairs)], ["--encoder", f"{TOYS}:Letters", "--dest", str(tmp_path / "mined")]
    for arguments, message in [
        ([], "no pairs: give --pairs"),
        (["--pairs", str(tmp_path / "empty.tsv")], "empty.tsv: holds no pair"),
        ([*data, "--negatives", "0"], "--negatives 0: must be 1 or more"),
        ([*data, "--first-rank", "200"], "--first-rank 200 --last-rank 100: 0 ranks"),
        ([*data, "--margin", "3"], "--margin 3: must be between -2 and 2"),
        ([*data, "--candidates", str(tmp_path / "no.txt")], "no.txt: no such file"),
        ([*data, "--device", "gpu"], "device gpu: no such device"),
        ([*data, "--encoder", "nothing.pt"], "--encoder nothing.pt: neither a checkpoint file nor"),
        ([*data, "--max-similarity", "-1"], "none of the 40 pairs has 1 negatives among 40 candidates"),
        ([*data, "--encoder", f"{TOYS}:broken"], "has no method encode"),
    ]:
        assert main(["mine", *ends, *arguments]) == 2, arguments
        out, err = capsys.readouterr()
        assert err.startswith("fairseq-clear mine: error: ") and message in err, err
        assert err.count("\n") == 1 and out == "" and sorted(tmp_path.iterdir()) == before
    with pytest.raises(SystemExit) as left:
        main(["mine", *ends, *data, "--sample", "best"])
    assert left.value.code == 2 and "invalid choice: 'best'" in capsys.readouterr().err


@pytest.mark.slow
def test_from_pairs_to_training(
    pairs: Path, tmp_path: Path, checkpoint: Path, data_bin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint mines, and the commands that are printed, with their choices filled in, train on the result."""
    flags = ("--data-bin", data_bin, "--tokenizer", "whitespace", "--negatives", "2")
    assert mine("--pairs", pairs, "--encoder", checkpoint, *flags, "--dest", tmp_path / "mined") == 0
    prepare, train = (shlex.split(line) for line in capsys.readouterr().out.splitlines()[-2:])
    dest = tmp_path / "mined-bin"
    prepare[prepare.index("<data-bin>")] = str(dest)
    assert prepare[:2] == ["fairseq-clear", "prepare"] and prepare.pop() == "<tokenizer>"
    small = ("--vocab-size", "300", "--valid-share", "0.1")
    assert "40 paraphrases blank" in run(*tool_of_ours(), *prepare[1:], *small).stdout
    assert train[:2] == ["fairseq-train", "<data-bin>"] and train.pop() == "..."
    train[train.index("fairseq_clear")] = str(ROOT / "fairseq_clear")
    log = run(
        *(*tool("train"), dest, *train[2:], "--cpu", "--save-dir", tmp_path / "run", "--max-update", "3"),
        *("--arch", "clear_roberta_tiny", "--mlm-weight", "0", "--tokens-per-sample", "24", "--batch-size", "6"),
        *("--optimizer", "adam", "--lr", "0.001", "--log-format", "json", "--log-interval", "1"),
    )
    # 12 queries: each sees 10 views and 12 hard negatives, less those that are texts of the batch
    counts = [float(n) for n in re.findall(r'"negatives_per_query": "?([\d.]+)', log.stdout + log.stderr)]
    assert len(counts) >= 3 and all(14 < count <= 22 for count in counts[:3])
    assert torch.load(tmp_path / "run" / "checkpoint_last.pt", weights_only=False)["model"]


def tool_of_ours() -> list[str]:
    """The command line of fairseq-clear by this interpreter."""
    return [sys.executable, "-m", "fairseq_clear.cli"]
