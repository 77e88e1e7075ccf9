"""Aligned texts: wherever a line goes, its paraphrases go, whatever happens to blank lines, documents and shards."""

import json
import tempfile
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.preparation import corpus_reading
from fairseq_clear.text.data_folders import load_tokenizer
from tests.preparation.corpora import WORDS, sentencepiece_model
from tests.preparation.test_failures import fails
from tests.preparation.test_prepare import clear_json, contents, data_of, ids_of, make

LINES = st.lists(
    st.tuples(
        st.sampled_from(["text", "text", "text", "", "  ", "\u200b"]),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=6),
        st.sampled_from(["full", "full", "", "\t", "\u200b"]),
    ),
    min_size=1,
    max_size=40,
)


def texts_of(folder: Path, split: str, root: Path) -> list[str]:
    """The lines of a data set, decoded by the tokenizer and dictionary of ``root``."""
    dictionary, tokenizer = Dictionary.load(str(root / "dict.txt")), load_tokenizer(root)
    return [tokenizer.decode([dictionary[number] for number in line]) for line in ids_of(folder, split)]


def backwards(text: str) -> str:
    return " ".join(reversed(text.split()))


def misplaced(root: Path, expected: dict[str, dict[str, str]]) -> list[str]:
    """Original lines whose paraphrase, at the same index, is another than the expected one; every folder is looked at."""
    wrong, seen = [], set()
    for name, wanted in expected.items():
        for split in ("train", "valid"):
            originals, others = texts_of(root, split, root), texts_of(root / "paraphrase" / name, split, root)
            assert len(originals) == len(others)
            seen |= {text for text in originals if text}
            wrong += [text for text, other in zip(originals, others, strict=True) if other != wanted.get(text, "")]
    return wrong if seen else ["nothing"]


def write_pairs(folder: Path, count: int = 40) -> tuple[Path, Path, dict[str, str]]:
    """An input of documents, its aligned text in which every fifth is blank, and what belongs to what."""
    pairs: dict[str, str] = {}
    lines, others = [], []
    for number in range(count):
        text = f"line {number} " + " ".join(WORDS[number % 7 : number % 7 + 4])
        pairs[text] = "" if number % 5 == 4 else backwards(text)
        lines += [text] + [""] * (number % 3 == 2)
        others += [pairs[text]] + [""] * (number % 3 == 2)
    (folder / "in.txt").write_text("\n".join(lines) + "\n")
    (folder / "de.txt").write_text("\n".join(others) + "\n")
    return folder / "in.txt", folder / "de.txt", pairs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentencepiece_model(tmp_path_factory.mktemp("model") / "given.model")


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES, st.integers(1, 3), st.sampled_from([None, "."]), st.integers(0, 9), st.sampled_from([30, 1 << 20]))
def test_every_line_keeps_its_paraphrases(model, drawn, shards, document_start, seed, part_bytes) -> None:
    originals, german, chinese = [], [], []
    expected: dict[str, dict[str, str]] = {"de": {}, "zh": {}}
    for number, (kind, words, paraphrase) in enumerate(drawn):
        text = f"{number} " + " ".join(words) if kind == "text" else kind
        originals.append(text)
        german.append(backwards(text) if paraphrase == "full" else paraphrase)
        chinese.append("zh " + text if number % 2 else "")
        if kind == "text":
            expected["de"][text] = backwards(text) if paraphrase == "full" else ""
            expected["zh"][text] = "zh " + text if number % 2 else ""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairseq_clear.preparation.binarize.PART_BYTES", part_bytes)
        folder = Path(name)
        for file, lines in (("in", originals), ("de", german), ("zh", chinese)):
            (folder / f"{file}.txt").write_text("\n".join(lines) + "\n")
        pairs = (("de", folder / "de.txt"), ("zh", folder / "zh.txt"))
        chosen = {"spm_model": model, "shards": shards, "seed": seed, "document_start": document_start}
        try:
            make(folder / "plain", folder / "in.txt", valid_share=0.3, **chosen)
        except UserError as refused:  # too few documents: then with paraphrases too, in the same words
            with pytest.raises(UserError) as again:
                make(folder / "d", folder / "in.txt", valid_share=0.3, paraphrase=pairs, **chosen)
            assert str(again.value).split("txt")[-1] == str(refused).split("txt")[-1]
            return
        make(folder / "d", folder / "in.txt", valid_share=0.3, paraphrase=pairs, **chosen)
        roots = [folder / "d" / f"shard{n}" for n in range(shards)] if shards > 1 else [folder / "d"]
        for root in roots:
            assert misplaced(root, expected) == []
        kept = {n: data for n, data in data_of(folder / "d").items() if "paraphrase" not in n}
        assert kept == data_of(folder / "plain")  # the text itself is what it is without them


def test_a_shifted_text_is_seen_by_that_check(model: Path, tmp_path: Path) -> None:
    original, german, pairs = write_pairs(tmp_path)
    lines = german.read_text().splitlines()
    for name, text in (("d", lines), ("shifted", lines[1:] + lines[:1])):
        german.write_text("\n".join(text) + "\n")
        make(tmp_path / name, original, paraphrase=(("de", german),), spm_model=model)
        assert bool(misplaced(tmp_path / name, {"de": pairs})) == (name == "shifted")


def test_folders_and_counts(model: Path, tmp_path: Path) -> None:
    original, german, _ = write_pairs(tmp_path)
    make(tmp_path / "d", original, paraphrase=(("de", german),), spm_model=model, shards=2)
    for shard in (tmp_path / "d" / "shard0", tmp_path / "d" / "shard1"):
        aligned = shard / "paraphrase" / "de"
        assert sorted(contents(aligned)) == ["dict.txt", "train.bin", "train.idx", "valid.bin", "valid.idx"]
        assert (aligned / "dict.txt").samefile(shard / "dict.txt")
        splits = json.loads((shard / "clear.json").read_text())["paraphrases"]["de"]["splits"]
        for split, counts in splits.items():
            own, others = ids_of(shard, split), ids_of(aligned, split)
            is_blank = [len(a) > 1 and len(b) == 1 for a, b in zip(own, others, strict=True)]
            assert counts["blank"] == sum(is_blank) and counts["tokens"] == sum(map(len, others))
            assert counts["sentences"] == sum(len(line) > 1 for line in others)
    assert "paraphrases" not in clear_json(tmp_path / "d")
    assert not (tmp_path / "d" / "work").exists()


@pytest.mark.parametrize("is_longer", [False, True])
def test_unequal_line_counts(model: Path, tmp_path: Path, is_longer: bool) -> None:
    original, german, _ = write_pairs(tmp_path)
    text = german.read_text().splitlines()
    german.write_text("\n".join([*text, "and more"] if is_longer else text[:-1]) + "\n")
    message = fails(tmp_path / "d", original, paraphrase=(("zh", original), ("de", german)), spm_model=model)
    short, long = (original, german) if is_longer else (german, original)
    assert message.startswith(f"{short}: ends after line {53 if is_longer else 52}, and {long} does not; ")


def test_an_invisible_paraphrase_is_blank() -> None:
    rows = [("text", "\u200b"), ("more", " other ")]
    assert list(corpus_reading.text_rows(rows, None)) == [("text", ""), ("more", "other")]
