"""``fairseq-clear embed`` with several workers: the bytes of one process, resuming after a kill, and one line for an error."""

import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.evaluation import embedding_files
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from tests.conftest import WORDS, rejected, run, run_workers

pytestmark = pytest.mark.slow

BLOCK = 200  # sentences, for 10,000
LINES = 3 * BLOCK + 50  # four blocks
# main() of fairseq-clear with small blocks
CLI = f"""
import os, signal, sys
from fairseq_clear.shared_work import join_workers
join_workers()  # before torch is imported, as main does
from fairseq_clear.evaluation import embedding_files
embedding_files.BLOCK = {BLOCK}
from fairseq_clear.cli.main import main
# here
sys.exit(main(sys.argv[1:]))
"""
# The same, in which one worker is killed or fails at its second block
FAIL = CLI.replace(
    "# here",
    """
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
encode, calls = SentenceEncoder.encode_block, []
def failing(*args, **kwargs):
    calls.append(1)
    if len(calls) == 2 and os.environ.get("RANK", "0") == "{rank}":
        {action}
    return encode(*args, **kwargs)
SentenceEncoder.encode_block = failing
""",
)
DIE, ERROR = "os.kill(os.getpid(), signal.SIGKILL)", "raise OSError(28, 'No space left on device')"


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with mock.patch.object(embedding_files, "BLOCK", BLOCK):
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(8)
    path = tmp_path_factory.mktemp("text") / "in.txt"
    path.write_text("".join(" ".join(rng.choices(WORDS, k=rng.randint(0, 4))) + "\n" for _ in range(LINES)))
    return path


@pytest.fixture(scope="module")
def command(source: Path, checkpoint: Path, data_bin: Path) -> list[str]:
    flags = ["--checkpoint", checkpoint, "--data-bin", data_bin, "--tokenizer", "whitespace"]
    return list(map(str, ["embed", source, *flags, "--output"]))


@pytest.fixture(scope="module")
def whole(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "whole.npy"
    assert main([*command, str(path)]) == 0
    assert np.load(path).shape == (LINES, 32)
    return path.read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_workers_write_the_bytes_of_one_process(whole: bytes, command: list[str], tmp_path: Path) -> None:
    output = tmp_path / "out.npy"
    ended = run_workers(3, sys.executable, "-c", CLI, *command, str(output))
    assert output.read_bytes() == whole and names(tmp_path) == ["out.npy"]
    assert ended[0].stdout.startswith(f"{LINES:,} sentences, dimension 32; 0 cut at the model's length; ")
    assert [worker.stdout for worker in ended[1:]] == ["", ""]


@pytest.mark.parametrize(("count", "rank", "action"), [(1, 0, DIE), (2, 0, ERROR), (2, 1, DIE), (2, 1, ERROR)])
def test_a_job_that_lost_a_worker_resumes(count, rank, action, whole, command, tmp_path, capsys) -> None:
    output = tmp_path / "out.npy"
    failing = [sys.executable, "-c", FAIL.format(rank=rank, action=action), *command, str(output)]
    # fresh: torch reads whether it prints warnings when it is imported
    ended = run_workers(count, *failing, check=False, fresh=rank == 0) if count > 1 else [run(*failing, check=False)]
    said = "".join(worker.stderr for worker in ended)
    # When worker 0 ends, the store of who reported what ends too, unless torchrun keeps it in a process of its own.
    is_forgotten = action == ERROR and count > 1 and rank == 0
    lines = int(action == ERROR or count > 1)
    assert lines <= said.count("\n") <= lines + is_forgotten, said
    assert action == DIE or "No space left on device; finished blocks are kept" in said
    assert all(worker.returncode for worker in ended) and names(tmp_path) == ["out.npy.partial"]
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "out.npy.partial").glob("[0-9]*.json")}
    assert 0 < len(finished) < 4
    kept = shutil.copytree(tmp_path / "out.npy.partial", tmp_path / "kept")
    rejected(capsys, [*command, output, "--normalize"], "was started with another normalize; give the same")
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    (tmp_path / "out.npy.partial" / "0.json").write_text("{")
    rejected(capsys, [*command, output], "0.json: not valid JSON")
    shutil.copy2(kept / "0.json", tmp_path / "out.npy.partial")
    assert main([*command, str(output)]) == 0
    assert output.read_bytes() == whole


def test_an_error_of_all_workers_is_one_line(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "broken.pt").write_text("not a checkpoint")
    fairseq_clear = (sys.executable, "-m", "fairseq_clear.cli")
    for more, message in [
        ([*command, str(tmp_path / "out.npy"), "--checkpoint", str(tmp_path / "broken.pt")], "not a complete"),
        ([*command, str(tmp_path / "out.jsonl")], "several workers need an input file and --output FILE.npy"),
    ]:
        ended = run_workers(2, *fairseq_clear, *more, check=False)
        # forked after torch was imported with its warnings on, here of the worker that ended first
        said = [line for worker in ended for line in worker.stderr.splitlines() if not line.startswith("[W")]
        assert [worker.returncode for worker in ended] == [2, 2]
        assert len(said) == 1 and message in said[0], said
    assert names(tmp_path) == ["broken.pt"]


