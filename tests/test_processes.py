"""Two processes that write the same thing, and processes that are killed."""

import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.files import write_whole
from fairseq_clear.output_folder import output_folder
from fairseq_clear.processes import holds, lock, locked, unlock
from tests.conftest import ROOT
from tests.faults import commands


@contextmanager
def another_process(work: Callable[[], object]) -> Iterator[int]:
    """Run ``work``, a context manager's entry that must be kept, in a forked process that then waits; its process id."""
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        try:
            kept = work()
            os.write(told, b"1")
            signal.pause()
            del kept
        finally:
            os._exit(1)
    os.close(told)
    try:
        assert os.read(ready, 1), "the other process failed"
        yield child
    finally:
        os.close(ready)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def killed(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_lock_ends_with_its_process_although_a_child_of_it_lives(kind: str, tmp_path: Path) -> None:
    path = tmp_path if kind == "folder" else tmp_path / "lock"
    grandchild = tmp_path / "grandchild"

    def hold() -> int:
        held = lock(path)
        child = os.fork()
        if not child:
            signal.pause()
        grandchild.write_text(str(child))
        return held

    with another_process(hold) as child:
        try:
            with pytest.raises(UserError, match="^busy$"), locked(path, "busy"):
                pass
            assert not holds(path)
            killed(child)
            with locked(path, "busy"):
                assert holds(path)
        finally:
            os.kill(int(grandchild.read_text()), signal.SIGKILL)
    unlock(lock(path))


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_work_goes_on_without_locks(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(code, "no lock")

    monkeypatch.setattr("fcntl.flock", no_locks)
    ending = nullcontext() if code != errno.EIO else pytest.raises(OSError, match="no lock")
    with ending, locked(tmp_path / "lock", "busy"):
        assert not holds(tmp_path / "lock")


def test_a_file_that_was_renamed_meanwhile_is_not_locked(tmp_path: Path) -> None:
    """A writer that waited for another one does not write into the file that the other has put in place."""
    first = write_whole(tmp_path / "x")
    first.__enter__().write(b"first")

    def second() -> None:
        with write_whole(tmp_path / "x") as stream:
            stream.write(b"second, and longer")

    child = os.fork()
    if not child:
        second()
        os._exit(0)
    inode = os.stat(tmp_path / ".x.writing").st_ino
    first.__exit__(None, None, None)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "x").read_bytes() == b"second, and longer" and os.listdir(tmp_path) == ["x"]
    assert os.stat(tmp_path / "x").st_ino != inode


def test_what_a_killed_writer_left_is_written_anew(tmp_path: Path) -> None:
    def write() -> object:
        writing = write_whole(tmp_path / "x")
        stream = writing.__enter__()
        stream.write(b"half of a long file")
        stream.flush()
        return writing

    with another_process(write) as child:
        killed(child)
        assert os.listdir(tmp_path) == [".x.writing"]
        with write_whole(tmp_path / "x") as stream:
            stream.write(b"all")
    assert (tmp_path / "x").read_bytes() == b"all" and os.listdir(tmp_path) == ["x"]


def test_two_processes_do_not_write_the_same_folder(tmp_path: Path) -> None:
    def write() -> object:
        writing = output_folder(tmp_path / "d", overwrite=False)
        (writing.__enter__() / "dict.txt").touch()
        return writing

    with another_process(write) as child:
        said = "d: another process is writing it; wait"
        with pytest.raises(UserError, match=said), output_folder(tmp_path / "d", False):
            pass
        assert sorted(os.listdir(tmp_path)) == [".d.lock", ".d.partial"]  # the other's
        killed(child)
        with output_folder(tmp_path / "d", overwrite=False) as folder:
            (folder / "dict.txt").write_text("own")
    assert os.listdir(tmp_path) == ["d"] and (tmp_path / "d" / "dict.txt").read_text() == "own"


@pytest.mark.slow
def test_two_trainings_do_not_share_a_folder(data_bin: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with another_process(lambda: lock(folder)):
        code, text = commands.train_and_read(data_bin, folder)
        (said,) = [line for line in text.splitlines() if line.startswith("ERROR")]
        assert code == 2 and f"--save-dir {folder}: another run is writing there" in said
        assert os.listdir(folder) == []
        code, text = commands.train_and_read(data_bin, folder, "--no-save", "--max-update", "2")
        assert code == 0, text[-2000:]
    for updates in "23":
        assert commands.train_and_read(data_bin, folder, "--max-update", updates)[0] == 0


def test_a_child_is_killed_with_its_parent(tmp_path: Path) -> None:
    """As ``refine`` and ``glue run`` start fairseq-train."""
    code = (
        "import subprocess, sys; from fairseq_clear.processes import die_with_parent\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], preexec_fn={})\n"
        "print(child.pid, flush=True); child.wait()"
    )
    for hook, lives in (("die_with_parent", False), ("None", True)):  # the second is the negative control
        command = [sys.executable, "-c", code.format(hook)]
        parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        handle = os.pidfd_open(child)  # readable once the process has ended
        assert bool(select.select([handle], [], [], 0 if lives else 60)[0]) == (not lives)
        os.close(handle)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
