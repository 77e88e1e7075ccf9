"""Translates a text file with one or two models, in chunks, and reports how the text changed.

Workers share the chunks; a rerun resumes a killed run.
"""

import hashlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from tqdm import tqdm

from fairseq_clear.distributed import choose_device
from fairseq_clear.errors import UserError
from fairseq_clear.files import (
    CorpusFile,
    check_output_file,
    hash_file,
    hash_files,
    read_json,
    read_whole_lines,
    write_json,
    write_whole,
)
from fairseq_clear.libraries import FACTORY
from fairseq_clear.preparation.back_translation.ctranslate2_translator import CTranslate2Translator
from fairseq_clear.preparation.back_translation.factory_translator import FactoryTranslator
from fairseq_clear.preparation.back_translation.fairseq_translator import FairseqTranslator
from fairseq_clear.preparation.back_translation.huggingface_translator import HuggingFaceTranslator
from fairseq_clear.preparation.back_translation.translation_settings import MODEL, Model, TranslationSettings
from fairseq_clear.preparation.back_translation.translator import Translator, clean_line, mix
from fairseq_clear.settings import check_settings
from fairseq_clear.shared_work import Work, Workers, join_workers, open_work, take_blocks

# sacrebleu's tokenizers by language; the default is 13a
BLEU_TOKENIZERS = {"zh": "zh", "zho": "zh", "ja": "char", "jpn": "char", "ko": "char", "kor": "char"}
# of a direction
COUNTS = {
    "failed": "not translated",
    "cut": "cut off at the maximum length (--max-len-a, --max-len-b)",
    "unknown": "source tokens unknown",
}


