"""``refine``: prepare, train, compare and export as one function. A step whose result exists is not repeated."""

import errno
import json
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fairseq_clear.distributed import choose_device
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import load_model
from fairseq_clear.evaluation.reports import Report, Row
from fairseq_clear.evaluation.retrieval import Doubles, pair_cosines
from fairseq_clear.evaluation.retrieval_data import BASELINES, read_pairs, read_training_pairs
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.evaluation.sts import evaluate_sts, read_sts_tasks
from fairseq_clear.files import corpus_files, read_json, write_errors
from fairseq_clear.interop.importing import import_archive, import_hf, is_archive
from fairseq_clear.interop.merging import merge_checkpoints
from fairseq_clear.interop.stock import CHECKPOINT
from fairseq_clear.libraries import import_library, log_level
from fairseq_clear.models.pretrained_encoder import read_stated
from fairseq_clear.output_folder import EXPORT, check_destination, check_outside, output_folder
from fairseq_clear.preparation.prepare_settings import DocumentSettings, PrepareSettings
from fairseq_clear.processes import locked
from fairseq_clear.refining import holding_out, refine_report
from fairseq_clear.refining.holding_out import COUNTS, HARDER, HeldOut
from fairseq_clear.refining.refine_report import ASKED, FEWEST, HALF, MRR, REPORT, SATURATED, RefineReport
from fairseq_clear.refining.refine_settings import AUTO, CLOZE, PAIRS, RECIPES, SIMCSE, TITLES, TRIALS, RefineSettings
from fairseq_clear.refining.refine_steps import SETTINGS, Steps, Training, check_same
from fairseq_clear.text.data_folders import CLEAR_JSON, DICTIONARY, has_tokenizer, recorded_tokenizer
from fairseq_clear.text.sentence_folders import DOCUMENT, QUERY, find_prompt

TRIAL_SHARE, SHORTEST_TRIAL = 0.2, 10  # updates of a trial
SHARES = (0.0, 0.25, HALF, 0.75, 1.0)  # of the refined weights in a merge with the untouched ones
MOST_DRIFT_SENTENCES = 500
LONGEST_PATH = 4096  # characters


@dataclass(frozen=True)
class Refined:
    """The result of ``refine``."""

    encoder: SentenceEncoder  # the exported encoder
    report: dict[str, Any]  # the content of report.json


def refine(texts: Sequence[str | Path] | Path, encoder: str | Path, dest: str | Path, **settings: Any) -> Refined:
    """Train a pretrained encoder on text of one's own, compare it with the untouched one, and export it to ``dest``.

    >>> refined = refine(["First document. It has sentences.", ...], "all-MiniLM-L6-v2", "refined", updates=40)
    >>> refined.encoder.encode("a query")

    Args:
        texts: a ``str`` is the text of a document, a ``Path`` a file or folder as ``prepare`` reads it.
        encoder: see ``RefineSettings.encoder``.
        dest: folder to create.
        settings: further fields of ``RefineSettings``, such as ``recipe`` and ``updates``.

    Raises:
        UserError: an error in settings, text or encoder, or a full disk. ``dest`` is not written; calling again with the same
            settings goes on where it stopped.
    """
    given = [texts] if isinstance(texts, str | Path) else list(texts)
    for text in (text for text in given if isinstance(text, str) and len(text) < LONGEST_PATH):
        if os.path.exists(text):
            raise UserError(f"{text}: a str is the text of a document; give Path({text!r}) for a file or folder")
    paths = tuple(item for item in given if isinstance(item, Path))
    optional_paths = [item.name for item in fields(RefineSettings) if item.type == Path | None]
    settings |= {name: Path(settings[name]) for name in optional_paths if isinstance(settings.get(name), str)}
    made = RefineSettings(texts=paths, encoder=Path(encoder), dest=Path(dest), **settings)
    report = run_refine(made, [item for item in given if isinstance(item, str)])
    folder = made.dest / "checkpoint"
    return Refined(SentenceEncoder.from_pretrained(folder / CHECKPOINT, folder, device=made.device), report)


