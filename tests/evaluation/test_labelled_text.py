"""Labelled text: how it is read, what is removed, and the scores, against scikit-learn; and the command ``classify``."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.labelled_text import STRENGTHS, LabelledText, evaluate_labelled, read_labelled
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


def made(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Texts of words of any group and of their own, and their groups."""
    rng = np.random.default_rng(seed)
    labels = [list(GROUPS)[number % 3] for number in range(count)]
    words = " ".join(GROUPS.values()).split()
    return [" ".join([*rng.choice(words, 4), *rng.choice(GROUPS[label].split(), 2)]) for label in labels], labels


DATA = LabelledText(*({"train": train, "test": test} for train, test in zip(made(60, 3), made(36, 4), strict=True)), {})


def write(folder: Path) -> list[str]:
    """DATA as records, compressed, with the labels in ``group``; returns the flags that read it."""
    for split, texts in DATA.texts.items():
        records = [{"group": label, "text": text} for text, label in zip(texts, DATA.labels[split], strict=True)]
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{split}.jsonl.xz").write_bytes(lzma.compress(text.encode()))
    files = [word for split in DATA.texts for word in (f"--{split}", str(folder / f"{split}.jsonl.xz"))]
    return [*files, "--label-field", "group", "--encoder", "tests.evaluation.toys:Words"]


def test_removals_are_applied_in_order(tmp_path: Path) -> None:
    path = tmp_path / "posts.jsonl"
    path.write_text(json.dumps({"label": "g", "text": POST}) + "\n")
    assert read_labelled(path).texts == {"train": [POST]}
    assert read_labelled(path, path, remove=["quotes", "headers", "footers"]).texts["test"] == ["Own words.\n"]
    assert read_labelled(path, remove=["quotes", "headers"]).removed == ("headers", "quotes")


def test_tables_and_numbers_as_labels_are_read(tmp_path: Path) -> None:
    table, records = tmp_path / "a.tsv", tmp_path / "b.jsonl"
    table.write_text('mark\tsentence\n1\tone "text\n\n0\tother\n')
    records.write_text('{"mark": 1, "sentence": "one \\"text"}\n{"mark": "0", "sentence": "other"}\n')
    for path in (table, records):
        found = read_labelled(path, text_field="sentence", label_field="mark")
        assert (found.texts["train"], found.labels["train"]) == (['one "text', "other"], ["1", "0"])
        assert set(found.hashes) == {path.name}


@pytest.mark.parametrize("strength", [None, 0.001])
def test_scores_are_scikit_learns(strength: float | None) -> None:
    rows = {split: Words(64).encode(texts) for split, texts in DATA.texts.items()}
    classifier, grid = LogisticRegression(C=strength or 1.0, max_iter=1000), {"C": STRENGTHS}
    if strength is None:
        classifier = GridSearchCV(classifier, grid, cv=StratifiedKFold(6, shuffle=True, random_state=6))
    predicted = classifier.fit(rows["train"], DATA.labels["train"]).predict(rows["test"])
    (found,) = evaluate_labelled(Words(64), DATA, folds=6, strength=strength, seed=6)
    assert found.accuracy == pytest.approx(100 * accuracy_score(DATA.labels["test"], predicted))
    # a test part of one label, which is always predicted: the others do not count
    is_first = [true == found == min(GROUPS) for true, found in zip(DATA.labels["test"], predicted, strict=True)]
    first = np.flatnonzero(is_first).tolist()
    parts = ({**side, "test": [side["test"][n] for n in first]} for side in (DATA.texts, DATA.labels))
    part = LabelledText(*parts, {})
    (of_first,) = evaluate_labelled(Words(64), part, folds=6, strength=strength, seed=6)
    assert of_first.macro_f1 == of_first.accuracy == 100 and len(first) > 1
    assert found.macro_f1 == pytest.approx(100 * f1_score(DATA.labels["test"], predicted, average="macro"))
    assert found.strength == (strength or classifier.best_params_["C"]) != 1 and set(found.f1) == set(GROUPS)
    assert (found.train, found.test) == (60, 36) and 34 < found.accuracy < 100


