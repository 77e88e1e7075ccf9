"""Compares texts with their translations, and makes the report from counts that are summed over chunks."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

# sacrebleu's tokenizers by language; the default is 13a
BLEU_TOKENIZERS = {"zh": "zh", "zho": "zh", "ja": "char", "jpn": "char", "ko": "char", "kor": "char"}
# of a direction
COUNTS = {
    "failed": "not translated",
    "cut": "cut off at the maximum length (--max-len-a, --max-len-b)",
    "unknown": "source tokens unknown",
}


def compare(originals: Sequence[str], results: Sequence[str], language: str | None) -> Counter[str]:
    """Count, over the lines that are not blank: unchanged lines, words, and, with a language, statistics of BLEU and chrF.

    BLEU compares the results with the originals (Papineni et al. 2002; Zhu et al. 2018 call it self-BLEU): the lower,
    the more the wording changed. chrF (Popovic 2015) compares characters.

    ``language`` is the language of both, such as ``en`` or ``eng_Latn``: BLEU splits Chinese, Japanese and Korean into
    characters. None if the results are in another language.
    """
    pairs = [(original, result) for original, result in zip(originals, results, strict=True) if original]
    counts = Counter(pairs=len(pairs), unchanged=sum(original == result for original, result in pairs))
    for index, name in enumerate(("words_in", "words_out")):
        counts[name] = sum(len(pair[index].split()) for pair in pairs)
    if language is not None and pairs:
        bleu = BLEU(tokenize=BLEU_TOKENIZERS.get(language.split("_")[0].split("-")[0]), force=True)
        for name, metric in (("bleu", bleu), ("chrf", CHRF())):
            rows = metric._extract_corpus_statistics([result for _, result in pairs], [[text for text, _ in pairs]])
            counts.update({f"{name} {index}": value for index, value in enumerate(np.sum(rows, axis=0).tolist())})
    return counts


def build_report(counts: Counter[str], models: Sequence[str]) -> dict[str, Any]:
    """Build the report, a dictionary for JSON, from counts summed over the chunks, and the names of the directions."""
    report: dict[str, Any] = {name: counts[name] for name in ("lines", "blank", "kept", "unchanged")}
    report["unchanged_share"] = round(counts["unchanged"] / max(counts["pairs"], 1), 6)
    report["length_ratio"] = round(counts["words_out"] / max(counts["words_in"], 1), 6)
    # BLEU: both lengths, then matches and n-grams of 4 orders; chrF: n-grams of both texts and matches of 6 orders
    for name, metric, size in (("bleu", BLEU(), 2 + 2 * 4), ("chrf", CHRF(), 3 * 6)):
        if f"{name} 0" in counts:
            score = metric._compute_score_from_stats([counts[f"{name} {index}"] for index in range(size)]).score
            report[f"self_{name}"] = round(score, 3)
    return report | {model: {name: counts[f"{model}.{name}"] for name in COUNTS} for model in models}


def report_text(report: dict[str, Any]) -> str:
    """Format the report as text."""
    lines = [
        f"{report['lines']:,} lines, {report['blank']:,} of them blank",
        f"{report['unchanged']:,} unchanged ({report['unchanged_share']:.2%}), of which {report['kept']:,} were kept because "
        "they could not be translated",
        f"words out / words in {report['length_ratio']:.2f}",
    ]
    if "self_bleu" in report:
        lines[-1] += (
            f"; self-BLEU {report['self_bleu']:.2f}, self-chrF {report['self_chrf']:.2f} (output against input)"
        )
    for model in ("model", "forward", "backward"):
        if told := [f"{count:,} {COUNTS[name]}" for name, count in report.get(model, {}).items() if count]:
            lines.append(f"{model}: {'; '.join(told)}")
    return "\n".join(lines)
