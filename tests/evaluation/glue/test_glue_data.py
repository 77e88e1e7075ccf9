"""GLUE's files are read by their columns, errors name file and line, and fairseq's own task reads what is prepared."""

import json
from pathlib import Path

import fairseq
import pytest
import yaml
from fairseq.data import Dictionary
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.glue_running import GLUE_JSON, cut_pair, input_length, prepare_task, table_scores
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS, RECIPES, read_examples
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.evaluation.glue.made import ROWS, labels, write_glue


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    return write_glue(tmp_path_factory.mktemp("glue"))


@pytest.mark.parametrize("task", GLUE_TASKS.values(), ids=lambda task: task.name)
def test_every_task_and_split_is_read(task, glue):
    for split in task.splits:
        texts, found, dropped = read_examples(glue, task, split)
        assert (found, dropped, len(texts)) == (labels(task.name, split), 0, len(task.columns))
        # texts are words, not the numbers of the other columns
        assert all(word.isalpha() for column in texts for text in column for word in text.split())


HEADER = "index\tsentence1\tsentence2\tlabel\n"
FINE = HEADER + "0\ta\tb\tentailment\n"
SCORES = ("x", "", "nan", "5.1", "-1")  # of STS-B, whose scores are 0 to 5


def read(tmp_path, content, task="RTE"):
    (tmp_path / task).mkdir(exist_ok=True)
    (tmp_path / task / "train.tsv").write_bytes(content.encode())
    return read_examples(tmp_path, GLUE_TASKS[task], "train")


def test_files_without_examples_are_errors(tmp_path):
    for task, content, where in (
        ("RTE", HEADER + "0\ta\tentailment\n", "train.tsv: holds no well-formed"),
        ("RTE", HEADER + "0\ta\tb\tneutral\n", "train.tsv: holds no well-formed"),
        ("RTE", HEADER, "train.tsv: "),
        ("RTE", "", "train.tsv:1: "),
        ("CoLA", "", "train.tsv: "),
        ("RTE", "index\tsentence1\tlabel\n0\ta\tentailment\n", "train.tsv:1: .*'sentence2'"),
        *(("STS-B", f"sentence1\tsentence2\tscore\na\tb\t{x}\n", "train.tsv: holds no well-formed") for x in SCORES),
    ):
        with pytest.raises(UserError, match=where):
            read(tmp_path, content, task)


def test_bom_crlf_quotes_and_malformed_lines(tmp_path):
    content = "\ufeffindex\tsentence1\tsentence2\tlabel\r\n" + '0\t"a\x0c\u2028b\t\tentailment\r\n'
    assert read(tmp_path, content) == ([['"a\x0c\u2028b'], [""]], ["entailment"], 0)
    content = FINE + "1\ta\n2\tc\td\tmaybe\n3\te\tf\tnot_entailment\n"
    texts, _, dropped = read(tmp_path, content)
    assert dropped == 2 and texts[0] == ["a", "e"]
    for bad, good in ((10, 500), (15, 2_000)):
        rows = [f"{n}\ta\tb\t{0 if n < bad else 'entailment'}\n" for n in range(bad + good)]
        assert read(tmp_path, FINE + "".join(rows))[2] == bad
    with pytest.raises(UserError, match=r"train.tsv: 11 of 21\d lines are no example of RTE"):
        read(tmp_path, FINE + "".join(f"{n}\ta\tb\t{0 if n < 11 else 'entailment'}\n" for n in range(210)))


def prepare(name, glue, data_bin, dest, **options):
    splits = prepare_task(GLUE_TASKS[name], glue, data_bin, dest, WhitespaceTokenizer(), **options)
    return json.loads((dest / name / GLUE_JSON).read_text()), splits


