"""Translates a text file with one or two models, chunk by chunk; processes share the chunks, and a killed run resumes."""

import hashlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from glob import escape
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from fairseq_clear.distributed import choose_device
from fairseq_clear.errors import UserError
from fairseq_clear.files import check_output_file, hash_files, read_whole_lines, write_json, write_whole
from fairseq_clear.preparation.back_translation.ctranslate2_translator import CTranslate2Translator
from fairseq_clear.preparation.back_translation.factory_translator import FactoryTranslator
from fairseq_clear.preparation.back_translation.fairseq_translator import FairseqTranslator
from fairseq_clear.preparation.back_translation.huggingface_translator import HuggingFaceTranslator
from fairseq_clear.preparation.back_translation.translation_report import build_report, compare, spread
from fairseq_clear.preparation.back_translation.translation_settings import Model, TranslationSettings
from fairseq_clear.preparation.back_translation.translator import Translation, Translator, clean_line, mix
from fairseq_clear.preparation.corpus_reading import sentence_splitter
from fairseq_clear.shared_work import Work, Workers, join_workers, open_work

# The first that matches is taken.
KINDS: tuple[type[Translator], ...] = (
    CTranslate2Translator,
    HuggingFaceTranslator,
    FairseqTranslator,
    FactoryTranslator,
)
LOG_SECONDS = 60.0  # between two lines of progress if standard error is not a terminal


