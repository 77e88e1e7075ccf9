"""GLUE's files: every task's columns, and what is wrong with a file, by file and line."""

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS, choose_tasks, find_task_folder, read_examples
from tests.conftest import SHARED
from tests.evaluation.glue.made import ROWS, labels, write_glue


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_every_task_and_split_is_read(name, tmp_path):
    task = GLUE_TASKS[name]
    folder = find_task_folder(write_glue(tmp_path / "glue", [name]), task)
    for split, file in task.splits.items():
        examples = read_examples(folder / file, task, split)
        assert len(examples) == ROWS[split] and examples.dropped == 0
        assert len(examples.texts) == len(task.texts)
        # texts are words, not the numbers of the other columns
        assert all(word.isalpha() for column in examples.texts for text in column for word in text.split())
        expected = None if split.startswith("test") else labels(name, split, ROWS[split])
        assert examples.labels == expected


RTE = GLUE_TASKS["RTE"]
HEADER = "index\tsentence1\tsentence2\tlabel\n"


def read(tmp_path, content, task=RTE, split="train", **options):
    path = tmp_path / "file.tsv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_examples(path, task, split, **options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER + "0\ta\tb\tentailment\n1\ta\tentailment\n", r"file.tsv:3: 3 tab-separated columns, not 4"),
        (HEADER + "0\ta\tb\tc\tentailment\n", r"file.tsv:2: 5 tab-separated columns"),
        (HEADER + "0\ta\tb\tneutral\n", r"file.tsv:2: label 'neutral' is not one of RTE: entailment, not_entailment"),
        (HEADER + "\n", r"file.tsv:2: 1 tab-separated columns"),
        (HEADER, "holds no examples"),
        ("", "holds no examples"),
        ("index\tsentence1\tlabel\n0\ta\tentailment\n", r"file.tsv:1: the header has no column 'sentence2'"),
        (
            HEADER.encode() + b"0\tcaf\xe9\tb\tentailment\n",
            r"file.tsv:2: byte 0xe9 at position 6 of the line is not UTF-8",
        ),
    ],
)
def test_malformed_files_are_named_with_their_line(tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize("score", ["x", "", "nan", "5.1", "-1"])
def test_scores_must_be_numbers_from_0_to_5(tmp_path, score):
    with pytest.raises(UserError, match=r"file.tsv:2: the score .* is not a number from 0 to 5"):
        read(tmp_path, f"sentence1\tsentence2\tscore\na\tb\t{score}\n", GLUE_TASKS["STS-B"])


def test_bom_crlf_quotes_and_odd_line_ends_within_texts(tmp_path):
    content = "\ufeffindex\tsentence1\tsentence2\tlabel\r\n" + '0\t"a\x0c\u2028b\t\tentailment\r\n'
    examples = read(tmp_path, content)
    assert examples.texts == (['"a\x0c\u2028b'], [""])
    assert examples.labels == ["entailment"]


def test_malformed_lines_are_dropped_and_counted_only_when_asked(tmp_path):
    content = HEADER + "0\ta\tb\tentailment\n1\ta\n2\tc\td\tmaybe\n3\te\tf\tnot_entailment\n"
    examples = read(tmp_path, content, drop_malformed=True)
    assert examples.dropped == 2 and examples.texts[0] == ["a", "e"]
    with pytest.raises(UserError, match="--drop-malformed leaves such lines out"):
        read(tmp_path, content)
    with pytest.raises(UserError, match="every line is malformed"):
        read(tmp_path, HEADER + "1\ta\n", drop_malformed=True)
    # the server wants a prediction for every line
    with pytest.raises(UserError, match=r"file.tsv:2: 1 tab"):
        read(tmp_path, "index\tsentence1\tsentence2\n0\n", split="test", drop_malformed=True)


def test_folders_are_found_whatever_their_case(tmp_path):
    (tmp_path / "cola").mkdir()
    (tmp_path / "diagnostic").mkdir()
    assert find_task_folder(tmp_path, GLUE_TASKS["CoLA"]) == tmp_path / "cola"
    assert find_task_folder(tmp_path, GLUE_TASKS["AX"]) == tmp_path / "diagnostic"
    with pytest.raises(UserError, match="has no folder RTE"):
        find_task_folder(tmp_path, RTE)
    with pytest.raises(UserError, match="no such folder"):
        find_task_folder(tmp_path / "absent", RTE)


def test_tasks_are_chosen_by_name_in_the_tables_order():
    assert [task.name for task in choose_tasks(["rte", "CoLA", "RTE"])] == ["CoLA", "RTE"]
    with pytest.raises(UserError, match="--tasks RTF: no such task of GLUE; valid are CoLA, SST-2"):
        choose_tasks(["RTF"])


@pytest.mark.real
@pytest.mark.parametrize(("name", "train", "dev"), [("CoLA", 8551, 1043), ("RTE", 2490, 277)])
def test_real_files(name, train, dev):
    folder = SHARED / "glue"
    if not (folder / name).is_dir():
        pytest.skip(f"no {folder / name}")
    task = GLUE_TASKS[name]
    for split, rows in (("train", train), ("valid", dev)):
        assert len(read_examples(folder / name / task.splits[split], task, split)) == rows