def test_a_command_of_one_process_does_not_wait_for_others(monkeypatch, capsys) -> None:
    """WORLD_SIZE may be that of a pod or a batch script; joining would wait for its other workers."""
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    joined = mock.Mock()
    monkeypatch.setattr("fairseq_clear.cli.main.join_workers", joined)
    rejected(
        capsys,
        ["plan", "--config", "clear/tiny", "--gpus", "1"],
        "plan: error: runs in one process; start it without torchrun, or unset WORLD_SIZE",
    )
    assert main(["user-dir"]) == 0
    assert not joined.called


def test_two_jobs_do_not_write_one_output(command: list[str], tmp_path: Path) -> None:
    output = tmp_path / "out.npy"
    inside = FAIL.format(rank=0, action="print(main(sys.argv[1:])); sys.exit()")
    assert "another process is writing it" in run(sys.executable, "-c", inside, *command, str(output)).stderr


@pytest.fixture
def searches(checkpoint: Path, data_bin: Path, tmp_path: Path) -> dict[str, list[str]]:
    """The flags of retrieval and mine, but for the output; queries and passages are two blocks each."""
    rng = random.Random(3)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) for _ in range(400)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(texts[::2], texts[1::2], strict=True)))
    flags = ["--pairs", tmp_path / "pairs.tsv", "--encoder", checkpoint, "--data-bin", data_bin]
    flags += ["--tokenizer", "whitespace", "--batch-size", "2", "--query-prefix", f"{WORDS[0]} "]
    return {name: [name, *map(str, flags), flag] for name, flag in (("retrieval", "--output"), ("mine", "--dest"))}


def test_the_encoding_of_retrieval_and_mine_is_shared(searches: dict[str, list[str]], tmp_path: Path) -> None:
    for place in ("alone", "shared"):
        (tmp_path / place).mkdir()
    for name, count in (("retrieval", 2), ("mine", 3)):
        alone, shared = tmp_path / "alone" / name, tmp_path / "shared" / name
        fairseq_clear = [sys.executable, "-m", "fairseq_clear.cli", *searches[name]]
        before = run(*fairseq_clear, alone)
        ended = run_workers(count, *fairseq_clear, shared)
        assert "".join(worker.stdout + worker.stderr for worker in ended[1:]) == ""
        assert ended[0].stdout.replace(str(shared), str(alone)) == before.stdout
    files = names(alone)
    assert files == ["mine.json", "negative1.txt", "positive.txt", "query.txt"] == names(shared)
    assert [(shared / file).read_bytes() for file in files] == [(alone / file).read_bytes() for file in files]
    assert names(alone.parent) == names(shared.parent) == ["mine", "retrieval"]


@pytest.mark.parametrize(("name", "count"), [("mine", 1), ("mine", 2), ("retrieval", 1)])
def test_a_killed_search_resumes(
    name: str, count: int, searches: dict[str, list[str]], tmp_path: Path, monkeypatch
) -> None:
    command, dest, partial = searches[name], tmp_path / "out", tmp_path / "out.partial"
    failing = [sys.executable, "-c", FAIL.format(rank=count - 1, action=DIE), *command, str(dest)]
    ended = run_workers(count, *failing, check=False) if count > 1 else [run(*failing, check=False)]
    assert all(worker.returncode for worker in ended) and not dest.exists()
    kept = sorted(partial.glob("vectors-*.npy"))
    assert 0 < len(kept) < 4
    encode, encoded = SentenceEncoder.encode_block, list[int]()

    def counting(self: SentenceEncoder, texts: list[str], *args: object, **options: object) -> object:
        encoded.append(len(texts))
        return encode(self, texts, *args, **options)

    def encodes(*words: object) -> int:
        """How many texts a command encodes."""
        encoded.clear()
        assert main([*command, *map(str, words)]) == 0
        return sum(encoded)

    monkeypatch.setattr(SentenceEncoder, "encode_block", counting)
    for number, change in enumerate((["--pooling", "max"], ["--query-prefix", f"{WORDS[1]} "])) if count == 1 else ():
        other = tmp_path / "other" / str(number)
        shutil.copytree(partial, other.with_name(f"{number}.partial"))
        assert encodes(other, *change) == 400  # not with vectors of other settings
    shutil.rmtree(tmp_path / "other", ignore_errors=True)
    whole = kept[0].read_bytes()
    kept[0].write_bytes(whole[:-1])
    assert main([*command, str(dest)]) == 2 and not dest.exists()  # damaged
    kept[0].write_bytes(whole)
    assert 0 < encodes(dest) < 400  # from the finished blocks
    assert names(tmp_path) == ["out", "pairs.tsv"]
    assert encodes(tmp_path / "again") == 400
    first, second = (
        {path.name: path.read_bytes() for path in (top, *top.glob("*")) if path.is_file() and path.suffix != ".json"}
        for top in (dest, tmp_path / "again")
    )
    assert [*first.values()] == [*second.values()]
