"""Real English through the whole chain: prepare, synonyms, views, training."""

import json
import lzma
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary

from fairseq_clear.models.encoding import read_tokens
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.synonym_files import load_synonyms
from tests.conftest import SHARED, run
from tests.integration.test_command_lines import numbers, train

pytestmark = [pytest.mark.slow, pytest.mark.real]
CLI = (sys.executable, "-m", "fairseq_clear.cli")
UPDATES = 100


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


def test_what_was_prepared(folder: Path) -> None:
    manifest = json.loads((folder / "clear.json").read_text())
    train_split = manifest["splits"]["train"]
    assert train_split["documents"] > 9_000
    assert train_split["tokens"] > 2_000_000
    assert train_split["unknown"] / train_split["tokens"] < 0.001


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


# With 70 % of the words deleted, two views of a sentence share too little for 100 updates to show.
@pytest.mark.parametrize("augment", ["del-span+reorder", "subs+del-word:ratio=0.3"])
def test_the_loss_falls(augment: str, folder: Path, tmp_path: Path) -> None:
    result = train(
        folder,
        tmp_path / "run",
        *("--augment", augment, "--max-update", str(UPDATES), "--total-num-update", "2000", "--warmup-updates", "15"),
        *("--tokens-per-sample", "48", "--batch-size", "24", "--log-interval", "10", "--disable-validation"),
        *("--num-workers", "1"),
    )
    lines = numbers(result)
    assert int(float(lines[-1]["num_updates"])) == UPDATES
    mlm = [float(line["mlm_loss"]) for line in lines]
    assert np.mean(mlm[-3:]) < mlm[0] - 1.5
    contrastive = [float(line["contrastive_loss"]) for line in lines]
    assert np.mean(contrastive[-3:]) < contrastive[0]
    log = result.stdout + result.stderr
    assert re.search(r"\d+ blank lines dropped, \d+ split into \d+ samples by --tokens-per-sample 48", log)
    assert "will be skipped" not in log
    if augment.startswith("subs"):
        assert 0.1 < float(lines[-1]["substituted_share"]) <= 0.3
