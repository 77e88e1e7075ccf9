"""fairseq-clear synonyms, on a folder of whole words, and on real text with the list that CLEAR uses."""

import argparse
import json
import shutil

import numpy as np
import pytest

from fairseq_clear.augmentations import Symbols
from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.cli.prepare import Synonyms
from fairseq_clear.errors import UserError
from fairseq_clear.text.data_folders import read_dictionary
from fairseq_clear.text.synonym_files import load_synonyms
from tests.augmentations.cases import make_view
from tests.conftest import WORDS

NEIGHBOURS = {WORDS[0]: WORDS[1:4], WORDS[1]: [WORDS[2], "absent"], WORDS[2]: [], "absent": [WORDS[0]]}


@pytest.fixture
def folder(data_bin, tmp_path):
    copy = tmp_path / "bin"
    shutil.copytree(data_bin, copy)
    (copy / "clear.json").write_text(json.dumps({"format": 1, "tokenizer": {"kind": "none", "files": []}}))
    (tmp_path / "list.json").write_text(json.dumps(NEIGHBOURS))
    return copy


def run(folder, *flags, source=None):
    parser = argparse.ArgumentParser()
    Synonyms.add_arguments(parser)
    source = source or str(folder.parent / "list.json")
    return Synonyms.call(parser.parse_args(["--data-bin", str(folder), "--source", source, *flags]))


def test_the_table_serves_the_augmentation(folder):
    run(folder)
    symbols = read_dictionary(folder / "dict.txt")
    table = load_synonyms(folder / "synonyms.npz", folder / "dict.txt")
    chain = build_augmentation("subs:ratio=1", Symbols(0, 2, 1, len(symbols) + 1, len(symbols), table))
    text = [0, *map(symbols.index, WORDS[:4]), 2]
    tokens = [symbols[token] for token in make_view(chain, text, np.random.default_rng(1)).tokens]
    assert tokens[1] in WORDS[1:4] and tokens[2] == WORDS[2] and tokens[3:5] == WORDS[2:4]


def test_an_existing_table_is_replaced_only_when_asked(folder):
    (folder / "synonyms.npz").write_text("mine")
    with pytest.raises(UserError, match="exists already; add --overwrite"):
        run(folder)
    assert (folder / "synonyms.npz").read_text() == "mine"
    run(folder, "--overwrite")
    assert len(load_synonyms(folder / "synonyms.npz", folder / "dict.txt")) == 2


def test_a_sharded_folder_gets_its_table_where_training_looks(folder, tmp_path):
    (tmp_path / "clear.json").write_text(json.dumps({"format": 1, "shards": ["bin"]}))
    run(tmp_path, source=str(tmp_path / "list.json"))
    assert (folder / "synonyms.npz").exists()


@pytest.mark.parametrize(
    ("flags", "source", "said"),
    [
        (["--output", "/proc/s.npz"], None, "--output /proc/s.npz: cannot write it"),
        ([], "absent.json", "absent.json: cannot read it"),
        ([], "film.json", "none of its 1 words is in the vocabulary"),
    ],
)
def test_mistakes_are_refused_and_nothing_is_written(folder, flags, source, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "film.json").write_text('{"film": ["movie"]}')
    before = sorted(folder.iterdir())
    with pytest.raises(UserError, match=said):
        run(folder, *flags, source=source)
    assert sorted(folder.iterdir()) == before
