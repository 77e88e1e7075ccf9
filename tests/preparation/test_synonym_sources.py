"""Lists of synonyms from JSON and from WordNet, by a tiny stand-in for nltk's reader."""

import sys
from types import SimpleNamespace

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.synonym_building import read_source

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


def test_wordnet_gives_the_other_lemmas_of_a_words_synsets(wordnet):
    source = read_source("wordnet")
    assert source.synonyms == {
        "Paris": ["capital of France"],
        "happen": ["take place", "materialize"],
        "less": ["fewer"],
        "lone": [],
    }
    assert source.name == "wordnet 3.0"
    assert len(source.content_hash) == 64 and read_source("wordnet").content_hash == source.content_hash


def test_missing_wordnet_data_is_refused_with_the_command_that_gets_it(wordnet, monkeypatch):
    def missing():
        raise LookupError("\n*****\n  Resource wordnet not found.\n")

    monkeypatch.setattr(wordnet, "get_version", missing)
    with pytest.raises(UserError, match="python -m nltk.downloader wordnet") as error:
        read_source("wordnet")
    assert "\n" not in str(error.value)


def test_the_real_reader_says_the_same_where_there_is_no_data(monkeypatch):
    nltk_data = pytest.importorskip("nltk.data")
    from nltk.corpus.util import LazyCorpusLoader

    monkeypatch.setattr(nltk_data, "path", [])
    reader = pytest.importorskip("nltk.corpus")
    lazy = LazyCorpusLoader("wordnet", reader.WordNetCorpusReader, None)
    monkeypatch.setitem(sys.modules, "nltk.corpus", SimpleNamespace(wordnet=lazy))
    with pytest.raises(UserError, match="nltk has no WordNet data here"):
        read_source("wordnet")


@pytest.mark.parametrize(("content", "said"), [(None, r"index\.noun"), ("damaged", "StopIteration")])
def test_an_incomplete_wordnet_folder_is_one_line(tmp_path, monkeypatch, content, said):
    nltk_data = pytest.importorskip("nltk.data")
    from nltk.corpus.util import LazyCorpusLoader

    folder = tmp_path / "corpora" / "wordnet"
    folder.mkdir(parents=True)
    for name in ("lexnames", "data.adj", "index.adj", "index.adv"):
        (folder / name).write_text("")
    if content is not None:
        (folder / "index.noun").write_text(content)
    monkeypatch.setattr(nltk_data, "path", [str(tmp_path)])
    reader = pytest.importorskip("nltk.corpus")
    lazy = LazyCorpusLoader("wordnet", reader.WordNetCorpusReader, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "nltk.corpus", SimpleNamespace(wordnet=lazy))
    with pytest.raises(UserError, match=rf"damaged \(.*{said}.*\); delete the folder .* --force") as error:
        read_source("wordnet")
    assert "\n" not in str(error.value)


def test_missing_nltk_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk.corpus", None)
    with pytest.raises(UserError, match="nltk is not installed; pip install nltk"):
        read_source("wordnet")


def test_json_is_read_with_its_hash(tmp_path):
    (tmp_path / "list.json").write_text('{"film": ["movie"], "all": []}')
    source = read_source(str(tmp_path / "list.json"))
    assert source.synonyms == {"film": ["movie"], "all": []}
    assert source.name == "list.json"
    (tmp_path / "list.json").write_text('{"film": ["movie"]}')
    assert read_source(str(tmp_path / "list.json")).content_hash != source.content_hash


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read it"),
        (b"{", "not UTF-8 JSON .*line 1"),
        (b"\xff", "not UTF-8 JSON"),
        (b"[1]", "holds a list"),
        (b'{"film": "movie"}', "'film' has 'movie', not a list of words"),
        (b'{"film": ["movie", 1]}', "'film' has .*, not a list of words"),
    ],
)
def test_other_files_are_refused_with_what_is_wanted(tmp_path, content, said):
    if content is not None:
        (tmp_path / "list.json").write_bytes(content)
    with pytest.raises(UserError, match=f"--source .*list.json: .*{said}.*a JSON object of word") as error:
        read_source(str(tmp_path / "list.json"))
    assert "\n" not in str(error.value)