@pytest.mark.parametrize("name", ["CoLA", "RTE", "STS-B", "MNLI"])
def test_fairseqs_task_reads_what_was_written(name, glue, data_bin, tmp_path):
    task = GLUE_TASKS[name]
    record, splits = prepare(name, glue, data_bin, tmp_path, max_length=12)
    config = SentencePredictionConfig(
        data=str(tmp_path / name), num_classes=len(task.labels) or 1, init_token=0, separator_token=2, no_shuffle=True, seed=1,
        regression_target=not task.labels, classification_head_name="head",
    )  # fmt: skip
    host = SentencePredictionTask.setup_task(config)
    dictionary = Dictionary.load(str(data_bin / "dict.txt"))
    for split, sizes in splits.items():
        dataset, cut = host.load_dataset(split), 0
        texts, expected, _ = read_examples(glue, task, split)
        assert len(dataset) == sizes["rows"] == ROWS[split] and sizes["unknown"] == sizes["dropped"] == 0
        for number, label in enumerate(expected):
            item, whole = dataset[number], [column[number].split() for column in texts]
            words = " ".join(dictionary[index] for index in item["net_input.src_tokens"])
            assert words.startswith("<s>") and words.endswith("</s>") and len(words.split()) <= 12
            rows = [part.split() for part in words[4:-5].split(" </s> </s> ")]
            assert all(part == full[: len(part)] for part, full in zip(rows, whole, strict=True))
            cut += rows != whole
            target = float(item["target"][0] if not task.labels else item["target"])
            assert target == pytest.approx(task.labels.index(label) if task.labels else float(label) / 5)
        assert cut == sizes["cut"] and sizes["longest"] <= 12
    assert record["splits"] == splits and set(record["files"]) == set(task.splits.values())


def test_cutting_takes_from_the_longer_text():
    first, second = [10, 11, 12, 13, 14, 2], [20, 21, 2]
    assert input_length([first, second]) == 11
    for longest, expected in (
        (11, [first, second]), (9, [[10, 11, 12, 2], second]), (7, [[10, 2], second]), (4, [[2], [2]]),
    ):  # fmt: skip
        assert cut_pair([first, second], longest) == expected
    assert cut_pair([first], 4) == [[10, 11, 2]]


def test_failures_leave_nothing_behind(data_bin, tmp_path):
    dest, glue = tmp_path / "dest", write_glue(tmp_path / "glue", ["RTE"])
    record, _ = prepare("RTE", glue, data_bin, dest)
    with pytest.raises(UserError, match=f"{dest}/RTE: .*--overwrite"):
        prepare("RTE", glue, data_bin, dest)
    assert prepare("RTE", glue, data_bin, dest, overwrite=True)[0] == record
    (dest / "RTE" / "glue.json").rename(dest / "RTE" / "mine.json")
    with pytest.raises(UserError, match="RTE: has no glue.json"):
        prepare("RTE", glue, data_bin, dest, overwrite=True)
    for change in (lambda file: file.write_text(HEADER + "0\ta\n"), Path.unlink):
        change(glue / "RTE" / "dev.tsv")
        with pytest.raises(UserError, match="dev.tsv: "):
            prepare("RTE", glue, data_bin, tmp_path / "other")
        assert not (tmp_path / "other").exists()


# Hyper-parameters, against fairseq's own files


@pytest.mark.parametrize("name", sorted(set(GLUE_TASKS) - {"WNLI"}))
def test_clear_is_fairseqs_roberta(name):
    folder = Path(fairseq.__file__).parent / "examples" / "roberta" / "config" / "finetuning"
    if not folder.is_dir():
        pytest.skip(f"this fairseq comes without {folder}")
    theirs = yaml.safe_load((folder / f"{name.lower().replace('-', '_')}.yaml").read_text())
    ours = RECIPES["clear"][name]
    assert name in RECIPES["cert"]
    assert [ours.lr] == [float(value) for value in theirs["optimization"]["lr"]]
    assert ours.batch_size == theirs["dataset"]["batch_size"]
    assert ours.epochs == theirs["optimization"]["max_epoch"]
    assert ours.clip_norm == theirs["optimization"]["clip_norm"]
    assert ours.weight_decay == theirs["optimizer"]["weight_decay"]
    assert ours.adam_betas.replace(" ", "") == theirs["optimizer"]["adam_betas"]
    assert ours.adam_eps == float(theirs["optimizer"]["adam_eps"])
    assert ours.dropout == theirs["model"]["dropout"] == theirs["model"]["attention_dropout"]
    share = theirs["lr_scheduler"]["warmup_updates"] / theirs["optimization"]["max_update"]
    assert share == pytest.approx(0.25 if name == "QQP" else ours.warmup_share, abs=0.001)


def test_a_constant_prediction_scores_0():
    """fairseq then logs NaN, which is left out of the result."""
    result = {"task": "STS-B", "metrics": {"valid": {"loss": 1.0}}}
    assert table_scores([result], "clear", max) == {"STS-B": 0.0}