def run_refine(settings: RefineSettings, documents: Sequence[str] = ()) -> dict[str, Any]:
    """Refine on the texts of the settings and these; return the content of report.json. See ``refine``."""
    import_library("matplotlib", "eval")  # the report, after the training, needs it
    settings.check()
    check_destination(settings.dest, settings.overwrite, EXPORT, for_fairseq=True)
    device = _choose_device(settings.device)
    files = [file.path for file in corpus_files(settings.texts)]
    if not (files or documents or settings.train_pairs):
        raise UserError("no text; give .txt or .jsonl files, or folders of them")
    given = {"--pairs": settings.pairs, "--train-pairs": settings.train_pairs, "--sts": settings.sts}
    for flag, path in given.items():
        if path is not None and not path.exists():
            raise UserError(f"{flag} {path}: does not exist; correct the path")
    check_outside(settings.dest, [*files, settings.encoder, *filter(None, (settings.data_bin, *given.values()))])
    if settings.sts is not None:
        read_sts_tasks(settings.sts)
    for folder in filter(Path.is_dir, (*settings.texts, settings.encoder)):
        if folder.resolve() in settings.dest.resolve().parents:
            raise UserError(f"--dest {settings.dest}: is in {folder}, whose files are read; give a folder outside it")
    busy = f"{settings.work}: another refine is still running there; wait for it, or end it"
    with write_errors(settings.work, "--dest"), log_level(logging.WARNING, "fairseq", "fairseq_clear", "matplotlib"):
        settings.work.mkdir(parents=True, exist_ok=True)
        with locked(settings.work / "lock", busy):
            names = {path.name for path in settings.work.iterdir() if not path.name.startswith(".")}
            if SETTINGS not in names and not names <= {"lock", "texts.jsonl"}:  # the latter are left by a killed call
                raise UserError(f"{settings.work}: is not a folder of refine, which would be replaced; move it")
            if documents:
                files.append(settings.work / "texts.jsonl")
                lines = (json.dumps({settings.text_field: text}) + "\n" for text in documents)
                files[-1].write_text("".join(lines), encoding="utf-8")
                settings = replace(settings, texts=(*settings.texts, files[-1]))
            check_same(settings, files)
            try:
                report = _refine(Steps(settings, device))
            except UserError as error:
                is_full = getattr(error.__cause__ or error.__context__, "errno", None) == errno.ENOSPC
                # other settings can follow, as nothing was trained; after a full disk, the same ones
                if not (is_full or (settings.work / "data-bin").exists()):
                    shutil.rmtree(settings.work)
                raise
    shutil.rmtree(settings.work, ignore_errors=True)
    return report


def _choose_device(name: str | None) -> str:
    """Return cpu or cuda, and say which GPU is used if there are several; UserError for another GPU than the first."""
    device, count = choose_device(name), torch.cuda.device_count()
    if device.type == "cuda" and device.index:
        one = f"CUDA_VISIBLE_DEVICES={device.index} and --device cuda"
        raise UserError(f"--device {device}: the training uses the first visible GPU; for this one, give {one}")
    if device.type == "cuda" and count > 1:
        used = f"cuda:0 ({torch.cuda.get_device_name(0)})"
        print(f"# one of {count} GPUs is used: {used}; CUDA_VISIBLE_DEVICES chooses another", flush=True)
    return device.type


