"""``fairseq-clear embed`` in parts: --shard and --join, --devices, and what is written when something fails."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fairseq_clear.cli.embed import Embed, read_devices
from fairseq_clear.cli.main import main
from fairseq_clear.evaluation.embedding_files import BLOCK
from tests.conftest import WORDS, run

pytestmark = pytest.mark.slow

LINES = 2 * BLOCK + 500  # three blocks
Call = Callable[..., int]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(8)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(0, 4))) for _ in range(LINES)]
    path = tmp_path_factory.mktemp("text") / "in.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def flags(checkpoint: Path, data_bin: Path) -> list[str]:
    return ["--checkpoint", str(checkpoint), "--data-bin", str(data_bin), "--tokenizer", "whitespace"]


@pytest.fixture(scope="module")
def embed(source: Path, flags: list[str]) -> Call:
    return lambda output, *more, text=source: main(["embed", str(text), *flags, "--output", str(output), *more])


@pytest.fixture(scope="module")
def whole(embed: Call, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output without parts."""
    path = tmp_path_factory.mktemp("whole") / "whole.npy"
    assert embed(path) == 0
    assert np.load(path).shape == (LINES, 32)
    return path


@pytest.fixture(scope="module")
def parts(embed: Call, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the two parts of out.npy."""
    folder = tmp_path_factory.mktemp("parts")
    for number in (2, 1):
        assert embed(folder / "out.npy", "--shard", f"{number}/2") == 0
    return folder


@pytest.fixture
def folder(parts: Path, tmp_path: Path) -> Path:
    """A copy of the parts."""
    return Path(shutil.copytree(parts, tmp_path / "copy"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_parts_join_to_the_bytes_of_a_run_without_parts(
    whole: Path, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    files = [f"out.npy.part-{number}-of-2.{suffix}" for number in (1, 2) for suffix in ("json", "npy")]
    assert names(folder) == files
    # contiguous, and of whole blocks
    sizes = [len(np.load(folder / name)) for name in files if name.endswith("npy")]
    assert sizes == [BLOCK, LINES - BLOCK]
    assert main(["embed", "--join", "2", "--output", str(folder / "out.npy")]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{LINES:,} sentences, dimension 32; 0 cut at the model's length; 0.00% unknown tokens; ")
    assert out.endswith(f"joined 2 parts; wrote {folder / 'out.npy'}\n") and err == ""
    assert (folder / "out.npy").read_bytes() == whole.read_bytes()
    assert names(folder) == ["out.npy"]


def test_more_parts_than_blocks(embed: Call, tmp_path: Path) -> None:
    """Parts without a line have no row."""
    text, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    text.write_text("ba da\nke\n\n")
    for number in range(1, 4):
        assert embed(output, "--shard", f"{number}/3", text=text) == 0
    assert [path.stat().st_size > 0 for path in sorted(tmp_path.glob("*-of-3.jsonl"))] == [False, False, True]
    assert main(["embed", "--join", "3", "--output", str(output)]) == 0
    assert embed(tmp_path / "whole.jsonl", text=text) == 0
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert [json.loads(line)["text"] for line in output.read_text().splitlines()] == ["ba da", "ke", ""]


def test_a_finished_part_is_kept(embed: Call, folder: Path, capsys: pytest.CaptureFixture) -> None:
    part = folder / "out.npy.part-1-of-2.npy"
    before = part.stat().st_ino
    assert embed(folder / "out.npy", "--shard", "1/2") == 0
    assert capsys.readouterr().out == f"part 1/2: is finished already, {part}\n"
    assert part.stat().st_ino == before
    assert embed(folder / "out.npy", "--shard", "1/2", "--normalize") == 2
    assert f"{part}: exists, made with another normalize; add --overwrite" in capsys.readouterr().err
    assert embed(folder / "out.npy", "--shard", "1/2", "--normalize", "--overwrite") == 0
    np.testing.assert_allclose(np.linalg.norm(np.load(part), axis=1), 1, atol=1e-5)


def change(folder: Path, name: str, *keys: str) -> None:
    """Change one entry of the record of part 2."""
    path = folder / "out.npy.part-2-of-2.json"
    record = json.loads(path.read_text())
    entry = record["source"]
    for key in keys:
        entry = entry[key]
    entry[name] = "changed"
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "out.npy.part-2-of-2.json").unlink(), "not finished: out.npy.part-2-of-2.npy; run"),
        (lambda folder: (folder / "out.npy.part-1-of-2.npy").unlink(), "not finished: out.npy.part-1-of-2.npy; run"),
        (lambda folder: (folder / "out.npy.part-2-of-2.json").write_text("{"), "not finished: out.npy.part-2-of-2.npy"),
        (lambda folder: change(folder, "sha256", "input"), "part-2-of-2.npy was made with another input than part 1"),
        (lambda folder: change(folder, "checkpoint"), "was made with another checkpoint than part 1"),
        (lambda folder: change(folder, "pooling"), "was made with another pooling than part 1; run --shard 2/2 again"),
        (lambda folder: os.truncate(folder / "out.npy.part-2-of-2.npy", 999), "has changed since it was written"),
        (
            lambda folder: (folder / "out.npy.part-1-of-2.npy").write_bytes(
                (folder / "out.npy.part-1-of-2.npy").read_bytes()[:-1] + b"x"
            ),
            "part-1-of-2.npy: has changed since it was written",
        ),
    ],
)
def test_parts_that_do_not_belong_together(
    folder: Path, damage: Callable[[Path], object], message: str, capsys: pytest.CaptureFixture
) -> None:
    damage(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(["embed", "--join", "2", "--output", str(folder / "out.npy")]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_every_missing_part_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["embed", "--join", "8", "--output", str(tmp_path / "out.npy")]) == 2
    err = capsys.readouterr().err
    assert "part-1-of-8.npy, out.npy.part-2-of-8.npy" in err and err.endswith(
        "part-5-of-8.npy and 3 more; run --shard 1/8 ...\n"
    )


def test_what_a_record_says(source: Path, checkpoint: Path, data_bin: Path, parts: Path) -> None:
    record = json.loads((parts / "out.npy.part-2-of-2.json").read_text())
    digests = {
        "input": source.read_bytes(),
        "checkpoint": checkpoint.read_bytes(),
        "vocabulary": (data_bin / "dict.txt").read_bytes(),
    }
    expected = {name: hashlib.sha256(content).hexdigest() for name, content in digests.items()}
    expected["input"] = {"count": LINES, "sha256": expected["input"]}
    expected |= {"tokenizer": {"whitespace": ""}, "pooling": "mean", "dimension": 32, "normalize": False}
    assert record["source"] == {**expected, "batch size": 32, "block": BLOCK}
    vectors = (parts / "out.npy.part-2-of-2.npy").read_bytes()
    assert record["sha256"] == hashlib.sha256(vectors).hexdigest() and record["rows"] == LINES - BLOCK


@pytest.mark.parametrize("suffix", ["npy", "jsonl"])
def test_devices_give_the_bytes_of_one(
    suffix: str, whole: Path, embed: Call, tmp_path: Path, capsys: pytest.CaptureFixture,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if suffix == "jsonl":
        request.getfixturevalue("forked_workers")
    output, expected = tmp_path / f"out.{suffix}", whole
    if suffix == "jsonl":
        expected = tmp_path / "whole.jsonl"
        assert embed(expected) == 0
    before = names(tmp_path)
    capsys.readouterr()
    assert embed(output, "--devices", "cpu,cpu") == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{LINES:,} sentences, dimension 32; ") and err == ""
    assert out.endswith(f"; on cpu, cpu; wrote {output}\n")
    assert names(tmp_path) == sorted([*before, output.name])
    assert output.read_bytes() == expected.read_bytes()


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("no more memory\nand more")


def kill(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(
    ("failing", "message"),
    [
        (fail, r"--devices: the worker of cpu failed \(RuntimeError: no more memory\); nothing was written"),
        (kill, r"a worker process was killed, .*; rerun with fewer --devices or a smaller --batch-size"),
    ],
)
def test_a_worker_that_fails_leaves_nothing(
    failing: Callable[..., None], message: str, embed: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    output = tmp_path / "out.npy"
    output.write_text("old")
    monkeypatch.setattr(Embed, "embed_part", failing)
    assert embed(output, "--devices", "cpu,cpu", "--overwrite") == 2
    err = capsys.readouterr().err
    assert re.search(message, err) and err.count("\n") == 1
    assert names(tmp_path) == ["out.npy"] and output.read_text() == "old"


@pytest.mark.usefixtures("forked_workers")
def test_mistakes_of_workers_are_those_of_one_process(
    embed: Call, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "broken.pt").write_text("not a checkpoint")
    before = names(tmp_path)
    more = ["--checkpoint", str(tmp_path / "broken.pt")]
    assert embed(tmp_path / "out.npy", "--devices", "cpu,cpu", *more) == 2
    err = capsys.readouterr().err
    assert "broken.pt: not a complete checkpoint" in err and err.count("\n") == 1
    assert names(tmp_path) == before


def test_devices_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert read_devices("3") == ["cuda:0", "cuda:1", "cuda:2"]
    assert read_devices("cuda:1,cuda:3") == ["cuda:1", "cuda:3"]


def test_mistakes(source: Path, flags: list[str], embed: Call, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "out.npy"
    text = ["embed", str(source), *flags]
    for arguments, message in [
        ([*text, "--shard", "1/2"], "--shard 1/2: writes no standard output; add --output FILE.npy"),
        ([*text, "--devices", "cpu,cpu"], "--devices cpu,cpu: writes no standard output; add --output"),
        (["embed", "--join", "2"], "--join 2: writes no standard output; add --output"),
        ([*text, "--output", str(output), "--shard", "0/2"], "--shard 0/2: the parts are 1/2 to 2/2"),
        ([*text, "--output", str(output), "--shard", "3/2"], "--shard 3/2: the parts are 1/2 to 2/2"),
        ([*text, "--output", str(output), "--shard", "2"], "--shard 2: give I/N, such as 1/8 for the first of 8 parts"),
        ([*text, "--output", str(output), "--devices", "9"], "--devices 9: device cuda:0: there are 0 CUDA devices"),
        ([*text, "--output", str(output), "--devices", "0"], "--devices 0: give the number of CUDA devices, or names"),
        ([*text, "--output", str(output), "--devices", "cpu,abacus"], "device abacus: no such device"),
        ([*text, "--output", str(output), "--devices", "cpu", "--device", "cpu"], "--devices cpu: names the devices"),
        (
            ["embed", str(source), "--join", "2", "--output", str(output)],
            "--join 2: reads only the parts; leave out INPUT",
        ),
        (["embed", str(source), "--output", str(output)], "--checkpoint, --data-bin: missing; give"),
        (["embed"], "INPUT, --checkpoint, --data-bin: missing; give"),
    ]:
        assert main(arguments) == 2, arguments
        out, err = capsys.readouterr()
        assert err.startswith("fairseq-clear embed: error: ") and message in err, err
        assert err.count("\n") == 1 and out == "" and names(tmp_path) == []
    with pytest.raises(SystemExit):
        embed(output, "--shard", "1/2", "--devices", "cpu")
    assert "not allowed with argument" in capsys.readouterr().err


def test_sizes_of_blocks_are_those_of_the_help() -> None:
    shown = run(sys.executable, "-m", "fairseq_clear.cli", "embed", "--help").stdout
    assert f"up to {BLOCK:,} lines" in " ".join(shown.split())
