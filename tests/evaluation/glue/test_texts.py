"""``glue text``: which texts of a task are written, in which documents, and that ``prepare`` reads them."""

from pathlib import Path

import pytest

from fairseq_clear.cli.main import main
from tests.conftest import SHARED
from tests.preparation.corpora import sentencepiece_model

RTE = """index\tsentence1\tsentence2\tlabel
0\tA cat "sat.\tA cat sat.\tentailment
1\tDogs ran.\tNo dog ran.\tnot_entailment
2\tDogs ran.\tDogs ran.\tentailment
3\tOnly one.\t \tentailment
"""
DEV = "index\tsentence1\tsentence2\tlabel\n0\tDev one.\tDev two.\tentailment\n"
SEPARATE = 'A cat "sat.\n\nA cat sat.\n\nDogs ran.\n\nNo dog ran.\n\nDogs ran.\n\nDogs ran.\n\nOnly one.\n'


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """The folder of GLUE with small files of RTE and CoLA."""
    for task, files in {
        "rte": {"train.tsv": RTE, "dev.tsv": DEV},
        "CoLA": {"train.tsv": "g\t1\t\tOne is.\ng\t0\t*\tTwo are is.\ng\t1\t\tOne is.\n"},
    }.items():
        (tmp_path / "glue" / task).mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / "glue" / task / name).write_text(text)
    return tmp_path / "glue"


def write(glue: Path, task: str, *flags: str) -> int:
    dest = glue.parent / "out"
    return main(["glue", "text", "--glue-dir", str(glue), "--tasks", task, "--dest", str(dest), *flags])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), SEPARATE),
        (("--pairs", "separate"), SEPARATE),
        (
            ("--pairs", "joined"),
            'A cat "sat. A cat sat.\n\nDogs ran. No dog ran.\n\nDogs ran. Dogs ran.\n\nOnly one.\n',
        ),
        (("--splits", "train", "dev"), SEPARATE + "\nDev one.\n\nDev two.\n"),
        (("--splits", "dev"), "Dev one.\n\nDev two.\n"),
    ],
)
def test_each_text_is_a_document(glue: Path, flags: tuple[str, ...], expected: str) -> None:
    assert write(glue, "rte", *flags) == 0
    assert (glue.parent / "out" / "RTE.txt").read_text() == expected


def test_prepare_reads_what_was_written(glue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write(glue, "CoLA") == 0
    text = tmp_path / "out" / "CoLA.txt"
    assert capsys.readouterr().out == f"CoLA: 3 texts; wrote {text}\n"
    assert (
        text.read_text() == "One is.\n\nTwo are is.\n\nOne is.\n"
    )  # a file without header; a text that is there twice
    model = sentencepiece_model(tmp_path / "m.model")
    command = ["prepare", text, "--dest", tmp_path / "d", "--spm-model", model, "--workers", "1"]
    assert main([str(part) for part in command]) == 0
    assert "train: 2 documents, 2 sentences" in capsys.readouterr().out


def test_malformed_lines_are_an_error_or_counted(glue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(glue / "rte" / "train.tsv", "a") as stream:
        stream.write("4\ttoo few\tcolumns\n")
    assert write(glue, "RTE") == 2
    error = capsys.readouterr().err
    assert "train.tsv:6: 3 tab-separated columns" in error and "--drop-malformed" in error and error.count("\n") == 1
    assert list((glue.parent / "out").iterdir()) == []
    assert write(glue, "RTE", "--drop-malformed") == 0
    assert "RTE: 7 texts; 1 malformed lines dropped; wrote" in capsys.readouterr().out
    assert (glue.parent / "out" / "RTE.txt").read_text() == SEPARATE


@pytest.mark.parametrize(
    ("task", "flags", "message"),
    [
        ("CoLA", ("--dest", __file__), f"--dest {__file__}: cannot write it (File exists)"),
        ("XNLI", (), "--tasks XNLI: no such task of GLUE"),
        ("AX", (), "--tasks AX: has no training data"),
        ("QQP", (), "has no folder QQP"),
        ("CoLA", ("--splits", "dev"), "dev.tsv: cannot read it"),
    ],
)
def test_mistakes_write_nothing(
    glue: Path, task: str, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert write(glue, task, *flags) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert list(glue.parent.glob("out/*")) == []


def test_a_file_is_replaced_only_where_asked_for(glue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write(glue, "CoLA") == 0
    assert write(glue, "CoLA") == 2 and "CoLA.txt: exists already" in capsys.readouterr().err
    assert write(glue, "CoLA", "--overwrite") == 0


@pytest.mark.real
@pytest.mark.skipif(not (SHARED / "glue" / "RTE").is_dir(), reason="needs glue/RTE of the shared data")
def test_the_real_tasks(tmp_path: Path) -> None:
    assert (
        main(["glue", "text", "--glue-dir", str(SHARED / "glue"), "--tasks", "RTE", "CoLA", "--dest", str(tmp_path)])
        == 0
    )
    for name, texts in (("RTE", 2 * 2490), ("CoLA", 8551)):
        assert sum(map(bool, (tmp_path / f"{name}.txt").read_text().split("\n"))) == texts