def _refine(steps: Steps) -> dict[str, Any]:
    settings, work = steps.settings, steps.work
    encoder, checkpoint = _import_encoder(steps)
    counts = _divide_text(steps)
    data = _prepare(steps, encoder, checkpoint, counts)
    # before the training, so that an encoder that cannot be exported is found early
    exported = steps.export("export the untouched encoder", checkpoint, data, work / "untouched")
    arch, known = read_stated(checkpoint)
    names = tuple(find_prompt(known, kind) or "" for kind in (QUERY, DOCUMENT))
    if prompts := {name: known[name] for name in names if name}:
        print(f"# prompts {prompts}", flush=True)
    base = Training(
        "", encoder, data, work / "training", settings.updates, negatives=len(list(work.glob("rows/negative*.txt"))),
        arch=arch, prompts=names if prompts else (),
    )  # fmt: skip
    _choose_question(steps, counts, data, checkpoint)
    recipe, trials = _choose_recipe(steps, counts, base)
    trained = steps.train("train", replace(base, recipe=recipe))
    scores = _score_shares(steps, counts, data, checkpoint, trained)
    best = refine_report.choose_share(scores) if scores else HALF if settings.keep_best else 1.0
    # what is compared: the best of the merges, or the refined encoder if nothing is better than the untouched one
    refined = _merged(steps, checkpoint, trained, best or 1.0)
    compared = {"untouched": checkpoint, "refined": refined}
    report = RefineReport(
        settings=settings, counts=counts, recipe=recipe, trials=trials, share=best, question=steps.question, prompts=prompts,
        shares=[{"share": share, "score": float(values.mean())} for share, values in scores.items()],
        reports=_compare(steps, counts, data, compared), drift=_measure_drift(steps, data, compared),
        commands=steps.commands, device=steps.device,
    )  # fmt: skip
    if report.exported_share:
        exported = steps.export("export the refined encoder", refined, data, work / "result")
    with output_folder(settings.dest, settings.overwrite, EXPORT) as folder:
        shutil.copytree(exported, folder, dirs_exist_ok=True)
        (folder / "checkpoint").mkdir()
        shutil.copyfile(refined if report.exported_share else checkpoint, folder / "checkpoint" / CHECKPOINT)
        for name in (DICTIONARY, CLEAR_JSON, *recorded_tokenizer(data)[1]):
            shutil.copyfile(data / name, folder / "checkpoint" / name)
        report.write(folder)
    said = filter(None, [report.verdict(), report.caveat(), report.describe_drift()])
    print(f"\n{' '.join(said)}\nwrote {settings.dest}; see {settings.dest / REPORT}.md")
    return report.to_dict()


def _import_encoder(steps: Steps) -> tuple[Path, Path]:
    """Import the encoder if need be; return what --encoder-from takes, and its checkpoint."""
    source, encoder = steps.settings.encoder, steps.work / "encoder"
    if source.suffix == ".pt" and source.is_file():
        return source, source
    if (source / CHECKPOINT).is_file() and (source / CLEAR_JSON).is_file():
        return source, source / CHECKPOINT
    arch = "clear_roberta" if is_archive(source) else "clear_hf"
    words = ("import", source, "--dest", encoder, "--arch", arch)
    if steps.must_run("import the encoder", encoder, "fairseq-clear", *words):
        print(
            *(import_archive(source, encoder) if is_archive(source) else import_hf(source, encoder, arch=arch)),
            sep="\n",
        )
    return encoder, encoder / CHECKPOINT


def _divide_text(steps: Steps) -> HeldOut:
    """Write the text and hold out documents, or divide --pairs; return the counts."""
    settings, work, text = steps.settings, steps.work, steps.work / "text.txt"
    if settings.texts:
        same = {item.name: getattr(settings, item.name) for item in fields(DocumentSettings)}
        same["split_sentences"] = None if settings.split_sentences == "none" else settings.split_sentences
        steps.prepare("text", PrepareSettings(inputs=settings.texts, dest=text, text_only=True, **same))
    judged = None if settings.pairs is None else read_pairs(settings.pairs)
    if (work / COUNTS).is_file():
        counts = HeldOut(**read_json(work / COUNTS))
    elif settings.train_pairs is not None:
        rows, documents = read_training_pairs(settings.train_pairs), text if settings.texts else None
        counts = holding_out.divide_training_pairs(rows, judged, documents, work, settings.held_out, settings.seed)
    elif judged is None:
        counts = holding_out.hold_out(text, work, settings.held_out, settings.seed)
    else:
        counts = holding_out.divide_pairs(judged, text, work, settings.seed)
    held = f"{counts.dev + counts.test:,} queries to compare by"
    if settings.pairs is not None and counts.left_out and settings.train_pairs is None:
        print(f"# {counts.left_out:,} documents with a query of --pairs are not trained on", flush=True)
    if settings.train_pairs is not None:
        left = f"{counts.left_out:,} are left out, as their query or passage is one of those"
        print(f"# {counts.pairs:,} pairs to train on; {held}; {left}", flush=True)
        if counts.shared:
            print(
                f"# {counts.shared:,} pairs share a passage with those, as most passages answer several queries",
                flush=True,
            )
    if settings.texts:
        kinds = f"{counts.long_documents:,} of several sentences, {counts.titled:,} with a title"
        print(f"# {counts.documents:,} documents, {kinds}; {held}", flush=True)
    if not counts.test and settings.sts is None:
        print(f"# {refine_report.NOT_COMPARED}", flush=True)
    return counts


