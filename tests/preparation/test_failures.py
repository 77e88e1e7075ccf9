"""Whatever goes wrong: one line that says what, and nothing left on disk."""

import errno
import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.output_folder import output_folder, signals_raise
from fairseq_clear.processes import worker_pool
from tests.preparation.corpora import gpt2_files, sentencepiece_model, write_corpus
from tests.preparation.test_prepare import make


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.txt", 30)


def fails(dest: Path, *inputs: Path, **options: object) -> str:
    """The message of the UserError, after checking that nothing was written."""
    before = sorted(dest.parent.rglob("*")) if dest.parent.exists() else None
    with pytest.raises(UserError) as caught:
        make(dest, *inputs, **options)
    assert (sorted(dest.parent.rglob("*")) if dest.parent.exists() else None) == before
    return str(caught.value)


CORPUS, EMPTY, JSONL = (Path(name) for name in ("corpus.txt", "empty.txt", "in.jsonl"))
DE = (("de", CORPUS),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valid_share": 0.0}, "--valid-share 0.0"),
        ({"shards": 0}, "--shards 0"),
        ({"shards": 30}, "--shards 30"),
        ({"document_start": "["}, "--document-start ["),
        ({"split_sentences": "lines", "language": "DE"}, "--language DE: give a lower-case code"),
        ({"gpt2_vocab_bpe": Path("x")}, "--gpt2-encoder-json and --gpt2-vocab-bpe"),
        ({"dictionary": Path("x")}, "--dict "),
        ({"spm_model": Path("gone.model")}, "gone.model: "),
        ({"tokenizer_dir": Path("gone")}, "gone: no such folder"),
        ({"valid": (EMPTY,)}, "empty.txt: "),
        ({"valid": (CORPUS,)}, "corpus.txt: is both input and --valid"),
        ({"vocab_size": 100}, "--vocab-size 100"),
        ({"vocab_size": 3_000_000_000}, "--vocab-size 3000000000"),
        ({"inputs": ()}, "no input"),
        ({"inputs": (EMPTY,)}, "empty.txt: "),
        ({"inputs": (Path("single.txt"),)}, "--valid-share: "),
        ({"inputs": (Path("bad.txt"),), "dest": Path("new/deep/d")}, "bad.txt:"),
        ({"dest": CORPUS}, "corpus.txt"),
        ({"dest": CORPUS, "overwrite": True}, "corpus.txt"),
        ({"dest": Path("old"), "overwrite": True, "inputs": (Path("old/c.txt"),)}, "is in --dest"),
        ({"dest": Path("home"), "overwrite": True}, "home: has no train.idx or shard0/train.idx"),
        ({"dest": Path("10:30")}, "10:30: fairseq separates data folders by ':'"),
        ({"paraphrase": DE, "split_sentences": "lines"}, "--split-sentences and --paraphrase"),
        ({"paraphrase": DE, "text_only": True}, "--text-only and --paraphrase"),
        ({"paraphrase": DE, "valid": (CORPUS,)}, "--valid and --paraphrase"),
        ({"paraphrase": (("original", Path("x")),)}, "--paraphrase original=...: "),
        ({"paraphrase": (("a/b", Path("x")),)}, "--paraphrase a/b=...: "),
        ({"paraphrase": (("de", Path("gone.txt")),)}, "gone.txt: no such file"),
        ({"paraphrase": DE * 2}, "--paraphrase: 2 files for de, but 1 inputs"),
        ({"paraphrase": (("de", JSONL),)}, "in.jsonl: --paraphrase"),
        ({"paraphrase": DE, "inputs": (JSONL,)}, "in.jsonl: --paraphrase"),
    ],
    ids=str,
)
def test_one_line_names_the_flag_and_nothing_is_written(options, message, corpus, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    EMPTY.write_text("\n \u200b\n\ufeff\n", encoding="utf-8")
    Path("single.txt").write_text("one\ntwo\n")
    JSONL.write_text('{"text": "a"}\n{"text": "b"}\n')
    Path("bad.txt").write_bytes(corpus.read_bytes() + b"\xff\n")
    for name in ("old/train.idx", "home/dict.txt"):  # the latter as export --format fairseq writes it
        Path(name).parent.mkdir()
        Path(name).touch()
    write_corpus(Path("old/c.txt"), 9)
    chosen = {"inputs": (CORPUS,), "dest": Path("d"), **options}
    assert message in fails(chosen.pop("dest"), *chosen.pop("inputs"), **chosen)
    assert not Path("new").exists()


def test_tokenizers_that_do_not_fit(tmp_path: Path, corpus: Path) -> None:
    clash = sentencepiece_model(tmp_path / "mask.model", user_defined_symbols=["<mask>"])
    broken = sentencepiece_model(tmp_path / "break.model", user_defined_symbols=["a\nb"])
    (tmp_path / "wrong.txt").write_text("no count\n")
    _, merges = gpt2_files(tmp_path)
    for options, said in (
        ({"spm_model": clash}, "piece '<mask>' is a symbol that the task adds"),
        ({"spm_model": broken}, "contains a line break"),
        ({"spm_model": clash, "dictionary": tmp_path / "wrong.txt"}, "wrong.txt: not a dict.txt"),
        ({"gpt2_encoder_json": merges, "gpt2_vocab_bpe": merges}, "not GPT-2's"),
    ):
        assert said in fails(tmp_path / "d", corpus, **options)


@pytest.mark.parametrize(
    "stage", ["preparing._write_manifests", "preparing.install_tokenizer", "binarize.Dataset.append"]
)
@pytest.mark.parametrize("failure", [RuntimeError("bug"), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_failures_half_way_leave_nothing(tmp_path, corpus, monkeypatch, stage, failure) -> None:
    reached = []

    def broken(*arguments: object) -> None:
        reached.extend(os.listdir(tmp_path))
        raise failure

    monkeypatch.setattr(f"fairseq_clear.preparation.{stage}", broken)
    expected = UserError if isinstance(failure, OSError) else type(failure)
    with pytest.raises(expected, match="No space left|bug|^$"):
        make(tmp_path / "d", corpus)
    assert ".d.partial" in reached  # the negative control: something was there
    assert os.listdir(tmp_path) == ["corpus.txt"]


def test_a_full_disk_is_that_of_the_copy(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    model = sentencepiece_model(tmp_path / "spm.model")
    monkeypatch.setattr("os.sendfile", full)  # with which shutil copies
    assert "/.d.partial/sentencepiece.bpe.model: No space left" in fails(tmp_path / "d", corpus, spm_model=model)


def test_a_failed_overwrite_keeps_the_old_folder(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "d", corpus)
    before = (tmp_path / "d" / "clear.json").read_bytes()
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if str(source).endswith(".partial"):
            raise OSError(errno.EIO, "disk on fire")
        rename(source, target)

    monkeypatch.setattr("fairseq_clear.output_folder.os.rename", refuse)
    with pytest.raises(UserError, match="disk on fire"):
        make(tmp_path / "d", corpus, overwrite=True)
    assert (tmp_path / "d" / "clear.json").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["corpus.txt", "d"]


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".d.replaced"  # without a newer d it is the only copy
    for folder in (left, tmp_path / ".d.partial"):
        folder.mkdir()
        (folder / "old").touch()
    with output_folder(tmp_path / "d", overwrite=False) as folder:
        assert os.listdir(folder) == []
        (folder / "dict.txt").write_text("")
    assert sorted(os.listdir(tmp_path)) == [".d.replaced", "d"]
    with output_folder(tmp_path / "d", overwrite=True, markers=("dict.txt",)):
        pass
    assert os.listdir(tmp_path) == ["d"]


def test_a_folder_that_cannot_be_copied_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", source, None, target)

    (tmp_path / "source").mkdir()
    for name in ("one", "two"):
        (tmp_path / "source" / name).touch()
    said = r"^\S+\.d\.partial/(one|two): No space left on device; nothing was written; fix this and rerun$"
    with pytest.raises(UserError, match=said), output_folder(tmp_path / "d", overwrite=False) as folder:
        shutil.copytree(tmp_path / "source", folder, dirs_exist_ok=True, copy_function=refuse)
    assert os.listdir(tmp_path) == ["source"]


def test_without_locks_a_folder_that_exists_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with output_folder(tmp_path / "d", overwrite=False) as folder:
        with pytest.raises(UserError, match=r"\.d\.partial: exists; remove it"), output_folder(tmp_path / "d", False):
            pass
        (folder / "dict.txt").touch()
    assert os.listdir(tmp_path / "d") == ["dict.txt"]


def test_a_killed_worker_is_reported_and_the_others_end() -> None:
    with pytest.raises(UserError, match="fewer --workers"), worker_pool(2) as pool:
        processes = multiprocessing.active_children()
        assert len(processes) == 2
        pool.submit(signal.raise_signal, signal.SIGKILL).result()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid or 0, 0)


def test_a_signal_in_a_finalizer_ends_the_command_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python ignores an exception that is raised in ``__del__``."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: ignored.append(error.exc_type))

    class Finalized:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit, match="143"), output_folder(tmp_path / "d", overwrite=False):
        Finalized()
        assert ignored == [SystemExit]
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """nohup starts a command with SIGHUP ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_raise():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