def test_folds_are_scored_with_a_classifier_that_did_not_see_them() -> None:
    only_train = LabelledText({"train": DATA.texts["train"]}, {"train": DATA.labels["train"]}, {})
    rows, labels = Words(64).encode(DATA.texts["train"]), np.array(DATA.labels["train"])
    folds = StratifiedKFold(3, shuffle=True, random_state=2)
    grid = GridSearchCV(LogisticRegression(max_iter=1000), {"C": STRENGTHS}, cv=folds)
    found, best = (evaluate_labelled(Words(64), only_train, folds=3, strength=c, seed=2) for c in (1.0, None))
    for score, chosen, (train, held) in zip(found, best, folds.split(rows, labels), strict=True):
        classifier = LogisticRegression(max_iter=1000).fit(rows[train], labels[train])
        assert score.accuracy == pytest.approx(100 * classifier.score(rows[held], labels[held]))
        assert chosen.strength == grid.fit(rows[train], labels[train]).best_params_["C"]


def test_the_command_prints_and_writes_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags, output = write(tmp_path), tmp_path / "r.json"
    assert main(["classify", *flags, "--remove", "quotes", "--strength", "0.5", "--output", str(output)]) == 0
    (expected,) = evaluate_labelled(Words(), DATA, strength=0.5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["accuracy", "macro-F1"]
    assert lines[1].split()[1:] == [f"{expected.accuracy:.2f}", f"{expected.macro_f1:.2f}"]
    assert "train and test file; classifier logistic" in lines[2] and "C 0.5; labels 3; removed quotes" in lines[2]
    assert lines[2].endswith("texts train=60 test=36; seeds 1")
    report = json.loads(output.read_text())
    assert report["command"] == "classify" and set(report["data"]["classify"]) == {"train.jsonl.xz", "test.jsonl.xz"}
    assert report["rows"][0]["details"]["scores"][0]["f1"].keys() == GROUPS.keys() and report["versions"]
    assert main(["classify", *flags[:2], *flags[4:], "--folds", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].count("\u00b1") == 2 and "3 stratified folds" in lines[2]


FINE = '{"label": "cars", "text": "x"}\n'


def test_mistakes_name_file_and_line(tmp_path: Path) -> None:
    for content, flags, message in (
        (FINE + "no json\n", {}, "a.jsonl:2: not JSON"),
        (FINE + '{"label": "cars"}\n', {}, "a.jsonl:2: no field 'text' .*--text-field"),
        (FINE + '{"group": "cars", "text": "x"}\n', {}, "a.jsonl:2: no label .* in 'label'; .*--label-field"),
        ("\n", {}, "a.jsonl: holds no text"),
        (FINE, {}, "--train: all 1 texts have the label 'cars'"),
        (FINE + '{"label": "sea", "text": "x"}\n', {"folds": 2}, "--folds 2: a class has only 1"),
        (FINE, {"remove": ["tails"]}, "--remove tails: valid are headers, footers, quotes"),
        (FINE, {"name": "a.csv"}, "a.csv: labelled texts are read from .jsonl and .tsv"),
        ("text\tgroup\n", {"name": "a.tsv"}, "--label-field label: .*a.tsv:1 names only the columns text, group"),
        ("text\tlabel\nx\n", {"name": "a.tsv"}, "a.tsv:2: 1 tab-separated columns"),
        ("text\tlabel\nx\ty\tcars\n", {"name": "a.tsv"}, "a.tsv:2: 3 tab-separated columns, but line 1 names 2"),
        ("text\tlabel\nx\t\n", {"name": "a.tsv"}, "a.tsv:2: the label is empty"),
        (FINE + '{"label": "", "text": "x"}\n', {}, "a.jsonl:2: no label .* in 'label'"),
        (FINE + '{"label": true, "text": "x"}\n', {}, "a.jsonl:2: no label .* in 'label'"),
    ):
        path = tmp_path / flags.get("name", "a.jsonl")
        path.write_text(content)
        with pytest.raises(UserError, match=message):
            evaluate_labelled(Words(), read_labelled(path, remove=flags.get("remove", ())), folds=flags.get("folds", 5))
    with pytest.raises(UserError, match="--test: has the label 'sea', which --train lacks"):
        evaluate_labelled(Words(), LabelledText(DATA.texts, {**DATA.labels, "test": ["sea"] * 36}, {}))
