"""``fairseq-clear prepare`` as a user runs it: flags reach the settings, processes end cleanly when told to."""

import argparse
import os
import signal
from pathlib import Path

import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.cli.prepare import Prepare
from fairseq_clear.preparation import binarize
from tests.faults import commands
from tests.preparation.corpora import sentencepiece_model, write_corpus


def test_flags_reach_the_settings() -> None:
    def parse(line: str) -> Prepare:
        parser = argparse.ArgumentParser()
        Prepare.add_arguments(parser)
        return Prepare.from_flags(parser.parse_args(line.split()))

    given = parse("a.txt b.txt --dest d --valid v.txt w.txt --overwrite --dict x --split-sentences --seed 7")
    assert given.inputs == (Path("a.txt"), Path("b.txt")) and given.valid == (Path("v.txt"), Path("w.txt"))
    assert given.overwrite and given.dictionary == Path("x") and given.split_sentences == "lines"
    assert (given.seed, given.language, given.paraphrase) == (7, "en", ()) and given.workers >= 1
    given = parse("a.txt --dest d --split-sentences paragraphs --paraphrase de=x=y.txt zh=z.txt --workers 3")
    assert given.split_sentences == "paragraphs" and given.workers == 3
    assert given.paraphrase == (("de", Path("x=y.txt")), ("zh", Path("z.txt")))


@pytest.mark.parametrize(
    ("flags", "is_warned"),
    [((), True), (("--document-start", "file"), False), (("--document-start", "."), False), (("--text-only",), True)],
)
def test_documents_of_one_sentence_are_warned_of(flags, is_warned, tmp_path, capsys) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(4)]
    for file in files:
        file.write_text("the cat sat .\n\nthe dog ran .\n\non the mat .\n")
    model = sentencepiece_model(tmp_path / "m.model")
    dest = tmp_path / ("out.txt" if "--text-only" in flags else "d")
    arguments = ["prepare", *files, "--dest", dest, "--spm-model", model, "--workers", "1", *flags]
    assert main([str(argument) for argument in arguments]) == 0
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if "warning" in line]
    assert len(lines) == is_warned and all("--document-start" in line for line in lines)


def stalled_prepare(*arguments: object) -> int:
    """``prepare`` whose workers say that they have started, and then wait for ever."""

    def stall(*arguments: object, **others: object) -> None:
        os.write(1, b"started\n")
        while True:
            signal.pause()

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell starts with it ignored
    binarize.Encoder.encode = stall
    binarize.PART_BYTES = 500
    return commands.fairseq_clear_command("prepare", *arguments)


@pytest.mark.slow
def test_signals_end_it_and_its_workers_and_leave_nothing(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt", 30)
    model = sentencepiece_model(tmp_path / "m.model")
    arguments = [corpus, "--dest", tmp_path / "new" / "d", "--spm-model", model, "--workers", "2"]
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        child, shown = commands.fork_piped(lambda: stalled_prepare(*arguments))
        assert shown.readline() == "started\n"
        assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [".d.lock", ".d.partial"]
        os.kill(child, number)
        shown.read()  # ends when the workers, who hold the pipe too, have ended
        assert commands.ended(child) == code
        if number != signal.SIGKILL:
            assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "m.model"]
    # after SIGKILL a hidden folder is left, which the next run removes
    assert main(["prepare", *map(str, arguments)]) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["d"]