def _prepare(steps: Steps, encoder: Path, checkpoint: Path, counts: HeldOut) -> Path:
    """Make the data folder with the tokenizer of the encoder; return it."""
    settings, work, data = steps.settings, steps.work, steps.work / "data-bin"
    folder = settings.data_bin or (encoder if encoder.is_dir() else encoder.parent)
    if not has_tokenizer(folder):
        raise UserError(
            f"{folder}: has no tokenizer of raw text; give --data-bin, a folder with the dict.txt and tokenizer of the encoder"
        )
    most = int(load_model(checkpoint, folder).model.max_positions())
    if settings.max_length > most:
        raise UserError(f"--max-length {settings.max_length}: the encoder reads at most {most} tokens; give no more")
    text: Path = work / "train.txt"
    options: dict[str, Any] = {"valid": (work / "valid.txt",)}
    if settings.train_pairs is not None:
        if not (work / "rows").exists():
            load = partial(SentenceEncoder.from_pretrained, checkpoint, folder, device=steps.device)
            negatives = counts.negatives if settings.negatives is None else settings.negatives
            holding_out.write_rows(work, work / "rows", load, negatives, settings.margin, steps.device)
        text, options = holding_out.read_rows(work / "rows")
    made = PrepareSettings(inputs=(text,), dest=data, seed=settings.seed, tokenizer_dir=folder, **options)
    steps.prepare("prepare the text", made)
    return data


def _choose_question(steps: Steps, counts: HeldOut, data: Path, checkpoint: Path) -> None:
    """Ask the harder question if the untouched encoder answers nearly every query of dev."""
    if steps.settings.asks_given_pairs or not counts.dev:
        return
    report = steps.search("score the untouched encoder", data, "dev", {"untouched": checkpoint})
    score = report["rows"][0]["scores"][MRR]
    if score >= SATURATED:
        steps.question = HARDER
        print(f"# the question is saturated ({MRR} {score:.1f}); a harder one is asked: {ASKED[HARDER]}", flush=True)


def _choose_recipe(steps: Steps, counts: HeldOut, base: Training) -> tuple[str, list[dict[str, Any]]]:
    """Return the recipe, and the trials of ``auto``; ``base`` is the training, without its recipe."""
    wanted, has_documents = steps.settings.recipe, 2 * counts.long_documents > counts.documents
    has_titles = 2 * counts.titled > counts.documents
    if steps.settings.train_pairs is not None:
        return PAIRS, []
    if wanted == AUTO and counts.dev >= FEWEST:
        tried = [name for name in TRIALS if has_titles or name != TITLES]
        tried = [name for name in tried if has_documents or not RECIPES[name].needs_documents]
        return _try_recipes(steps, base, tried)
    if wanted in (None, AUTO):
        chosen, kind = (CLOZE, "several sentences") if has_documents else (SIMCSE, "one sentence")
        chosen, kind = (TITLES, "a title") if has_titles else (chosen, kind)
        print(f"# recipe: {chosen}, as most documents have {kind}")
        if wanted == AUTO:
            print(f"# {AUTO} did not compare recipes: fewer than {FEWEST} queries choose")
        return chosen, []
    if RECIPES[str(wanted)].needs_documents and not counts.long_documents:
        others = ", ".join(name for name, recipe in RECIPES.items() if not recipe.needs_documents)
        raise UserError(f"--recipe {wanted}: needs documents of several sentences, and each has one; use {others}")
    return str(wanted), []