def translate_file(settings: TranslationSettings, workers: Workers | None = None) -> dict[str, Any] | None:
    """Translate a text file; write one file per copy, and the report ``OUTPUT.report.json``.

    Chunks that an earlier call finished are not translated again. Text and report are written atomically at the end. The
    first worker returns the report, the others None.

    Raises:
        UserError: an error in settings, input, models or disk; finished chunks are kept for the next call.
    """
    workers = workers or join_workers()
    lines, deciding = check(settings)
    path = report_file(settings)
    report = read_json(path, "remove it", dict) if path.is_file() else {}
    is_same = report.get("settings") == deciding and not settings.overwrite
    there = [path for path in settings.files if path.is_file()]
    if not is_same or any(report.get("written", {}).get(path.name) != hash_file(path) for path in there):
        for path in settings.files:
            check_output_file(path, settings.overwrite)
    elif len(there) == len(settings.files):
        if workers.rank == 0:  # a killed call may have left the folder of the finished chunks
            shutil.rmtree(settings.output.with_name(f"{settings.output.name}.partial"), ignore_errors=True)
        return report if workers.rank == 0 else None
    chunks = -(-lines // settings.chunk_lines)
    with open_work(settings.output, deciding, chunks, workers, overwrite=settings.overwrite) as work:
        if work.own:
            _translate_chunks(settings, work)
        workers.gather(None)  # wait for the slowest worker
        return _write(settings, work, deciding) if workers.rank == 0 else None


def report_file(settings: TranslationSettings) -> Path:
    """Return the path of the report."""
    return settings.output.with_name(f"{settings.output.name}.report.json")


def check(settings: TranslationSettings) -> tuple[int, dict[str, Any]]:
    """Check settings and input before a model is loaded; return the number of lines, and everything that determines the output.

    Raises:
        UserError: an error in settings, input, models or file names.
    """
    check_settings(settings)
    if CorpusFile(settings.output).compression:
        raise UserError(
            f"--output {settings.output}: is written uncompressed; give a name without {settings.output.suffix}"
        )
    for path in settings.files:
        check_output_file(path, overwrite=True)
        if settings.input.exists() and path.exists() and path.samefile(settings.input):
            raise UserError(f"--output {path}: is the input; give another name")
    if CorpusFile(settings.input).is_jsonl:
        raise UserError(f"--input {settings.input}: is JSON; write its text with fairseq-clear prepare --text-only")
    device = choose_device(settings.device)
    if settings.fp16 and device.type != "cuda":
        raise UserError(f"--fp16: needs a GPU, but the device is {device}; leave --fp16 out")
    others = {"output", "overwrite", "device"}
    deciding = {name: value for name, value in asdict(settings).items() if name not in others}
    for model in settings.models:
        deciding[model.name] = {"name": Path(model.path).name, **hash_files(find_kind(model).files(model))}
    if not (lines := sum(1 for _ in read_whole_lines(settings.input, allow_nul=True))):
        raise UserError(f"--input {settings.input}: is empty; give a text with one sentence per line")
    deciding["input"] = hash_file(settings.input)
    return lines, json.loads(json.dumps(deciding))


def find_kind(model: Model) -> type[Translator]:
    """Return the translator class that can load a model.

    Raises:
        UserError: there is no model, or languages are given for a fairseq checkpoint.
    """
    path = Path(model.path)
    if (path / "model.bin").is_file():
        return CTranslate2Translator
    if (path / "config.json").is_file():
        return HuggingFaceTranslator
    if path.is_file() or any(path.glob("*.pt")):
        if model.languages is not None:
            raise UserError(
                f"--{model.name}-languages: a fairseq checkpoint already names its languages; leave the flag out"
            )
        return FairseqTranslator
    if FACTORY.fullmatch(model.path):
        return FactoryTranslator
    raise UserError(f"{model.where}: holds no model; give {MODEL}")


def _translate_chunks(settings: TranslationSettings, work: Work) -> None:
    """Translate and store the chunks of this worker."""
    models = [find_kind(model)(model, choose_device(settings.device)) for model in settings.models]
    for one, other in pairwise(model.languages for model in models):
        if one is not None and other is not None and one != other[::-1]:
            pairs = " and ".join(" to ".join(languages) for languages in (one, other))
            raise UserError(
                f"--forward and --backward: the models translate {pairs}; --backward must translate in the opposite direction"
            )
    wants_samples = settings.sampling is not None or len(settings.files) > 1
    if wants_samples and not any(model.draws for model in models):
        raise UserError(
            "--copies and --sampling: no model samples; add --sampling, or a parameter seed to your translate"
        )
    pause = 0.1 if sys.stderr.isatty() else 60.0  # seconds between two updates of the progress bar
    bar = tqdm(total=len(work.own), unit=" chunks", mininterval=pause, delay=pause, disable=work.workers.rank > 0)
    with bar:
        all_lines = (line for _, line in read_whole_lines(settings.input, allow_nul=True))
        for chunk, lines in take_blocks(all_lines, settings.chunk_lines, work.own):
            work.finish(chunk, translate_chunk(settings, models, chunk, lines))
            bar.update()


def translate_chunk(
    settings: TranslationSettings, models: Sequence[Translator], chunk: int, lines: Sequence[str]
) -> dict[str, Any]:
    """Translate lines; return the lines of each copy, and the counts for ``build_report``.

    A line that cannot be translated keeps its text, with white space normalised.
    """
    originals = [clean_line(line) for line in lines]
    texts = {index: text for index, text in enumerate(originals) if text}
    counts = Counter(lines=len(lines), blank=len(lines) - len(texts))
    found = _translate_copies(settings, models, chunk, texts, counts)
    counts["kept"] = sum(len(texts) - len(translations) for translations in found)
    copies = [[one.get(index, text) for index, text in enumerate(originals)] for one in found]
    first, last = models[0].languages, models[-1].languages
    language = (first[0] if first else last[1] if last else "en") if len(models) > 1 else None
    for copy in copies:
        counts.update(compare(originals, copy, language))
    return {"copies": copies, "counts": counts}


def _translate_copies(
    settings: TranslationSettings, models: Sequence[Translator], chunk: int, texts: dict[int, str], counts: Counter[str]
) -> list[dict[int, str]]:
    """Translate texts (index -> text) with all models in turn. Return the translations of each copy, sampled separately."""
    results, draws = [texts], False
    for number, model in enumerate(models):
        draws = draws or model.draws
        results = [
            _translate_texts(model, results[copy % len(results)], mix(settings.seed, number, chunk, copy), counts)
            for copy in range(len(settings.files) if draws else 1)
        ]
    return results


def _translate_texts(model: Translator, texts: dict[int, str], seed: int, counts: Counter[str]) -> dict[int, str]:
    """Translate texts (index -> text) and update ``counts``. Texts that could not be translated are left out."""
    found = dict(zip(texts, model.translate(list(texts.values()), seed), strict=True))
    for one in found.values():
        for name, count in (("failed", not one.text), ("cut", one.is_cut), ("unknown", one.unknown)):
            counts[f"{model.model.name}.{name}"] += count
    return {index: one.text for index, one in found.items() if one.text}


def _write(settings: TranslationSettings, work: Work, deciding: dict[str, Any]) -> dict[str, Any]:
    """Write the report, then the text of each copy, so that a text always has its report; return the report."""
    counts, digests = Counter[str](), [hashlib.sha256() for _ in settings.files]
    with ExitStack() as stack:
        streams = [stack.enter_context(write_whole(path)) for path in settings.files]
        for content in work.results():
            counts.update(content["counts"])
            for stream, digest, lines in zip(streams, digests, content["copies"], strict=True):
                text = "".join(f"{line}\n" for line in lines).encode()
                stream.write(text)
                digest.update(text)
        for stream in streams:
            stream.flush()  # a full disk is found before the old files, which --overwrite replaces, are removed
        for path in (report_file(settings), *settings.files):
            path.unlink(missing_ok=True)
        report = build_report(counts, settings.MODELS) | {"settings": deciding}
        report["written"] = {path.name: one.hexdigest() for path, one in zip(settings.files, digests, strict=True)}
        write_json(report_file(settings), report)
    return report


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
