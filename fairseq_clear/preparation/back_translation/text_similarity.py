"""Compares texts with their round trips: counts that can be summed over chunks, and BLEU, chrF and length ratio from them."""

from collections import Counter
from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU

BLEU_ORDER, CHRF_ORDER, CHRF_BETA = 4, 6, 2  # the defaults of sacrebleu
RATIO_EDGES = (0.5, 0.8, 1.25, 2.0)  # bins of words out / words in, symmetric around 1
RATIO_BINS = ("below 0.5", "0.5 to 0.8", "0.8 to 1.25", "1.25 to 2", "above 2")
# sacrebleu's tokenizers by language; the default is 13a
BLEU_TOKENIZERS = {"zh": "zh", "zho": "zh", "ja": "char", "jpn": "char", "ko": "char", "kor": "char"}


def compare(originals: Sequence[str], results: Sequence[str], language: str) -> Counter[str]:
    """Count, over the lines that are not blank: identical lines, words, bins of length ratios, statistics of BLEU and chrF.

    BLEU compares the results with the originals (Papineni et al. 2002; Zhu et al. 2018 call it self-BLEU): the lower,
    the more the wording changed. chrF (Popovic 2015) does the same for characters.

    Args:
        originals: lines.
        results: their round trips.
        language: language of both, such as ``en`` or ``eng_Latn``; BLEU splits Chinese, Japanese and Korean into characters.
    """
    pairs = [(original, result) for original, result in zip(originals, results, strict=True) if original]
    counts: Counter[str] = Counter()
    if not pairs:
        return counts
    counts["pairs"] = len(pairs)
    for original, result in pairs:
        words_in, words_out = len(original.split()), len(result.split())
        counts["identical"] += original == result
        counts["words_in"] += words_in
        counts["words_out"] += words_out
        ratio = words_out / words_in
        counts[f"ratio {RATIO_BINS[sum(ratio > edge for edge in RATIO_EDGES)]}"] += 1
        _count_characters(original, result, counts)
    bleu = BLEU(tokenize=BLEU_TOKENIZERS.get(language.split("_")[0].split("-")[0]), force=True)
    score = bleu.corpus_score([result for _, result in pairs], [[original for original, _ in pairs]])
    counts["bleu sys_len"], counts["bleu ref_len"] = score.sys_len, score.ref_len
    for order in range(BLEU_ORDER):
        counts[f"bleu correct {order + 1}"] = score.counts[order]
        counts[f"bleu total {order + 1}"] = score.totals[order]
    return counts


def _count_characters(original: str, result: str, counts: Counter[str]) -> None:
    """Add the character n-grams of a pair, without white space: those of either text, and those of both."""
    reference, hypothesis = "".join(original.split()), "".join(result.split())
    for order in range(1, CHRF_ORDER + 1):
        theirs, ours = _ngrams(reference, order), _ngrams(hypothesis, order)
        counts[f"chrf ref {order}"] += theirs.total()
        # sacrebleu leaves out the n-grams of a text whose other text is too short for any
        counts[f"chrf sys {order}"] += ours.total() if theirs else 0
        counts[f"chrf correct {order}"] += (theirs & ours).total()


def _ngrams(text: str, order: int) -> Counter[str]:
    return Counter(text[start : start + order] for start in range(len(text) - order + 1))


def bleu_score(counts: Counter[str]) -> float | None:
    """BLEU from summed statistics, 0 to 100; None without lines."""
    if not counts["bleu ref_len"]:
        return None
    orders = range(1, BLEU_ORDER + 1)
    return BLEU.compute_bleu(
        correct=[counts[f"bleu correct {order}"] for order in orders],
        total=[counts[f"bleu total {order}"] for order in orders],
        sys_len=counts["bleu sys_len"],
        ref_len=counts["bleu ref_len"],
        smooth_method="exp",
    ).score


def chrf_score(counts: Counter[str]) -> float | None:
    """ChrF from summed statistics, 0 to 100; None without lines.

    The F score of precision and recall, each averaged over the orders; recall weighs twice as much.
    """
    orders = [
        order for order in range(1, CHRF_ORDER + 1) if counts[f"chrf sys {order}"] and counts[f"chrf ref {order}"]
    ]
    if not orders:
        return None
    precision, recall = (
        sum(counts[f"chrf correct {order}"] / counts[f"chrf {text} {order}"] for order in orders) / len(orders)
        for text in ("sys", "ref")
    )
    if not precision + recall:
        return 0.0
    weight = CHRF_BETA**2
    return 100 * (1 + weight) * precision * recall / (weight * precision + recall)
