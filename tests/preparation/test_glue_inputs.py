"""A task's texts as a corpus: which texts, in which documents, without labels; samples; the text file."""

import errno
from collections import Counter
from pathlib import Path

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.prepare import prepare
from fairseq_clear.preparation.settings import PrepareSettings
from fairseq_clear.preparation.text_file import write_text
from tests.conftest import SHARED
from tests.preparation.corpora import canonical, documents, sentencepiece_model, write_corpus
from tests.preparation.test_prepare import documents_of

RTE = """index\tsentence1\tsentence2\tlabel
0\tA cat "sat.\tA cat sat.\tentailment
1\tDogs ran.\tNo dog ran.\tnot_entailment
2\tDogs ran.\tDogs ran.\tentailment
3\tOnly one.\t \tentailment
"""
DEV = "index\tsentence1\tsentence2\tlabel\n0\tDev one.\tDev two.\tentailment\n"


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


def text_of(dest: Path, *inputs: Path, **options: object) -> str:
    write_text(PrepareSettings(inputs=inputs, dest=dest, text_only=True, **options))  # type: ignore[arg-type]
    return dest.read_text(encoding="utf-8")


def test_texts_of_pairs_are_documents_of_their_own(glue: Path, tmp_path: Path) -> None:
    expected = ['A cat "sat.', "A cat sat.", "Dogs ran.", "No dog ran.", "Dogs ran.", "Dogs ran.", "Only one."]
    for options in ({}, {"pairs": "separate"}):
        (tmp_path / "out.txt").unlink(missing_ok=True)
        assert text_of(tmp_path / "out.txt", glue, glue_task="rte", **options) == "\n\n".join(expected) + "\n"


def test_pairs_joined(glue: Path, tmp_path: Path) -> None:
    text = text_of(tmp_path / "out.txt", glue, glue_task="RTE", pairs="joined")
    assert text == 'A cat "sat. A cat sat.\n\nDogs ran. No dog ran.\n\nDogs ran. Dogs ran.\n\nOnly one.\n'


def test_dev_only_where_asked_for(glue: Path, tmp_path: Path) -> None:
    assert "Dev" not in text_of(tmp_path / "1.txt", glue, glue_task="RTE")
    both = text_of(tmp_path / "2.txt", glue, glue_task="RTE", glue_splits=("train", "dev"))
    assert both == text_of(tmp_path / "3.txt", glue, glue_task="RTE")[:-1] + "\n\nDev one.\n\nDev two.\n"
    assert text_of(tmp_path / "4.txt", glue, glue_task="RTE", glue_splits=("dev",)) == "Dev one.\n\nDev two.\n"


def test_a_file_without_header_and_its_repeated_text(glue: Path, tmp_path: Path) -> None:
    assert text_of(tmp_path / "1.txt", glue, glue_task="CoLA") == "One is.\n\nTwo are is.\n\nOne is.\n"


def test_the_data_folder_is_that_of_the_text_file(glue: Path, tmp_path: Path) -> None:
    model = sentencepiece_model(tmp_path / "m.model")
    options = {"spm_model": model, "workers": 1}
    prepare(PrepareSettings(inputs=(glue,), dest=tmp_path / "d", glue_task="RTE", **options))  # type: ignore[arg-type]
    text_of(tmp_path / "rte.txt", glue, glue_task="RTE")
    prepare(PrepareSettings(inputs=(tmp_path / "rte.txt",), dest=tmp_path / "e", **options))  # type: ignore[arg-type]
    for split in ("train", "valid"):
        assert documents_of(tmp_path / "d", split) == documents_of(tmp_path / "e", split)
        assert (tmp_path / "d" / f"{split}.bin").read_bytes() == (tmp_path / "e" / f"{split}.bin").read_bytes()


def test_malformed_lines_are_an_error_or_counted(glue: Path, tmp_path: Path) -> None:
    with open(glue / "rte" / "train.tsv", "a") as stream:
        stream.write("4\ttoo few\tcolumns\n")
    with pytest.raises(UserError, match=r"train\.tsv:6: 3 tab-separated columns.*--drop-malformed"):
        text_of(tmp_path / "o.txt", glue, glue_task="RTE")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["glue"]
    options = PrepareSettings(
        inputs=(glue,), dest=tmp_path / "o.txt", glue_task="RTE", drop_malformed=True, text_only=True
    )
    report = write_text(options)
    assert "| 7 documents, 7 sentences, median 1 a document | 1 malformed lines left out |" in report.summary()
    model = sentencepiece_model(tmp_path / "m.model")
    report = prepare(
        PrepareSettings(
            inputs=(glue,), dest=tmp_path / "d", glue_task="RTE", drop_malformed=True, spm_model=model, workers=1
        )
    )
    assert "| 1 malformed lines left out |" in report.summary()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"glue_task": "XNLI"}, "--glue-task XNLI: no task of GLUE with training data; choose from CoLA, SST-2,"),
        ({"glue_task": "AX"}, "--glue-task AX: no task of GLUE with training data"),
        ({"glue_task": "QQP"}, "--glue-task QQP: .*glue: has no folder QQP"),
        ({"glue_task": "CoLA", "glue_splits": ("dev",)}, "dev.tsv: cannot read it"),
        ({"glue_task": "CoLA", "glue_splits": ("test",)}, "--glue-splits test: some of train, dev"),
        ({"glue_task": "RTE", "pairs": "both"}, "--pairs both: choose from separate, joined"),
        ({"glue_task": "RTE", "document_start": "."}, "every text is a document"),
        ({"glue_task": "RTE", "sample": 8}, "--sample 8: the input has 7 sentences"),
        ({"glue_task": "RTE", "sample": 0}, "--sample 0: must be 1 or more"),
        ({"pairs": "joined"}, "--pairs: belongs to --glue-task"),
        ({"drop_malformed": True}, "--drop-malformed: belongs to --glue-task"),
    ],
)
@pytest.mark.parametrize("text_only", [True, False])
def test_what_cannot_be(glue: Path, tmp_path: Path, options: dict[str, object], message: str, text_only: bool) -> None:
    before = sorted(tmp_path.rglob("*"))
    chosen = PrepareSettings(inputs=(glue,), dest=tmp_path / "o.txt", workers=1, text_only=text_only, **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message) as caught:
        (write_text if text_only else prepare)(chosen)
    assert "\n" not in str(caught.value) and sorted(tmp_path.rglob("*")) == before


