"""Real English through prepare and synonyms."""

import json
import lzma
import sys
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary

from fairseq_clear.models.encoding import read_tokens
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.synonym_files import load_synonyms
from tests.conftest import SHARED, run

pytestmark = [pytest.mark.slow, pytest.mark.real]
CLI = (sys.executable, "-m", "fairseq_clear.cli")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 Newsgroups, movie reviews and WikiText-2 as one data folder with synonyms."""
    data = tmp_path_factory.mktemp("real") / "bin"
    corpora = SHARED / "corpora"
    sources = [corpora / name for name in ("20news.test.jsonl.xz", "movie_reviews.jsonl.xz", "wikitext2.valid.txt.xz")]
    run(*CLI, "prepare", *sources, "--dest", data, "--vocab-size", "8000", "--spm-sample-mb", "2", "--workers", "2")
    table = SHARED / "synonyms" / "counterfitted_neighbors.json"
    run(*CLI, "synonyms", "--data-bin", data, "--source", table)
    return data


def test_synonyms_cover_about_what_counting_words_says(folder: Path) -> None:
    with lzma.open(SHARED / "corpora" / "wikitext2.valid.txt.xz", "rt", encoding="utf-8") as file:
        lines = [line.strip().replace("<unk>", "") for line in file if line.strip()]
    dictionary, tokenizer = Dictionary.load(str(folder / "dict.txt")), load_tokenizer(folder)
    table = load_synonyms(folder / "synonyms.npz", folder / "dict.txt")
    listed = json.loads((SHARED / "synonyms" / "counterfitted_neighbors.json").read_text())
    words, found, by_hand = 0, 0, 0
    for line in lines:
        tokens = np.array(read_tokens(dictionary, tokenizer, line)[1:-1])
        starts = np.flatnonzero(table.is_word_start[tokens] | (np.arange(len(tokens)) == 0))
        spoken = line.lower().split()
        words, found = words + len(spoken), found + int((table.find(tokens, starts) >= 0).sum())
        by_hand += sum(bool(listed.get(word)) for word in spoken)
    assert 60_000 < len(table) < 80_000
    assert abs(found - by_hand) < 0.01 * words and 0.3 < found / words < 0.6
