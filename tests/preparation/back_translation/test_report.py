"""Sums over chunks are what one look at everything gives."""

import random
from collections import Counter

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from fairseq_clear.preparation.back_translation.translation_report import (
    build_report,
    choose_examples,
    compare,
    report_text,
)


def made(count: int) -> tuple[list[str], list[str]]:
    rng = random.Random(3)
    words = ["the", "a", "dog", "cat", "sees", "likes", "big", "small", "house", ",", ".", "tree"]
    originals = [" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(count)]
    results = [" ".join(w for w in text.split() if rng.random() < 0.9) or "a" for text in originals]
    originals[3] = results[3] = ""
    return originals, results


def test_self_bleu_and_chrf_of_chunks_are_those_of_the_whole() -> None:
    originals, results = made(90)
    counts: Counter[str] = Counter()
    for start in range(0, 90, 20):
        counts.update(compare(originals[start : start + 20], results[start : start + 20], "en"))
    kept = [index for index, text in enumerate(originals) if text]
    whole = BLEU(force=True).corpus_score([results[i] for i in kept], [[originals[i] for i in kept]])
    report = build_report(counts, {}, 1.0, 0)
    assert report["self_bleu"] == pytest.approx(whole.score, abs=1e-3)
    assert 0 < whole.score < 100
    characters = CHRF().corpus_score([results[i] for i in kept], [[originals[i] for i in kept]])
    assert report["self_chrf"] == pytest.approx(characters.score, abs=1e-3)
    assert 0 < characters.score < 100
    swapped = compare(results, originals, "en")
    assert build_report(swapped, {}, 1.0, 0)["self_bleu"] != pytest.approx(whole.score, abs=1e-3)
    assert build_report(swapped, {}, 1.0, 0)["self_chrf"] != pytest.approx(characters.score, abs=1e-3)


@pytest.mark.parametrize(
    ("text", "other"), [("a", "b"), ("abc", "abd"), ("a b c d e f g", "abcdefg"), ("ab", "a very long text")]
)
def test_chrf_of_short_texts_is_that_of_sacrebleu(text: str, other: str) -> None:
    report = build_report(compare([text], [other], "en"), {}, 1.0, 0)
    assert report["self_chrf"] == pytest.approx(CHRF().corpus_score([other], [[text]]).score, abs=1e-3)


def test_examples_are_spread_and_changed() -> None:
    texts = [(str(number), "" if number == 4 else str(number + number % 2)) for number in range(10)]
    chosen = choose_examples(texts, 10, 3)
    assert [(one["line"], one["text"], one["paraphrases"]) for one in chosen] == [
        (2, "1", ["2"]),
        (4, "3", ["4"]),
        (8, "7", ["8"]),
    ]
    assert choose_examples(texts, 10, 0) == [] == choose_examples([("a", "a")], 1, 3)
    shown = report_text(build_report(compare(["1"], ["2"], "en"), {}, 1.0, 1, chosen))
    assert shown.endswith("examples (3):\n  2: 1\n  -> 2\n  4: 3\n  -> 4\n  8: 7\n  -> 8")


def test_lengths_and_identical_lines() -> None:
    originals = ["a b c d", "a b c d", "", "a b", "a b c d"]
    results = ["a b c d", "a", "", "a b c d e", "e f g"]
    counts = compare(originals, results, "en") + Counter(lines=5, blank=1)
    report = build_report(counts, {}, 2.0, 5)
    assert report["identical"] == 1 and report["identical_share"] == 0.25
    assert report["length_ratio"] == pytest.approx(13 / 14, abs=1e-6)
    assert report["length_ratios"] == {
        "below 0.5": 1,
        "0.5 to 0.8": 1,
        "0.8 to 1.25": 1,
        "1.25 to 2": 0,
        "above 2": 1,
    }
    assert report["sentences_per_second"] == 2.5
    assert "1 identical to the original (25.00%)" in report_text(report)


def test_chinese_is_cut_into_characters() -> None:
    assert compare(["我喜欢大房子"], ["我喜欢小房子"], "zh")["bleu 0"] == 6  # words of the result
    assert compare(["我喜欢大房子"], ["我喜欢小房子"], "en")["bleu 0"] == 1


def test_nothing_but_blank_lines_has_a_report() -> None:
    counts = compare(["", ""], ["", ""], "en") + Counter(lines=2, blank=2)
    report = build_report(counts, {}, 0.0, 0)
    assert report["self_bleu"] is None and report["identical_share"] is None
    assert "2 lines, 2 of them blank" in report_text(report)
