"""Prepared folders are what fairseq's own task reads; cutting; nothing half written."""

import json
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.glue_data import (
    TaskData,
    cut_pair,
    input_length,
    parse_split_dev,
    prepare_task,
    shorten,
)
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS, read_examples
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.evaluation.glue.made import ROWS, write_glue

TOKENIZER = WhitespaceTokenizer()


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    return write_glue(tmp_path_factory.mktemp("glue"))


def prepare(name, glue, data_bin, dest, **options):
    prepare_task(GLUE_TASKS[name], glue, data_bin, dest, TOKENIZER, **options)
    return TaskData.open(dest, GLUE_TASKS[name])


def host_task(data: Path, name: str) -> SentencePredictionTask:
    task = GLUE_TASKS[name]
    config = SentencePredictionConfig(
        data=str(data), num_classes=task.outputs, init_token=0, separator_token=2, no_shuffle=True, seed=1,
        regression_target=task.is_regression, classification_head_name="head",
    )  # fmt: skip
    return SentencePredictionTask.setup_task(config)


@pytest.mark.parametrize("name", ["CoLA", "RTE", "STS-B", "MNLI"])
def test_fairseqs_task_reads_what_was_written(name, glue, data_bin, tmp_path):
    task = GLUE_TASKS[name]
    data = prepare(name, glue, data_bin, tmp_path)
    host = host_task(data.folder, name)
    dictionary = Dictionary.load(str(data_bin / "dict.txt"))
    for split, rows in data.rows.items():
        if split.startswith("test"):
            continue
        dataset = host.load_dataset(split)
        examples = read_examples(glue / name / task.splits[split], task, split)
        assert len(dataset) == rows == ROWS[split]
        for number in range(rows):
            item = dataset[number]
            texts = [column[number] for column in examples.texts]
            words = [dictionary[index] for index in item["net_input.src_tokens"]]
            assert words == ["<s>", *" </s> </s> ".join(texts).split(), "</s>"]
            target = float(item["target"][0] if task.is_regression else item["target"])
            expected = (
                float(examples.labels[number]) / 5 if task.is_regression else task.labels.index(examples.labels[number])
            )
            assert target == pytest.approx(expected)
        gold = data.gold(split)
        targets = [dataset[number]["target"] for number in range(rows)]
        scale = 5 if task.is_regression else 1
        np.testing.assert_allclose(gold, [scale * float(target[0] if scale == 5 else target) for target in targets])
        assert len(set(gold.tolist())) > 1


def test_the_manifest_names_what_it_was_made_of(glue, data_bin, tmp_path):
    data = prepare("MNLI", glue, data_bin, tmp_path)
    content = json.loads((data.folder / "glue.json").read_text())
    assert set(content["files"]) == set(GLUE_TASKS["MNLI"].splits.values())
    assert content["splits"]["train"]["rows"] == ROWS["train"] and content["splits"]["train"]["unknown"] == 0
    assert data.labelled() == ["valid", "valid1"]
    again = prepare("MNLI", glue, data_bin, tmp_path, overwrite=True)
    assert again.content_hash == data.content_hash
    other = prepare("MNLI", glue, data_bin, tmp_path, overwrite=True, split_dev=(50, 50))
    assert other.content_hash != data.content_hash


def test_split_dev_takes_the_first_for_choosing_and_the_last_for_reporting(glue, data_bin, tmp_path):
    whole = prepare("MNLI", glue, data_bin, tmp_path / "whole")
    split = prepare("MNLI", glue, data_bin, tmp_path / "split", split_dev=(30, 70))
    assert split.labelled() == ["valid", "heldout", "valid1", "heldout1"]
    assert [split.rows[name] for name in split.labelled()] == [3, 7, 2, 5]
    for one, other in (("valid", "heldout"), ("valid1", "heldout1")):
        np.testing.assert_array_equal(np.concatenate([split.gold(one), split.gold(other)]), whole.gold(one))
        joined = [*split.inputs(one), *split.inputs(other)]
        assert [list(map(list, row)) for row in joined] == [list(map(list, row)) for row in whole.inputs(one)]


