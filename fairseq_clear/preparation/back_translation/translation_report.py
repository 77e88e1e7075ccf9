"""Compares texts with their round trips, and makes the report of back-translation from counts of chunks and shards."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from fairseq_clear.preparation.back_translation.translation_settings import PASSES

COUNTS_FORMAT = 2  # of ``compare``; chunks and shards whose counts have another one are not added up
RATIO_EDGES = (0.5, 0.8, 1.25, 2.0)  # bins of words out / words in, symmetric around 1
RATIO_BINS = ("below 0.5", "0.5 to 0.8", "0.8 to 1.25", "1.25 to 2", "above 2")
# sacrebleu's tokenizers by language; the default is 13a
BLEU_TOKENIZERS = {"zh": "zh", "zho": "zh", "ja": "char", "jpn": "char", "ko": "char", "kor": "char"}
PASS_COUNTS = {
    "split": "too long, translated sentence by sentence",
    "copied": "too long, kept unchanged",
    "failed": "failed, kept unchanged",
    "empty": "translated to nothing, kept unchanged",
    "cut": "cut off at the maximum length (--max-len-a, --max-len-b)",
}
Example = dict[str, Any]  # line (from 1), text, and the paraphrases


def compare(originals: Sequence[str], results: Sequence[str], language: str) -> Counter[str]:
    """Count, over the lines that are not blank: identical lines, words, bins of length ratios, statistics of BLEU and chrF.

    BLEU compares the results with the originals (Papineni et al. 2002; Zhu et al. 2018 call it self-BLEU): the lower,
    the more the wording changed. chrF (Popovic 2015) compares characters.

    ``language`` is that of both, such as ``en`` or ``eng_Latn``: BLEU splits Chinese, Japanese and Korean into characters.
    """
    pairs = [(original, result) for original, result in zip(originals, results, strict=True) if original]
    counts = Counter(pairs=len(pairs))
    for original, result in pairs:
        words_in, words_out = len(original.split()), len(result.split())
        counts.update(identical=original == result, words_in=words_in, words_out=words_out)
        counts[f"ratio {RATIO_BINS[sum(words_out / words_in > edge for edge in RATIO_EDGES)]}"] += 1
    bleu = BLEU(tokenize=BLEU_TOKENIZERS.get(language.split("_")[0].split("-")[0]), force=True)
    for name, metric in (("bleu", bleu), ("chrf", CHRF())) if pairs else ():
        statistics = metric._extract_corpus_statistics([result for _, result in pairs], [[text for text, _ in pairs]])
        sums = np.sum(statistics, axis=0).tolist()
        counts.update({f"{name} {index}": value for index, value in enumerate(sums)})
    return counts


def _score(name: str, counts: Counter[str]) -> float | None:
    """The score of ``bleu`` or ``chrf`` from its summed statistics, 0 to 100; None without lines."""
    # BLEU: both lengths, then matches and n-grams of 4 orders; chrF: n-grams of both texts and matches of 6 orders
    metric, size = (BLEU(), 2 + 2 * 4) if name == "bleu" else (CHRF(), 3 * 6)
    sums = [counts[f"{name} {index}"] for index in range(size)]
    return round(metric._compute_score_from_stats(sums).score, 3) if counts["pairs"] else None


def build_report(
    counts: Counter[str], settings: dict[str, Any], seconds: float, translated: int, examples: Sequence[Example] = ()
) -> dict[str, Any]:
    """Build the report as a dictionary for JSON.

    Args:
        counts: counts summed over the chunks.
        settings: settings that determine the output, with the hash of the input.
        seconds: duration of this call.
        translated: number of lines, without blank ones, that this call translated; earlier calls translated the others.
        examples: as ``choose_examples`` returns them.
    """
    return {
        "lines": counts["lines"],
        "blank": counts["blank"],
        "identical": counts["identical"],
        "identical_share": _share(counts["identical"], counts["pairs"]),
        "kept": counts["kept"],
        "kept_share": _share(counts["kept"], counts["pairs"]),
        "paraphrases": counts["pairs"],
        "repeated": counts["repeated"],
        "self_bleu": _score("bleu", counts),
        "self_chrf": _score("chrf", counts),
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
        "examples": list(examples),
        "settings": settings,
        "sums": dict(sorted(counts.items())),
    }


def report_text(report: dict[str, Any]) -> str:
    """Format the report as text."""
    lines = [
        f"{report['lines']:,} lines, {report['blank']:,} of them blank",
        f"{report['identical']:,} identical to the original ({_percent(report['identical_share'])}), of which "
        f"{report['kept']:,} were kept because they could not be translated ({_percent(report['kept_share'])})",
        f"self-BLEU {_number(report['self_bleu'])}, self-chrF {_number(report['self_chrf'])} (output against input, 0 to 100)",
        f"words out / words in {_number(report['length_ratio'])}; lines by ratio: "
        + ", ".join(f"{name}: {count:,}" for name, count in report["length_ratios"].items()),
    ]
    if report["paraphrases"] > report["lines"] - report["blank"]:
        lines.insert(1, f"{report['paraphrases']:,} paraphrases, {report['repeated']:,} equal to another of their line")
    for which in PASSES:
        done = report[which]
        told = [f"{done[name]:,} {words}" for name, words in PASS_COUNTS.items() if done[name]]
        unknown = f"{_percent(done['unknown_share'])} of {done['tokens']:,} source tokens unknown"
        lines.append(f"{which}: " + "; ".join([unknown, *told]))
    if report["translated_now"]:
        lines.append(
            f"{report['translated_now']:,} sentences in {report['seconds']:.1f} s, "
            f"{report['sentences_per_second']:,.1f} sentences/s for the round trip"
        )
    if report["examples"]:
        lines.append(f"examples ({len(report['examples'])}):")
    for example in report["examples"]:
        lines.append(f"  {example['line']}: {example['text']}")
        lines += [f"  -> {paraphrase}" for paraphrase in example["paraphrases"]]
    return "\n".join(lines)


def choose_examples(texts: Iterable[tuple[str, ...]], lines: int, count: int) -> list[Example]:
    """Choose ``count`` of the lines at equal distances; a blank or unchanged line is replaced by the next one that is neither.

    ``texts`` are the lines, each with its paraphrases.
    """
    chosen: list[Example] = []
    for number, (text, *paraphrases) in enumerate(texts):
        if len(chosen) == count:
            break
        if number >= lines * len(chosen) // count and any(other != text for other in paraphrases):
            chosen.append({"line": number + 1, "text": text, "paraphrases": paraphrases})
    return chosen


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