def _try_recipes(steps: Steps, base: Training, names: Sequence[str]) -> tuple[str, list[dict[str, Any]]]:
    """Train a short time by each recipe; return the best, and the MRR@10 of each on dev."""
    updates, trained = max(SHORTEST_TRIAL, round(TRIAL_SHARE * steps.settings.updates)), dict[str, Path]()
    for name in names:
        folder = steps.work / "trials" / name
        trial = replace(base, recipe=name, updates=updates, validations=1, save_dir=folder)
        try:
            trained[name] = steps.train(f"try {name}", trial)
        except UserError as error:  # such as documents that are too short for its pairs
            print(f"# {name} is left out: {error}", flush=True)
            if name == names[-1] and not trained:
                raise
    rows = steps.search("compare the recipes", base.data, "dev", trained)["rows"]
    trials = [{"recipe": row["label"], "updates": updates, "score": row["scores"][MRR]} for row in rows]
    best = str(max(trials, key=lambda trial: float(trial["score"]))["recipe"])
    print(f"# recipe: {best}, with the highest {MRR} after {updates} updates")
    return best, trials


def _score_shares(steps: Steps, counts: HeldOut, data: Path, start: Path, trained: Path) -> dict[float, Doubles]:
    """Share of the refined weights -> score of each query of dev (Q,); nothing without a question or keep_best."""
    if not counts.dev or not steps.settings.keep_best:
        return {}
    found = {f"{share:g} refined": _merged(steps, start, trained, share) for share in SHARES}
    report = steps.search("compare the merges", data, "dev", found)
    return {share: refine_report.reciprocal_ranks(row) for share, row in zip(SHARES, report["rows"], strict=True)}


def _merged(steps: Steps, start: Path, trained: Path, share: float) -> Path:
    """The checkpoint with this share of the refined weights."""
    if share in (0, 1):
        return trained if share else start
    path = steps.work / "merged" / f"{share:g}.pt"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        merge_checkpoints(start, trained, path, share)
    return path


def _compare(steps: Steps, counts: HeldOut, data: Path, checkpoints: dict[str, Path]) -> dict[str, Any]:
    """Score the encoders by retrieval and STS; return the reports by command."""
    reports = {}
    if counts.test:
        reports["retrieval"] = steps.search("compare the encoders", data, "test", checkpoints, *BASELINES)
    if (sts := steps.settings.sts) is not None:
        output = steps.work / "sts.json"
        words = ("--data", sts, "--encoder", *checkpoints.values(), "--data-bin", data, "--device", steps.device)
        if steps.must_run("compare by STS", output, "fairseq-clear", "sts", *words, "--output", output):
            tasks, rows = read_sts_tasks(sts), []
            for one in steps.encoders(data, checkpoints):
                scores = {name: score.spearman for name, score in evaluate_sts(one, tasks).items()}
                rows.append(Row(one.name, scores, one.describe()))
            report = Report("sts", {"metric": "spearman"}, {}, [task.name for task in tasks], rows)
            print(report.table())
            report.write(output)
        reports["sts"] = read_json(output)
    return reports


def _measure_drift(steps: Steps, data: Path, checkpoints: dict[str, Path]) -> float:
    """Return the mean cosine between the vectors of two encoders, over the first sentences of the validation text."""
    lines = (steps.work / "valid.txt").read_text(encoding="utf-8").splitlines()
    sentences = list(filter(None, lines))[:MOST_DRIFT_SENTENCES]
    before, after = (one.encode(sentences) for one in steps.encoders(data, checkpoints))
    return float(pair_cosines(before, after).mean())
