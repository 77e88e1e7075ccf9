"""Readers of STS data: each layout, and each way in which files are broken."""

import hashlib

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sts_data import STS_TASKS, STS_YEARS, find_folder, is_present, read_sts, read_sts_file
from tests.conftest import SHARED

SICK_HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"


def write_year(folder, task, lines=("a b\tc d", "e\tf"), golds=("4.5", "0")):
    folder.mkdir(parents=True, exist_ok=True)
    for name in STS_YEARS[task]:
        (folder / f"STS.input.{name}.txt").write_text("\n".join(lines) + "\n")
        (folder / f"STS.gs.{name}.txt").write_text("\n".join(golds) + "\n")
    return folder


def write_sick(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, score in (("train", 1), ("trial", 2), ("test_annotated", 3)):
        rows = [f"{i}\tA {name} {i}\tB {i}\t{score + i / 10}\tNEUTRAL" for i in range(2)]
        (folder / f"SICK_{name}.txt").write_bytes(("\r\n".join([SICK_HEADER, *rows]) + "\r\n").encode())
    return folder


def test_blank_gold_lines_are_dropped(tmp_path):
    write_year(tmp_path / "STS13-en-test", "STS13", ["a\tb", "c\td", "e\tf"], ["1.5", "", "3"])
    data = read_sts(tmp_path, "STS13")
    assert list(data.subsets) == ["FNWN", "headlines", "OnWN"]
    pairs = data.subsets["OnWN"]
    assert (pairs.first, pairs.second, pairs.scores.tolist()) == (("a", "e"), ("b", "f"), [1.5, 3.0])
    assert (len(data), data.unscored) == (6, 3)
    assert data.texts()[:4] == ["a", "e", "b", "f"]
    raw = (tmp_path / "STS13-en-test" / "STS.gs.OnWN.txt").read_bytes()
    assert data.hashes["STS.gs.OnWN.txt"] == hashlib.sha256(raw).hexdigest() and len(data.hashes) == 6


@pytest.mark.parametrize("below", ["", "STS", "downstream/STS", "data/downstream/STS"])
def test_folders_are_found_where_senteval_has_them(tmp_path, below):
    home = write_year(tmp_path / below / "STS12-en-test", "STS12")
    write_sick(tmp_path / "downstream" / "SICK")
    assert len(read_sts(tmp_path, "STS12")) == 10 == len(read_sts(home, "STS12"))
    found = [task for task in STS_TASKS if is_present(tmp_path, task)]
    assert found == ["STS12", "SICK-R", "SICK-R-trial", "SICK-R-train", "SICK-R-all"]
    with pytest.raises(UserError, match="has no STS16-en-test"):
        read_sts(tmp_path, "STS16")
    with pytest.raises(UserError, match="nowhere: no such folder"):
        find_folder(tmp_path / "nowhere", "SICK")


def test_benchmark_has_seven_or_nine_columns_and_literal_quotes(tmp_path):
    (tmp_path / "STSBenchmark").mkdir()
    path = tmp_path / "STSBenchmark" / "sts-test.csv"
    path.write_bytes(b'\xef\xbb\xbfg\tf\ty\t1\t2.500\t"quoted\tsaid "x"\r\ng\tf\ty\t1\t3\ta\tb\tsource\tlicence\r\n')
    pairs = read_sts(tmp_path, "STS-B").subsets["STS-B"]
    assert pairs.first == ('"quoted', "a") and pairs.second == ('said "x"', "b")
    assert pairs.scores.tolist() == [2.5, 3.0]
    assert read_sts_file(path).subsets["sts-test"].first == pairs.first
    assert not is_present(tmp_path, "STS-B-dev")
    path.write_text("\ng\tf\t2015\t1\t3\ta\tb\n")  # the year is not a score
    assert read_sts_file(path).subsets["sts-test"].first == ("a",)


def test_the_form_of_glue_is_told_by_its_header(tmp_path):
    path = tmp_path / "dev.tsv"
    header = "index genre filename year old_index source1 source2 sentence1 sentence2 score".replace(" ", "\t")
    row = "0\tg\tf\t2015\t7\tnone\tnone\ta\tb\t4.2\n"
    path.write_text(f"{header}\n{row}")
    pairs = read_sts_file(path).subsets["dev"]
    assert (pairs.first, pairs.second, pairs.scores.tolist()) == (("a",), ("b",), [4.2])
    path.write_text(row)
    with pytest.raises(UserError, match=r"dev.tsv: 10 columns; STS-B has 7 to 9"):
        read_sts_file(path)


def test_sick_has_a_header_and_three_splits(tmp_path):
    write_sick(tmp_path / "SICK")
    assert read_sts(tmp_path, "SICK-R").subsets["SICK-R"].scores.tolist() == [3.0, 3.1]
    every = read_sts(tmp_path, "SICK-R-all")
    assert len(every) == 6 and len(every.hashes) == 3
    assert every.subsets["SICK-R-all"].first[0] == "A train 0"
    path = tmp_path / "SICK" / "SICK_trial.txt"
    assert read_sts_file(path).subsets["SICK_trial"].scores.tolist() == [2.0, 2.1]
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(UserError, match=r"SICK_trial.txt:1: is a scored pair; the line of the columns' names"):
        read_sts(tmp_path, "SICK-R-trial")


def test_any_table_of_two_texts_and_a_score(tmp_path):
    (tmp_path / "sts17.es-en.tsv").write_text("Un perro.\tA dog.\t5\n\nUn\u2028gato\tA car.\t0.2\n", encoding="utf-8")
    data = read_sts_file(tmp_path / "sts17.es-en.tsv")
    pairs = data.subsets[data.name]
    assert data.name == "sts17.es-en" and len(data) == 2
    assert pairs.first == ("Un perro.", "Un\u2028gato") and pairs.scores.tolist() == [5.0, 0.2]
    (tmp_path / "STS.input.track1.ar.txt").write_text("x\ty\nz\tw\n")
    (tmp_path / "STS.gs.track1.ar.txt").write_text("1\n2\n")
    assert read_sts_file(tmp_path / "STS.input.track1.ar.txt").subsets["track1.ar"].scores.tolist() == [1.0, 2.0]


def test_broken_tables_are_named_by_file_and_line(tmp_path):
    for content, message in (
        ("a\tb\t1\na\tb\tx\n", ":2: the score 'x' is not a number$"),
        ("text\ttext\tscore\n", ":1: the score 'score' is not a number; if this is a header, remove it"),
        ("a\tb\tnan\n", ":1: the score 'nan' is not a number"),
        ("\n", ": holds no scored pair"),
    ):
        (tmp_path / "table.tsv").write_text(content)
        with pytest.raises(UserError, match=f"table.tsv{message}"):
            read_sts_file(tmp_path / "table.tsv")


def test_broken_years_are_named_by_file_and_line(tmp_path):
    folder = write_year(tmp_path / "STS16-en-test", "STS16")
    gold = folder / "STS.gs.plagiarism.txt"
    for content, message in [
        ("1\n", "STS.input.plagiarism.txt: 2 pairs, but .*STS.gs.plagiarism.txt has 1 lines"),
        ("1\nhigh\n", "STS.gs.plagiarism.txt:2: the score 'high' is not a number"),
        ("\n\n", "STS.input.plagiarism.txt: holds no scored pair"),
    ]:
        gold.write_text(content)
        with pytest.raises(UserError, match=message):
            read_sts(tmp_path, "STS16")
    gold.unlink()
    with pytest.raises(UserError, match="STS.gs.plagiarism.txt: this file of subset plagiarism is missing"):
        read_sts(tmp_path, "STS16")
    gold.write_text("1\n2\n")
    with pytest.raises(UserError, match="STS99: no such STS task; valid are STS12, "):
        read_sts(tmp_path, "STS99")
    with pytest.raises(UserError, match="gone.tsv: cannot read it .No such file"):
        read_sts_file(tmp_path / "gone.tsv")


@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real data")
def test_real_sets_have_their_published_sizes():
    sizes = {"STS12": 3108, "STS14": 3750, "STS-B-train": 5749, "STS-B-dev": 1500, "STS-B": 1379}
    for task, size in (sizes | {"SICK-R-train": 4500, "SICK-R-trial": 500}).items():
        assert (len(read_sts(SHARED, task)), read_sts(SHARED, task).unscored) == (size, 0)
