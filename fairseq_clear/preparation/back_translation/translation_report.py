"""Makes the report of back-translation from counts of chunks and shards: kept lines, lengths, self-BLEU."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from fairseq_clear.preparation.back_translation.translation_settings import PASSES

BLEU_ORDER = 4
RATIO_EDGES = (0.5, 0.8, 1.25, 2.0)  # bins of words out / words in, symmetric around 1
RATIO_BINS = ("below 0.5", "0.5 to 0.8", "0.8 to 1.25", "1.25 to 2", "above 2")
# sacrebleu's tokenizers by language; the default is 13a
BLEU_TOKENIZERS = {"zh": "zh", "ja": "char", "ko": "char"}
PASS_COUNTS = {
    "split": "too long, translated sentence by sentence",
    "copied": "too long, kept unchanged",
    "failed": "failed, kept unchanged",
    "empty": "translated to nothing, kept unchanged",
    "cut": "cut off at the maximum length (--max-len-a, --max-len-b)",
}


def compare(originals: Sequence[str], results: Sequence[str], language: str) -> Counter[str]:
    """Count, over the lines that are not blank: identical lines, words, bins of length ratios, statistics of BLEU.

    BLEU compares the results with the originals (Papineni et al. 2002; Zhu et al. 2018 call it self-BLEU): the lower,
    the more the wording changed.
    """
    pairs = [(original, result) for original, result in zip(originals, results, strict=True) if original]
    counts: Counter[str] = Counter()
    if not pairs:
        return counts
    for original, result in pairs:
        words_in, words_out = len(original.split()), len(result.split())
        counts["identical"] += original == result
        counts["words_in"] += words_in
        counts["words_out"] += words_out
        ratio = words_out / words_in
        counts[f"ratio {RATIO_BINS[sum(ratio > edge for edge in RATIO_EDGES)]}"] += 1
    bleu = BLEU(tokenize=BLEU_TOKENIZERS.get(language), force=True)
    score = bleu.corpus_score([result for _, result in pairs], [[original for original, _ in pairs]])
    counts["bleu sys_len"], counts["bleu ref_len"] = score.sys_len, score.ref_len
    for order in range(BLEU_ORDER):
        counts[f"bleu correct {order + 1}"] = score.counts[order]
        counts[f"bleu total {order + 1}"] = score.totals[order]
    return counts


def _self_bleu(counts: Counter[str]) -> float | None:
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


def build_report(counts: Counter[str], settings: dict[str, Any], seconds: float, translated: int) -> dict[str, Any]:
    """Build the report as a dictionary for JSON.

    Args:
        counts: counts summed over the chunks.
        settings: settings that determine the output, with the hash of the input.
        seconds: duration of this call.
        translated: number of lines that this call translated; earlier calls translated the others.
    """
    texts = counts["lines"] - counts["blank"]
    bleu = _self_bleu(counts)
    return {
        "lines": counts["lines"],
        "blank": counts["blank"],
        "identical": counts["identical"],
        "identical_share": _share(counts["identical"], texts),
        "kept": counts["kept"],
        "self_bleu": None if bleu is None else round(bleu, 3),
        "length_ratio": _share(counts["words_out"], counts["words_in"]),
        "length_ratios": {name: counts[f"ratio {name}"] for name in RATIO_BINS},
        **{
            which: {name: counts[f"{which}.{name}"] for name in (*PASS_COUNTS, "tokens", "unknown")}
            | {"unknown_share": _share(counts[f"{which}.unknown"], counts[f"{which}.tokens"])}
            for which in PASSES
        },
        "seconds": round(seconds, 3),
        "translated_now": translated,
        "sentences_per_second": round(translated / seconds, 3) if seconds else None,
        "settings": settings,
        "sums": dict(sorted(counts.items())),
    }


def report_text(report: dict[str, Any]) -> str:
    """Format the report as text."""
    lines = [
        f"{report['lines']:,} lines, {report['blank']:,} of them blank",
        f"{report['identical']:,} identical to the original ({_percent(report['identical_share'])}), of which "
        f"{report['kept']:,} were kept because they could not be translated",
        f"self-BLEU {_number(report['self_bleu'])} (output against input, 0 to 100)",
        f"words out / words in {_number(report['length_ratio'])}; lines by ratio: "
        + ", ".join(f"{name}: {count:,}" for name, count in report["length_ratios"].items()),
    ]
    for which in PASSES:
        done = report[which]
        told = [f"{done[name]:,} {words}" for name, words in PASS_COUNTS.items() if done[name]]
        unknown = f"{_percent(done['unknown_share'])} of {done['tokens']:,} source tokens unknown"
        lines.append(f"{which}: " + "; ".join([unknown, *told]))
    if report["translated_now"]:
        lines.append(
            f"{report['translated_now']:,} lines in {report['seconds']:.1f} s, "
            f"{report['sentences_per_second']:,.1f} sentences/s for the round trip"
        )
    return "\n".join(lines)


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
