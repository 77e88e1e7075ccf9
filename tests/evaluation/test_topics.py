"""Topics: what is removed, and the figures, against scikit-learn."""

import json
import lzma

import numpy as np
import pytest
from sklearn.datasets import _twenty_newsgroups as reference
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.topics import REMOVALS, evaluate_topics, read_topics
from tests.conftest import SHARED
from tests.evaluation.toys import Words

POST = """From: a@b
Subject: x

In article <1> b writes:
> quoted
| also
Own words, he said: no
Own words.

--
signature"""
GROUPS = {"cars": "wheel road engine drive", "space": "orbit moon rocket drive", "food": "bread salt soup road"}


def write(folder, sizes=(30, 18)):
    rng = np.random.default_rng(3)
    records = {}
    for split, size in zip(("train", "test"), sizes, strict=True):
        records[split] = []
        for number, group in enumerate(list(GROUPS) * (size // 3)):
            any_words = rng.choice(" ".join(GROUPS.values()).split(), 4)
            words = " ".join([*any_words, *rng.choice(GROUPS[group].split(), 3)])
            records[split].append({"group": group, "id": str(number), "text": words})
        lines = "".join(json.dumps(record) + "\n" for record in records[split])
        (folder / f"20news.{split}.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    return records


@pytest.mark.parametrize("text", [POST, "", "no header", "a\n\nb", "a\n\nb\n\n---\nc", "\n\n", "x\n-\n", "--\nonly\n"])
def test_removals_are_scikit_learns(text):
    theirs = {
        "headers": reference.strip_newsgroup_header,
        "footers": reference.strip_newsgroup_footer,
        "quotes": reference.strip_newsgroup_quoting,
    }
    assert {name: remove(text) for name, remove in REMOVALS.items()} == {name: f(text) for name, f in theirs.items()}


def test_removals_are_applied_in_order(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"20news.{split}.jsonl").write_text(json.dumps({"group": "g", "text": POST}) + "\n")
    assert read_topics(tmp_path).texts["test"] == [POST]
    assert read_topics(tmp_path, ["quotes", "headers", "footers"]).texts["test"] == ["Own words.\n"]
    assert read_topics(tmp_path, ["quotes", "headers"]).removed == ("headers", "quotes")


def test_figures_are_scikit_learns(tmp_path):
    records = write(tmp_path)
    rows = {split: Words(64).encode([record["text"] for record in records[split]]) for split in records}
    labels = {split: [record["group"] for record in records[split]] for split in records}
    found = {}
    for strength in (1.0, 0.001):
        predicted = (
            LogisticRegression(C=strength, max_iter=1000).fit(rows["train"], labels["train"]).predict(rows["test"])
        )
        result = evaluate_topics(Words(64), read_topics(tmp_path), strength=strength)
        assert result.accuracy == pytest.approx(100 * accuracy_score(labels["test"], predicted))
        assert result.macro_f1 == pytest.approx(100 * f1_score(labels["test"], predicted, average="macro"))
        assert (result.train, result.test) == (30, 18) and set(result.f1) == set(GROUPS)
        found[strength] = result.macro_f1
    assert 34 < found[1.0] < 100 and found[1.0] != found[0.001] and result.accuracy != pytest.approx(result.macro_f1)


def test_mistakes_name_file_and_line(tmp_path):
    with pytest.raises(UserError, match="has no 20news.train.jsonl"):
        evaluate_topics(Words(), read_topics(tmp_path))
    write(tmp_path)
    with pytest.raises(UserError, match="--remove tails: valid are headers, footers, quotes"):
        evaluate_topics(Words(), read_topics(tmp_path, ["tails"]))
    with pytest.raises(UserError, match="--strength 0: must be above 0"):
        evaluate_topics(Words(), read_topics(tmp_path), strength=0)
    path = tmp_path / "20news.test.jsonl"
    fine = '{"group": "cars", "text": "x"}\n'
    for content, message in [
        (fine + "no json\n", "20news.test.jsonl:2: not JSON"),
        (fine + '{"group": "cars"}\n', "20news.test.jsonl:2: no field 'text' .*`group` and `text`"),
        (fine + '{"group": "cars", "text": 3}\n', "20news.test.jsonl:2: field 'text' is int, not text"),
        (fine + '["group"]\n', "20news.test.jsonl:2: a list, not an object"),
        ('{"group": "sea", "text": "x"}\n', "the group 'sea', which the training split lacks"),
        ("\n", "20news.test.jsonl: holds no text"),
    ]:
        path.write_text(content)
        with pytest.raises(UserError, match=message):
            evaluate_topics(Words(), read_topics(tmp_path))
    (tmp_path / "20news.train.jsonl").write_text(fine)
    path.write_text(fine)
    with pytest.raises(UserError, match="fewer than two groups"):
        evaluate_topics(Words(), read_topics(tmp_path))


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real data")
def test_real_posts():
    data = read_topics(SHARED, ["headers", "footers", "quotes"])
    assert [len(data.texts[split]) for split in ("train", "test")] == [11314, 7532] and len(
        set(data.groups["test"])
    ) == 20
    result = evaluate_topics(Words(512), read_topics(SHARED, ["headers", "footers", "quotes"]), strength=0.01)
    assert 25 < result.macro_f1 < result.accuracy < 60