@pytest.mark.parametrize("text", ["10", "10/80", "0/100", "100/0", "a/b", "10/90/0", "-10/110"])
def test_shares_must_add_up(text):
    with pytest.raises(UserError, match=f"--split-dev {text}"):
        parse_split_dev(text)
    assert parse_split_dev("10/90") == (10, 90)


def test_failures_leave_nothing_behind(glue, data_bin, tmp_path):
    broken = write_glue(tmp_path / "broken", ["RTE"])
    (broken / "RTE" / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\n")
    with pytest.raises(UserError, match=r"dev.tsv:2"):
        prepare("RTE", broken, data_bin, tmp_path / "dest")
    assert not list((tmp_path / "dest").glob("*"))
    (tmp_path / "dict.txt").write_text("foo\nbar baz\n")
    with pytest.raises(UserError, match=r'dict.txt: not a dict.txt of fairseq: .*: "foo "$'):
        prepare("RTE", glue, tmp_path, tmp_path / "dest")
    assert not list((tmp_path / "dest").glob("*"))
    (broken / "RTE" / "dev.tsv").unlink()
    with pytest.raises(UserError, match=r"dev.tsv: no such file"):
        prepare("RTE", broken, data_bin, tmp_path / "dest")
    prepare("RTE", glue, data_bin, tmp_path / "dest")
    with pytest.raises(UserError, match="exists already; .*--overwrite"):
        prepare("RTE", glue, data_bin, tmp_path / "dest")
    with pytest.raises(UserError, match="has no CoLA prepared; run fairseq-clear glue prepare --tasks CoLA"):
        TaskData.open(tmp_path / "dest", GLUE_TASKS["CoLA"])


def test_test_files_may_be_missing_but_for_ax(glue, data_bin, tmp_path):
    without = write_glue(tmp_path / "glue", ["RTE", "AX"])
    (without / "RTE" / "test.tsv").unlink()
    assert set(prepare("RTE", without, data_bin, tmp_path / "dest").rows) == {"train", "valid"}
    assert prepare("AX", without, data_bin, tmp_path / "dest").rows == {"test": ROWS["test"]}
    (without / "diagnostic" / "diagnostic.tsv").unlink()
    with pytest.raises(UserError, match=r"diagnostic.tsv: no such file"):
        prepare("AX", without, data_bin, tmp_path / "dest2")


def test_cutting_takes_from_the_longer_text():
    first, second = np.array([10, 11, 12, 13, 14, 2]), np.array([20, 21, 2])
    assert input_length([first, second]) == 11
    cut = [row.tolist() for row in cut_pair([first, second], 9)]
    assert cut == [[10, 11, 12, 2], [20, 21, 2]]
    assert [row.tolist() for row in cut_pair([first, second], 7)] == [[10, 2], [20, 21, 2]]
    cut = [row.tolist() for row in cut_pair([first, second], 4)]
    assert cut == [[2], [2]]
    assert [row.tolist() for row in cut_pair([first], 4)] == [[10, 11, 2]]
    assert [row.tolist() for row in cut_pair([first, second], 11)] == [first.tolist(), second.tolist()]


def test_shortened_data_is_a_copy_only_where_something_was_cut(glue, data_bin, tmp_path):
    data = prepare("RTE", glue, data_bin, tmp_path / "dest")
    lengths = {split: [input_length(row) for row in data.inputs(split)] for split in ("train", "valid")}
    longest = max(map(max, lengths.values()))
    assert shorten(data, longest, tmp_path / "copy") == (data.folder, 0)
    assert not (tmp_path / "copy").exists()
    folder, cut = shorten(data, longest - 3, tmp_path / "copy")
    assert folder == tmp_path / "copy"
    assert cut == sum(length > longest - 3 for part in lengths.values() for length in part) > 0
    dataset = host_task(folder, "RTE").load_dataset("train")
    sizes = [len(dataset[number]["net_input.src_tokens"]) for number in range(len(dataset))]
    assert sizes == [min(length, longest - 3) for length in lengths["train"]]
    assert shorten(data, longest - 3, tmp_path / "copy") == (folder, cut)
    assert {path.name for path in tmp_path.iterdir()} == {"dest", "copy"}
