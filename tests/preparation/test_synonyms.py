"""Lists of synonyms from JSON and WordNet, and their tables: forms, unknown symbols, words that are several, coverage."""

import argparse
import json
import re
import shutil
import sys
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
from fairseq.data import Dictionary

from fairseq_clear.augmentations import Symbols
from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.cli.prepare import Synonyms
from fairseq_clear.errors import UserError
from fairseq_clear.preparation.synonym_building import build_table, read_wordnet
from fairseq_clear.text.data_folders import read_dictionary
from fairseq_clear.text.synonym_files import find_word_starts, load_synonyms
from tests.augmentations.cases import every_row, make_view
from tests.conftest import WORDS


class ChunkTokenizer:
    """As sentencepiece writes them: words begin with U+2581; chunks of three letters, each other character alone."""

    mark = "\u2581"

    def encode(self, text):
        pieces = []
        for word in text.split():
            pieces += re.findall(rf"{self.mark}?[^\W\d_]{{1,3}}|{self.mark}?.", self.mark + word)
        return pieces

    def decode(self, symbols):
        return "".join(symbols).replace(self.mark, " ").strip()

    def is_word_start(self, symbol):
        return symbol.startswith(self.mark)


class ByteTokenizer(ChunkTokenizer):
    """As GPT-2 writes them: the first word of a text has no mark."""

    mark = "\u0120"

    def encode(self, text):
        pieces = super().encode(text)
        if pieces and not text.startswith(" "):
            pieces[0] = pieces[0].removeprefix(self.mark)
        return [piece for piece in pieces if piece]


def build(synonyms, *texts, tokenizer=None):
    """{word: [alternative, ...]} of a table over the symbols of texts, in symbols joined by spaces."""
    tokenizer = tokenizer or ChunkTokenizer()
    pieces = [piece for text in texts for piece in tokenizer.encode(text)]
    symbols = list(dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *pieces]))

    def spelled(word):
        return " ".join(symbols[piece] for piece in word)

    rows = every_row(build_table(synonyms, tokenizer, symbols))
    return {spelled(word): list(map(spelled, others)) for word, others in rows.items()}


CASES = "cat dog Cat Dog CAT DOG kitten Kitten KITTEN"


@pytest.mark.parametrize(
    ("synonyms", "text", "rows"),
    [
        (
            {"cat": ["kitten", "dog"], "dog": []},
            CASES,
            {"_cat": ["_kit ten", "_dog"], "_Cat": ["_Kit ten", "_Dog"], "_CAT": ["_KIT TEN", "_DOG"]},
        ),
        ({"Cat": ["dog"]}, CASES, {"_Cat": ["_dog"]}),
        ({"cat": ["McC"]}, "cat McC Cat MCC CAT", {"_cat": ["_McC"], "_Cat": ["_McC"], "_CAT": ["_MCC"]}),
        ({"cat": ["cow", "dog"], "cow": ["cat"], "dog": ["cow"]}, "cat dog", {"_cat": ["_dog"]}),
        (
            {"big cat": ["dog"], "u.s": ["dog"], "cat": ["big dog"], "don't": ["cat"]},
            "big cat dog u.s don't",
            {"_cat": ["_big _dog"], "_don ' t": ["_cat"]},
        ),
        ({"cat": ["cat", "dog", " ", "dog"], "dog": ["dog"], "": ["cat"]}, "cat dog", {"_cat": ["_dog"]}),
        ({"abc": [" abc ", "def"]}, "abc def", {"_abc": ["_def"]}),
        *(
            (dict(listed), "cat kitten Cat Kitten Dog", {"_cat": ["_kit ten"], "_Cat": ["_Dog"]})
            for listed in permutations([("cat", ["kitten"]), ("Cat", ["Dog"])])
        ),  # a listed form keeps its own synonyms
    ],
)
def test_rows_and_what_is_left_out(synonyms, text, rows):
    assert build(synonyms, text) == json.loads(json.dumps(rows).replace("_", "\u2581"))