def test_destinations_of_text(glue: Path, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "in.txt", 5)
    before = corpus.read_bytes()
    for options, message in (
        ({"dest": corpus}, "exists already"),
        ({"dest": corpus, "overwrite": True}, "lies in --dest"),
        ({"dest": tmp_path / "out.gz"}, "names? it so|name it so"),
        ({"dest": tmp_path, "overwrite": True}, "name it so"),
        ({"dest": tmp_path / "no" / "out.txt"}, "No such file"),
        ({"dest": tmp_path / "out.txt", "valid": (corpus,)}, "both input and --valid|leave --valid out"),
    ):
        with pytest.raises(UserError, match=message):
            write_text(PrepareSettings(inputs=(corpus,), text_only=True, **options))  # type: ignore[arg-type]
    assert corpus.read_bytes() == before and sorted(path.name for path in tmp_path.iterdir()) == ["glue", "in.txt"]
    (tmp_path / "out.txt").write_text("old")
    assert text_of(tmp_path / "out.txt", corpus, overwrite=True).encode() == before


@pytest.mark.parametrize("failure", [RuntimeError("bug"), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_failures_half_way_leave_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    corpus = write_corpus(tmp_path / "in.txt", 5)
    reached = []

    def broken(*arguments: object) -> None:
        reached.append(sorted(path.name for path in tmp_path.iterdir()))
        raise failure

    monkeypatch.setattr("fairseq_clear.preparation.text_file.os.replace", broken)
    with pytest.raises(UserError if isinstance(failure, OSError) else type(failure), match="No space left|bug|^$"):
        text_of(tmp_path / "out.txt", corpus)
    assert any(name.startswith(".out.txt.partial.") for name in reached[0])  # the negative control: something was there
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_a_sample_has_so_many_sentences_in_order_and_in_their_documents(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "in.txt", 40)
    made = documents(40)
    home = {line: number for number, lines in enumerate(made) for line in lines}
    text = text_of(tmp_path / "a.txt", corpus, sample=50)
    parts = [part.split("\n") for part in text.rstrip("\n").split("\n\n")]
    assert sum(map(len, parts)) == 50
    assert all(len({home[line] for line in part}) == 1 for part in parts)
    numbers = [home[part[0]] for part in parts]
    assert numbers == sorted(set(numbers)) and len(numbers) > 10
    assert text_of(tmp_path / "b.txt", corpus, sample=50) == text
    assert text_of(tmp_path / "c.txt", corpus, sample=50, seed=2) != text
    everything = sum(map(len, made))
    assert text_of(tmp_path / "d.txt", corpus, sample=everything) == canonical(made)
    with pytest.raises(UserError, match=f"the input has {everything} sentences; ask for fewer"):
        text_of(tmp_path / "e.txt", corpus, sample=everything + 1)


def test_every_sentence_is_as_likely(tmp_path: Path) -> None:
    corpus = tmp_path / "in.txt"
    corpus.write_text("\n\n".join(map(str, range(8))) + "\n")
    counts: Counter[str] = Counter()
    for seed in range(200):
        counts.update(text_of(tmp_path / "o.txt", corpus, sample=2, seed=seed, overwrite=True).split())
    assert len(counts) == 8 and all(abs(count - 50) < 5 * (200 * 0.25 * 0.75) ** 0.5 for count in counts.values())


@pytest.mark.real
@pytest.mark.skipif(not (SHARED / "glue" / "RTE").is_dir(), reason="needs glue/RTE of the shared data")
def test_the_real_tasks(tmp_path: Path) -> None:
    lines = text_of(tmp_path / "rte.txt", SHARED / "glue", glue_task="RTE").split("\n")
    assert sum(map(bool, lines)) == 2 * 2490
    lines = text_of(tmp_path / "cola.txt", SHARED / "glue", glue_task="CoLA").split("\n")
    assert sum(map(bool, lines)) == 8551