def translate_file(settings: TranslationSettings, workers: Workers | None = None) -> dict[str, Any] | None:
    """Translate a text, and write the file of each copy and the report, ``OUTPUT.report.json``.

    Chunks that an earlier call finished are not translated again. Text and report are written atomically at the end.

    Returns:
        The report, on the first worker; None on the others.

    Raises:
        UserError: an error in settings, input, models or disk; finished chunks are kept for the next call.
    """
    workers = workers or join_workers()
    lines, deciding = check(settings)
    report = _read_report(settings)
    if report.get("settings") != deciding or settings.overwrite:
        for path in settings.files:
            check_output_file(path, settings.overwrite)
    elif all(path.is_file() for path in settings.files):
        if workers.rank == 0:  # a killed call may have left the folder of the finished chunks
            shutil.rmtree(settings.output.with_name(f"{settings.output.name}.partial"), ignore_errors=True)
        return report if workers.rank == 0 else None
    chunks = -(-lines // settings.chunk_lines)
    with open_work(settings.output, deciding, chunks, workers, overwrite=settings.overwrite) as work:
        if work.own:
            _translate_chunks(settings, work)
        return _write(settings, work, deciding) if work.wait() else None


def report_file(settings: TranslationSettings) -> Path:
    """The file of the report."""
    return settings.output.with_name(f"{settings.output.name}.report.json")


def _read_report(settings: TranslationSettings) -> dict[str, Any]:
    try:
        report = json.loads(report_file(settings).read_bytes())
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def check(settings: TranslationSettings) -> tuple[int, dict[str, Any]]:
    """Check settings and input before a model is loaded.

    Returns:
        Number of input lines, and all settings and hashes that determine the output.

    Raises:
        UserError: an error in settings, input, models or names of files.
    """
    settings.check()
    for path in settings.files:
        check_output_file(path, overwrite=True)
        if settings.input.exists() and path.exists() and path.samefile(settings.input):
            raise UserError(f"--output {path}: is the input; give another name")
    if settings.too_long == "split":
        sentence_splitter("en", "--too-long split", ", or give --too-long copy")
    _device(settings)
    deciding = settings.deciding()
    for model in settings.models:
        try:
            deciding[model.name] = {"name": Path(model.path).name, **hash_files(find_kind(model).files(model))}
        except OSError as error:
            raise UserError(f"{error.filename}: cannot read it ({error.strerror or error})") from None
    lines, deciding["input"] = scan(settings.input)
    return lines, json.loads(json.dumps(deciding))


def find_kind(model: Model) -> type[Translator]:
    """Find the kind of a model.

    Raises:
        UserError: there is no model, or a flag does not apply to it.
    """
    kind = next((kind for kind in KINDS if kind.matches(model.path)), None)
    if kind is None:
        raise UserError(f"{model.where}: holds no model; looked for {'; '.join(kind.LOOKED_FOR for kind in KINDS)}")
    for flag, is_given in ((f"--{model.name}-languages", model.languages is not None), ("--sampling", model.draws)):
        if is_given and flag.rpartition("-")[2] not in kind.FLAGS:
            raise UserError(f"{flag}: does not apply to {model.where} ({kind.LOOKED_FOR}); leave it out")
    return kind


def _device(settings: TranslationSettings) -> torch.device:
    """The device: with ``cuda``, a GPU for each worker. UserError if it does not exist, or for --fp16 without a GPU."""
    name = None if settings.device == "cuda" and torch.cuda.is_available() else settings.device
    device = choose_device(name)
    if settings.fp16 and device.type != "cuda":
        raise UserError(f"--fp16: needs a GPU, and the device is {device}; leave it out")
    return device


def scan(path: Path) -> tuple[int, str]:
    """Read the number of lines of the input, and the SHA-256 of its text; only LF ends a line, as for ``wc -l``.

    Raises:
        UserError: the file is missing, unreadable, damaged, empty or not UTF-8; the message names the line.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not a regular file" if path.exists() else "no such file"
        raise UserError(f"--input {path}: {what}; give a text file")
    digest = hashlib.sha256()
    lines = 0
    for line in _lines(path):
        digest.update(line.encode() + b"\n")
        lines += 1
    if not lines:
        raise UserError(f"--input {path}: holds no line; give a text with one sentence a line")
    return lines, digest.hexdigest()


def read_chunks(path: Path, chunk_lines: int, chunks: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """Yield index and lines of the chunks with these indices, in ascending order."""
    lines, done = _lines(path), 0
    for chunk in chunks:
        yield chunk, list(islice(lines, (chunk - done) * chunk_lines, (chunk - done + 1) * chunk_lines))
        done = chunk + 1


def _lines(path: Path) -> Iterator[str]:
    return (line for _, line in read_whole_lines(path, allow_nul=True))


def _translate_chunks(settings: TranslationSettings, work: Work) -> None:
    """Translate and store the chunks of this worker."""
    models = [find_kind(model)(model, _device(settings)) for model in settings.models]
    for one, other in pairwise(model.languages for model in models):
        if one is not None and other is not None and one != other[::-1]:
            pairs = " and ".join(" to ".join(languages) for languages in (one, other))
            raise UserError(f"--forward and --backward: they translate {pairs}; the second must undo the first")
    pause = 0.1 if sys.stderr.isatty() else LOG_SECONDS
    bar = tqdm(total=len(work.own), unit=" chunks", mininterval=pause, delay=pause, disable=work.workers.rank > 0)
    with bar:
        for chunk, lines in read_chunks(settings.input, settings.chunk_lines, work.own):
            work.finish(chunk, translate_chunk(settings, models, chunk, lines))
            bar.update()


def translate_chunk(
    settings: TranslationSettings, models: Sequence[Translator], chunk: int, lines: Sequence[str]
) -> dict[str, Any]:
    """Translate lines. A line that cannot be translated keeps its text, with white space normalised.

    Returns:
        ``copies``, the lines of each copy; ``counts`` and ``examples``, see ``build_report``.
    """
    originals = [clean_line(line) for line in lines]
    texts = {index: text for index, text in enumerate(originals) if text}
    counts = Counter(lines=len(lines), blank=len(lines) - len(texts))
    found = _translate_copies(settings, models, chunk, texts, counts)
    counts["kept"] = sum(len(texts) - len(translations) for translations in found)
    copies = [[one.get(index, text).replace("\n", " ") for index, text in enumerate(originals)] for one in found]
    first, last = models[0].languages, models[-1].languages
    language = (first[0] if first else last[1] if last else "en") if len(models) > 1 else None
    for number, copy in enumerate(copies):
        counts.update(compare(originals, copy, language))
        counts["repeated"] += sum(any(copy[index] == other[index] for other in copies[:number]) for index in texts)
    start = chunk * settings.chunk_lines + 1
    examples = [
        {"line": start + index, "text": text, "translations": [copy[index] for copy in copies]}
        for index, text in texts.items()
        if any(copy[index] != text for copy in copies)
    ]
    return {"copies": copies, "counts": counts, "examples": spread(examples)}


def _translate_copies(
    settings: TranslationSettings, models: Sequence[Translator], chunk: int, texts: dict[int, str], counts: Counter[str]
) -> list[dict[int, str]]:
    """Translate texts, by their index, with all models; return the translations of each copy.

    Each copy has its own samples. If no model draws, the copies are the best alternatives of the last model.
    """
    copies, draws = len(settings.files), False
    results, found = [texts], []
    for number, model in enumerate(models):
        draws = draws or model.draws
        found = [
            _translate_texts(model, results[copy % len(results)], mix(settings.seed, number, chunk, copy), counts)
            for copy in range(copies if draws else 1)
        ]
        results = [{index: one.text for index, one in translations.items()} for translations in found]
    if draws:
        return results
    ranked = {index: (one.text, *one.others) for index, one in found[0].items()}
    return [{index: several[copy % len(several)] for index, several in ranked.items()} for copy in range(copies)]


def _translate_texts(
    model: Translator, texts: dict[int, str], seed: int, counts: Counter[str]
) -> dict[int, Translation]:
    """Translate texts by their index, without the ones that could not be translated, and count what happened."""
    found = dict(zip(texts, model.translate(list(texts.values()), seed), strict=True))
    for one in found.values():
        for name, count in (("cut", one.is_cut), ("unknown", one.unknown), (one.problem, bool(one.problem))):
            counts[f"{model.model.name}.{name}"] += count
    return {index: one for index, one in found.items() if one.text}


def _write(settings: TranslationSettings, work: Work, deciding: dict[str, Any]) -> dict[str, Any]:
    """Write the report, then the text of each copy, so that a text always has its report; return the report."""
    for path in (report_file(settings), *settings.files):
        for leftover in path.parent.glob(f".{escape(path.name)}.writing.*"):  # of a killed call of write_whole
            leftover.unlink(missing_ok=True)
        path.unlink(missing_ok=True)  # of other settings, with --overwrite
    counts, examples = Counter[str](), list[Any]()
    with ExitStack() as stack:
        streams = [stack.enter_context(write_whole(path)) for path in settings.files]
        for content in work.results():
            counts.update(content["counts"])
            examples += content["examples"]
            for stream, lines in zip(streams, content["copies"], strict=True):
                stream.write("".join(f"{line}\n" for line in lines).encode())
        report = build_report(counts, [model.name for model in settings.models], examples) | {"settings": deciding}
        write_json(report_file(settings), report)
    return report
