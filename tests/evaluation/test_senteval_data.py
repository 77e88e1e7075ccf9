"""Readers of SentEval's tasks."""

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.senteval_data import PROBING_TASKS, TRANSFER_TASKS, is_task_present, read_task
from tests.conftest import SHARED
from tests.evaluation.senteval_files import write, write_senteval


def test_every_task_is_read_from_sentevals_layout(tmp_path):
    write_senteval(tmp_path)
    for name in [*TRANSFER_TASKS, *PROBING_TASKS]:
        assert is_task_present(tmp_path, name)
        data = read_task(tmp_path, name)
        assert all(set(split.labels) == set(range(data.classes)) for split in data.splits.values()), name
        assert all((split.second is not None) == (name in ("MRPC", "SICK-E", "SNLI")) for split in data.splits.values())
        assert all(len(digest) == 64 for digest in data.hashes.values()) and data.hashes
    shapes = {name: tuple(read_task(tmp_path, name).splits) for name in TRANSFER_TASKS}
    assert (
        shapes["MR"] == ("all",) and shapes["TREC"] == ("train", "test") and shapes["SNLI"] == ("train", "dev", "test")
    )


def test_order_and_labels_are_sentevals(tmp_path):
    write(tmp_path / "MR" / "rt-polarity.pos", ["a  b c ", "d"])
    write(tmp_path / "MR" / "rt-polarity.neg", ["e", "clichM-i\u00e9 f"])
    split = read_task(tmp_path, "MR").splits["all"]
    # by the number of words, then by label, then as they came; UTF-8 stays what Latin-1 makes of it
    assert split.first == ("e", "d", "clichM-i\u00c3\u00a9 f", "a b c") and split.labels.tolist() == [0, 1, 0, 1]
    write(tmp_path / "TREC" / "train_5500.label", ["NUM:dist How  far : caf\u00e9 ?", "ABBR:exp What"], "latin-1")
    write(tmp_path / "TREC" / "TREC_10.label", ["HUM:x Who"])
    split = read_task(tmp_path, "TREC").splits["train"]
    assert split.first == ("What", "How far : caf\u00e9 ?") and split.labels.tolist() == [0, 5]
    lines = ["tr\tb\tone", "tr\ta\ttwo words", "va\ta\tx", "te\tb\ty"]
    write(tmp_path / "past_present.txt", lines)
    data = read_task(tmp_path, "Tense")
    assert (
        data.classes == 2
        and data.splits["train"].labels.tolist() == [1, 0]
        and data.splits["test"].labels.tolist() == [1]
    )


@pytest.mark.parametrize(
    ("task", "file", "lines", "message"),
    [
        ("TREC", "TREC/TREC_10.label", ["HUM:x ok", "no colon"], "TREC_10.label:2: no colon"),
        ("TREC", "TREC/TREC_10.label", ["ZOO:x ok"], "TREC_10.label:1: the label 'ZOO' is not one of ABBR"),
        ("SST2", "SST/binary/sentiment-dev", ["a\t2"], "sentiment-dev:1: the label '2' is not one of 0, 1"),
        ("SST5", "SST/fine/sentiment-dev", ["9 a"], "sentiment-dev:1: the label '9'"),
        ("MRPC", "MRPC/msr_paraphrase_test.txt", ["h", "1\tx\ty\ta"], "test.txt:2: 4 tab-separated columns"),
        ("SNLI", "SNLI/s2.dev", ["a"], "s2.dev: 1 lines, but .*labels.dev has 18"),
        ("SICK-E", "SICK/SICK_trial.txt", ["header"], "SICK-E: its dev split holds no text"),
        ("MR", "MR/rt-polarity.neg", [], "MR: its all split has texts of only one label .rt-polarity.pos"),
        ("SST2", "SST/binary/sentiment-train", ["a\t1"], "SST2: its train split has texts of only one label"),
        ("Tense", "probing/past_present.txt", ["xx\ta\tb"], "past_present.txt:1: the split 'xx'"),
    ],
)
def test_broken_files_are_named_by_line(tmp_path, task, file, lines, message):
    write_senteval(tmp_path)
    write(tmp_path / file if file.startswith("probing") else tmp_path / "downstream" / file, lines)
    with pytest.raises(UserError, match=message):
        read_task(tmp_path, task)


def test_missing_files(tmp_path):
    write_senteval(tmp_path)
    (tmp_path / "downstream" / "SICK" / "SICK_test_annotated.txt").unlink()
    assert not is_task_present(tmp_path, "SICK-E") and is_task_present(tmp_path, "MRPC")
    with pytest.raises(UserError, match="SICK_test_annotated.txt: cannot read it"):
        read_task(tmp_path, "SICK-E")
    with pytest.raises(UserError, match="has no MR, nor"):
        read_task(tmp_path / "probing", "MR")


@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real data")
def test_real_sets_have_their_published_sizes():
    sizes = {
        name: [len(split.first) for split in read_task(SHARED, name).splits.values()]
        for name in ("MR", "CR", "TREC", "MRPC")
    }
    assert sizes == {"MR": [10662], "CR": [3775], "TREC": [5452, 500], "MRPC": [4076, 1725]}
