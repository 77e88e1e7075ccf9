"""Sums over chunks equal the figures of the whole text."""

import random
from collections import Counter

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from fairseq_clear.preparation.back_translation.translating import build_report, compare, report_text


def test_self_bleu_and_chrf_of_chunks_equal_the_whole() -> None:
    rng = random.Random(3)
    words = ["the", "a", "dog", "cat", "sees", "likes", "big", "small", "house", ",", ".", "tree"]
    originals = [" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(90)]
    results = [" ".join(w for w in text.split() if rng.random() < 0.9) or "a" for text in originals]
    originals[3] = results[3] = ""
    counts: Counter[str] = Counter()
    for start in range(0, 90, 20):
        counts.update(compare(originals[start : start + 20], results[start : start + 20], "en"))
    kept = [index for index, text in enumerate(originals) if text]
    report, swapped = build_report(counts, []), build_report(compare(results, originals, "en"), [])
    for name, metric in (("self_bleu", BLEU(force=True)), ("self_chrf", CHRF())):
        whole = metric.corpus_score([results[i] for i in kept], [[originals[i] for i in kept]]).score
        assert report[name] == pytest.approx(whole, abs=1e-3) and 0 < whole < 100
        assert swapped[name] != pytest.approx(whole, abs=1e-3)


def test_counts() -> None:
    originals = ["a b c d", "a b c d", "", "a b", "a b c d"]
    results = ["a b c d", "a", "", "a b c d e", "e f g"]
    report = build_report(compare(originals, results, "en") + Counter({"lines": 5, "blank": 1}), ["forward"])
    assert report["unchanged"] == 1 and report["unchanged_share"] == 0.25
    assert report["length_ratio"] == pytest.approx(13 / 14, abs=1e-6)
    assert "1 unchanged (25.00%)" in report_text(report)
    # Chinese is split into characters
    assert compare(["我喜欢大房子"], ["我喜欢小房子"], "zh")["bleu 0"] == 6  # words of the result
    assert compare(["我喜欢大房子"], ["我喜欢小房子"], "en")["bleu 0"] == 1
