"""Makes the report of back-translation from counts of chunks and shards: kept lines, lengths, BLEU, chrF, examples."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from fairseq_clear.preparation.back_translation.text_similarity import RATIO_BINS, bleu_score, chrf_score
from fairseq_clear.preparation.back_translation.translation_settings import PASSES

PASS_COUNTS = {
    "split": "too long, translated sentence by sentence",
    "copied": "too long, kept unchanged",
    "failed": "failed, kept unchanged",
    "empty": "translated to nothing, kept unchanged",
    "cut": "cut off at the maximum length (--max-len-a, --max-len-b)",
}
Example = dict[str, Any]  # line (from 1), text, and the paraphrases


def build_report(
    counts: Counter[str],
    settings: dict[str, Any],
    seconds: float,
    translated: int,
    examples: list[Example] | None = None,
) -> dict[str, Any]:
    """Build the report as a dictionary for JSON.

    Args:
        counts: counts summed over the chunks.
        settings: settings that determine the output, with the hash of the input.
        seconds: duration of this call.
        translated: number of lines, without blank ones, that this call translated; earlier calls translated the others.
        examples: lines to show, see ``choose_examples``.
    """
    bleu, chrf = bleu_score(counts), chrf_score(counts)
    return {
        "lines": counts["lines"],
        "blank": counts["blank"],
        "identical": counts["identical"],
        "identical_share": _share(counts["identical"], counts["pairs"]),
        "kept": counts["kept"],
        "kept_share": _share(counts["kept"], counts["pairs"]),
        "paraphrases": counts["pairs"],
        "repeated": counts["repeated"],
        "self_bleu": None if bleu is None else round(bleu, 3),
        "self_chrf": None if chrf is None else round(chrf, 3),
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
        "examples": examples or [],
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
    return "\n".join([*lines, *_example_lines(report["examples"])])


def choose_examples(texts: Iterable[tuple[str, ...]], lines: int, count: int) -> list[Example]:
    """Choose lines at equal distances; a blank or unchanged line is replaced by the next one that is neither.

    Args:
        texts: each line with its paraphrases, in the order of the file.
        lines: number of lines.
        count: number of examples.
    """
    chosen: list[Example] = []
    for number, (text, *paraphrases) in enumerate(texts):
        if len(chosen) == count:
            break
        if number >= lines * len(chosen) // count and any(other != text for other in paraphrases):
            chosen.append({"line": number + 1, "text": text, "paraphrases": paraphrases})
    return chosen


def _example_lines(examples: list[Example]) -> list[str]:
    shown = [f"examples ({len(examples)}):"] if examples else []
    for example in examples:
        shown.append(f"  {example['line']}: {example['text']}")
        shown += [f"  -> {paraphrase}" for paraphrase in example["paraphrases"]]
    return shown


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