def test_byte_level_vocabularies_get_rows_with_and_without_a_space():
    rows = build({"cat": ["dog"]}, "cat", " cat", "dog", " dog", tokenizer=ByteTokenizer())
    assert rows == {"cat": ["dog"], "\u0120cat": ["\u0120dog"]}


def test_words_begin_where_the_tokenizer_says_and_at_closing_punctuation():
    symbols = ["<s>", "<pad>", "</s>", "<unk>", "\u2581a", "b", ".", "),", "'", "-", "\u2581(", "\ufffd", "3"]
    starts = find_word_starts(symbols, ChunkTokenizer()).tolist()
    assert starts == [True, True, True, False, True, False, True, True, False, False, True, False, False]


def test_the_dictionary_is_read_as_fairseq_reads_it(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("\u2581a 5\n. 4\n\u2028x 3\nmadeupword0000 0\n. 1 #fairseq:overwrite\n", encoding="utf-8")
    assert read_dictionary(path) == Dictionary.load(str(path)).symbols
    for line in ("word", "word many", " 5", ""):
        path.write_text(f"a 1\n{line}\nb 1\n")
        with pytest.raises(UserError, match="dict.txt, line 2: not 'symbol count'"):
            read_dictionary(path)


SYNSETS = {
    "happen": [["happen", "take_place"], ["happen", "materialize", "take_place"]],
    "take_place": [["happen", "take_place"]],
    "less": [["less", "fewer"], ["little", "small"]],  # the second is that of its base form
    "Paris": [["Paris", "capital_of_France"]],
    "lone": [["lone"]],
}


class FakeWordnet:
    def get_version(self):
        return "3.0"

    def all_lemma_names(self):
        return iter([*SYNSETS, "happen"])

    def synsets(self, lemma):
        return [SimpleNamespace(lemma_names=lambda names=names: names) for names in SYNSETS[lemma]]


@pytest.fixture
def wordnet(monkeypatch):
    reader = FakeWordnet()
    monkeypatch.setitem(sys.modules, "nltk.corpus", SimpleNamespace(wordnet=reader))
    return reader


def test_wordnet_gives_the_other_lemmas_of_a_words_synsets(wordnet, monkeypatch):
    source = read_wordnet()
    happen = {"happen": ["take place", "materialize"]}
    assert source.synonyms == {"Paris": ["capital of France"], **happen, "less": ["fewer"], "lone": []}
    assert source.name == "wordnet 3.0"
    assert len(source.content_hash) == 64 and read_wordnet().content_hash == source.content_hash
    monkeypatch.setattr(FakeWordnet, "synsets", lambda self, lemma: 1 / 0)  # missing or damaged
    with pytest.raises(UserError, match="--source wordnet: .*python -m nltk.downloader"):
        read_wordnet()


# The command

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


def test_the_table_serves_the_augmentation(folder, capsys):
    (folder / "synonyms.npz").write_text("mine")
    with pytest.raises(UserError, match="exists already; add --overwrite"):
        run(folder)
    run(folder, "--overwrite")
    assert capsys.readouterr().out.startswith("list.json: 4 words; ")
    symbols = read_dictionary(folder / "dict.txt")
    table = load_synonyms(folder / "synonyms.npz", folder / "dict.txt")
    assert len(table) == 2
    chain = build_augmentation("subs:ratio=1", Symbols(0, 2, 1, len(symbols) + 1, len(symbols), table))
    text = [0, *map(symbols.index, WORDS[:4]), 2]
    tokens = [symbols[token] for token in make_view(chain, text, np.random.default_rng(1)).tokens]
    assert tokens[1] in WORDS[1:4] and tokens[2] == WORDS[2] and tokens[3:5] == WORDS[2:4]


def test_a_sharded_folder_gets_its_table_where_training_looks(folder, tmp_path):
    (tmp_path / "clear.json").write_text(json.dumps({"format": 1, "shards": ["bin"]}))
    run(tmp_path, source=str(tmp_path / "list.json"))
    assert (folder / "synonyms.npz").exists()
