"""The stages of ``refine``: each is a command that a user could type, and is not repeated when its result exists."""

import fcntl
import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_clear.cli.flags import quiet_logs
from fairseq_clear.cli.main import build_parser
from fairseq_clear.distributed import choose_device
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import strip_checkpoint
from fairseq_clear.evaluation.retrieval_data import read_pairs
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.files import corpus_files, hash_file, write_json
from fairseq_clear.interop.importing import CHECKPOINT
from fairseq_clear.libraries import import_library
from fairseq_clear.output_folder import check_destination, output_folder
from fairseq_clear.refining.holding_out import COUNTS, HeldOut, divide_pairs, hold_out
from fairseq_clear.refining.refine_report import REPORT, RefineReport, Trial, write_report
from fairseq_clear.refining.refine_settings import AUTO, DEFAULT_UPDATES, RECIPES, TRIALS, RefineSettings
from fairseq_clear.refining.refine_training import Training, run_training, shown_command, training_command
from fairseq_clear.tasks.run_record import content_hash
from fairseq_clear.text.data_folders import CLEAR_JSON, DICTIONARY, read_clear_json, tokenizer_flags

__all__ = ["Refined", "refine", "run_refine"]

MEASURED_UPDATES, TRIAL_SHARE, SHORTEST_TRIAL = 10, 0.2, 20
SHORTEST_SECONDS = 0.01  # lines of a log may be read at once
EXAMPLES = 3  # queries that the report shows
FEWEST_TRIAL_PAIRS = 10  # that can tell recipes apart
CHECKPOINT_FOLDER, STAGES = "checkpoint", "stages.json"
FILES, WEIGHTS = "content of --from, --pairs or --recipe", (".safetensors", ".bin", ".pt")
KEPT = ("lock", "texts.jsonl")  # of an emptied work folder: the lock is held, the texts belong to this call


@dataclass(frozen=True)
class Refined:
    """The result of ``refine``.

    Attributes:
        encoder: the exported encoder.
        report: the content of report.json.
    """

    encoder: SentenceEncoder
    report: dict[str, Any]


def refine(
    texts: "Sequence[str | Path] | Path",
    encoder: str | Path,
    dest: str | Path,
    **settings: Any,
) -> Refined:
    """Train a pretrained encoder on text of one's own, compare it with the untouched one, and export it to ``dest``.

    >>> refined = refine(["First document. It has sentences.", ...], "all-MiniLM-L6-v2", "refined", updates=150)
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
    paths = [item for item in given if isinstance(item, Path)]
    documents = [item for item in given if isinstance(item, str)]
    made = RefineSettings(texts=tuple(paths), encoder=Path(encoder), dest=Path(dest), **settings)
    made.check()
    if documents:
        check_destination(made.dest, made.overwrite)
        made.work.mkdir(parents=True, exist_ok=True)
        file = made.work / "texts.jsonl"
        file.write_text("".join(json.dumps({made.text_field: text}) + "\n" for text in documents), encoding="utf-8")
        made.texts = (*made.texts, file)
    report = run_refine(made)
    folder = made.dest / CHECKPOINT_FOLDER
    return Refined(SentenceEncoder.from_pretrained(folder / CHECKPOINT, folder, device=made.device), report)


def run_refine(settings: RefineSettings) -> dict[str, Any]:
    """Run all stages and return the content of report.json; see ``refine``."""
    import_library("matplotlib", "eval")  # the report, after the training, needs it
    settings.check()
    check_destination(settings.dest, settings.overwrite)
    device = choose_device(settings.device).type
    files = corpus_files(settings.texts)
    if not files:
        raise UserError("no text; give .txt or .jsonl files, or folders of them")
    for folder in filter(Path.is_dir, settings.texts):
        if folder.resolve() in settings.dest.resolve().parents:
            raise UserError(f"--dest {settings.dest}: is in {folder}, whose files are read; give a folder outside it")
    try:
        settings.work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--dest {settings.dest}: cannot make {settings.work} ({error.strerror or error})") from None
    with _locked(settings.work) as lock, quiet_logs():
        stages = _finished_stages(settings, [hash_file(file.path) for file in files])
        report = _Run(settings, device, lock, stages).all()
    shutil.rmtree(settings.work)
    return report


@contextmanager
def _locked(work: Path) -> Iterator[int]:
    """Hold the lock of a work folder; yield its file descriptor, which a training inherits."""
    with open(work / "lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"{work}: another refine, or the training that it started, is still running there; wait for it, or end it"
            ) from None
        yield file.fileno()


def _finished_stages(settings: RefineSettings, hashes: list[str]) -> list[dict[str, Any]]:
    """Return the stages that the work folder has finished. If it belongs to another call, empty it.

    Raises:
        UserError: it belongs to another call and holds a training, which may have taken hours.
    """
    work, wanted = settings.work, {**settings.as_json(), "texts": hashes, FILES: _hash_files(settings)}
    made_for, stages = _read_json(work / "settings.json"), _read_json(work / STAGES) or []
    differing = sorted(name for name in wanted if made_for is not None and made_for.get(name) != wanted[name])
    if differing and any(work.glob("training/*.pt")):
        raise UserError(
            f"{work}: holds a training with another {', '.join(differing)}; give the same to go on, or remove the folder"
        )
    for old in work.iterdir() if differing else ():
        if old.is_dir():
            shutil.rmtree(old)
        elif old.name not in KEPT:
            old.unlink()
    write_json(work / "settings.json", wanted, flag="--dest")
    return [] if differing else stages


def _hash_files(settings: RefineSettings) -> dict[str, str]:
    """Hashes of the other files that decide the result: pairs, recipe, and the weights of the encoder."""
    encoder = settings.encoder
    weights = [path for path in sorted(encoder.rglob("*")) if path.suffix in WEIGHTS] if encoder.is_dir() else [encoder]
    given = [settings.pairs, Path(settings.recipe) if settings.recipe else None, *weights]
    return {str(path): content_hash(path) for path in given if path is not None and path.is_file()}


def _read_json(path: Path) -> Any:
    """The content of a JSON file, None without the file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


@dataclass
class _Run:
    """One call of ``refine``. A stage is finished when its result, a file or a folder in the work folder, exists."""

    settings: RefineSettings
    device: str  # cpu or cuda
    lock: int  # file descriptor of the lock
    stages: list[dict[str, Any]]  # name, command and seconds of the stages that are finished

    @property
    def work(self) -> Path:
        return self.settings.work

    def all(self) -> dict[str, Any]:
        """Run every stage, write the folder and return the report."""
        settings, work = self.settings, self.work
        encoder, checkpoint = self.get_encoder()
        text = work / "text.txt"
        options = [] if settings.split_sentences == "none" else ["--split-sentences", settings.split_sentences]
        options += ["--language", settings.language, "--text-field", settings.text_field]
        options += ["--document-start", settings.document_start] if settings.document_start else []
        self.clear("text", text, "prepare", *settings.texts, "--dest", text, "--text-only", *options)
        counts = self.divide(text)
        data = self.prepare(encoder)
        untouched = work / "untouched"
        # now rather than at the end, so that an encoder that cannot be exported is found before the training
        self.export("export the untouched encoder", checkpoint, data, untouched)
        recipe, trials = self.choose_recipe(counts, encoder, checkpoint, data)
        training = self.training(recipe, encoder, data, counts)
        self.train("train", work / "trained.json", training, lambda records: records)
        refined = self.best_checkpoint(training)
        compared = self.compare(counts, data, [checkpoint, refined])
        report = RefineReport(settings, recipe, counts, training, trials, compared, self.stages, self.device)
        result = work / "result"
        if report.keeps_untouched:
            self.put_in_place(report, untouched, checkpoint, data)
        else:
            scores = ["--scores", compared["retrieval"]] if "retrieval" in compared else []
            self.export("export the refined encoder", refined, data, result, *scores)
            self.put_in_place(report, result, refined, data)
        print(f"\n{report.verdict()}\nwrote {settings.dest}; see {settings.dest / REPORT}.md")
        return report.to_dict()

    def stage(self, name: str, result: Path, command: str, make: Callable[[], Any]) -> None:
        """Run a stage unless ``result`` exists, and print its command; what ``make`` returns becomes ``result`` as JSON."""
        if result.exists():
            print(f"# {name}: done already", flush=True)
            return
        print(f"# {name}\n{command}", flush=True)
        began = time.monotonic()
        made = make()
        if made is not None:
            write_json(result, made, flag="--dest")
        self.stages.append({"stage": name, "command": command, "seconds": round(time.monotonic() - began, 1)})
        write_json(self.work / STAGES, self.stages, flag="--dest")

    def clear(self, name: str, result: Path, *words: Any) -> None:
        """Run a command of fairseq-clear, which makes ``result``."""
        arguments = [str(word) for word in words]

        def call() -> None:
            args = build_parser(arguments[0]).parse_args(arguments)
            args.run(args)

        self.stage(name, result, shlex.join(["fairseq-clear", *arguments]), call)

    def train(self, name: str, result: Path, training: Training, measure: Callable[[list[dict[str, Any]]], Any]) -> Any:
        """Run a training, or resume it; return what ``measure`` makes of the records of its log."""
        command = training_command(training, self.settings, self.device)
        run = partial(run_training, command, training, name, keep=self.lock)
        self.stage(name, result, shown_command(command), lambda: measure(run()))
        return _read_json(result)

    def get_encoder(self) -> tuple[Path, Path]:
        """Import the encoder if need be; return what --encoder-from takes, and its checkpoint."""
        source = self.settings.encoder
        if source.suffix == ".pt" and source.is_file():
            return source, source
        if (source / CHECKPOINT).is_file() and (source / CLEAR_JSON).is_file():
            return source, source / CHECKPOINT
        encoder = self.work / "encoder"
        self.clear("import the encoder", encoder, "import", source, "--dest", encoder)
        return encoder, encoder / CHECKPOINT

    def divide(self, text: Path) -> HeldOut:
        """Hold out documents, or divide --pairs; return the counts."""
        settings = self.settings
        if known := _read_json(self.work / COUNTS):
            counts = HeldOut(**known)
        elif settings.pairs is None:
            counts = hold_out(text, self.work, settings.held_out, settings.seed)
        else:
            counts = divide_pairs(read_pairs(settings.pairs), text, self.work, settings.seed)
        held = f"{counts.dev + counts.test:,} pairs of a query and a passage to compare by"
        print(f"# {counts.documents:,} documents, {counts.long_documents:,} of several sentences; {held}", flush=True)
        return counts

    def prepare(self, encoder: Path) -> Path:
        """Make the data folder with the tokenizer of the encoder."""
        folder = self.settings.data_bin or (encoder if encoder.is_dir() else encoder.parent)
        flags = tokenizer_flags(folder)
        if not flags:
            kind = read_clear_json(folder).get("tokenizer", {}).get("kind")
            raise UserError(
                f"{folder}: its tokenizer ({kind}) cannot tokenize raw text; give the folder of another encoder"
            )
        data, train = self.work / "data-bin", self.work / "train.txt"
        inputs = [train, "--valid", self.work / "valid.txt"] if train.is_file() else [self.work / "text.txt"]
        self.clear("prepare the text", data, "prepare", *inputs, "--dest", data, "--seed", self.settings.seed, *flags)
        return data

    def export(self, name: str, checkpoint: Path, data: Path, dest: Path, *words: Any) -> None:
        """Write an encoder for sentence-transformers."""
        form = ["--format", "sentence-transformers"]
        self.clear(name, dest, "export", checkpoint, "--data-bin", data, *form, "--dest", dest, *words)

    def choose_recipe(self, counts: HeldOut, encoder: Path, checkpoint: Path, data: Path) -> tuple[str, list[Trial]]:
        """Return the recipe; for auto, after a short trial of several on the held-out documents."""
        wanted = self.settings.recipe
        has_documents = 2 * counts.long_documents > counts.documents
        if wanted == AUTO and has_documents and counts.dev >= FEWEST_TRIAL_PAIRS:
            trials = self.try_recipes(encoder, checkpoint, data)
            best = max(trials[1:], key=lambda trial: trial.score)
            print(f"# recipe: {best.recipe}, with the highest MRR@10 after {best.updates} updates")
            return best.recipe, trials
        if wanted in (None, AUTO):
            chosen = "cloze" if has_documents else "simcse"
            print(
                f"# recipe: {chosen}, as most documents have {'several sentences' if has_documents else 'one sentence'}"
            )
            if wanted == AUTO:
                print(f"# {AUTO} did not compare recipes: there are too few held-out documents of several sentences")
            return chosen, []
        if wanted in RECIPES and RECIPES[wanted].needs_documents and not counts.long_documents:
            raise UserError(
                f"--recipe {wanted}: needs documents of several sentences, and every document has one; use simcse, clear or "
                "sg-opt"
            )
        return str(wanted), []

    def try_recipes(self, encoder: Path, checkpoint: Path, data: Path) -> list[Trial]:
        """Train each recipe of TRIALS for a few updates, and return their scores on dev, after that of the encoder itself."""
        pairs, output = self.work / "dev.jsonl", self.work / "dev.json"
        words = ["--pairs", pairs, "--encoder", checkpoint, "--data-bin", data, "--output", output]
        self.clear("score the untouched encoder", output, "retrieval", *words, "--device", self.device)
        trials = [Trial("untouched", 0, float(_read_json(output)["rows"][0]["scores"]["MRR@10"]))]
        updates = max(SHORTEST_TRIAL, round(TRIAL_SHARE * (self.settings.updates or DEFAULT_UPDATES)))
        for recipe in TRIALS:
            folder = self.work / "trials" / recipe
            training = Training(recipe, encoder, data, folder, updates, pairs, saves=False, validations=1)
            score = self.train(f"try {recipe}", folder.with_suffix(".json"), training, _last_score)
            trials.append(Trial(recipe, updates, score))
        return trials

    def training(self, recipe: str, encoder: Path, data: Path, counts: HeldOut) -> Training:
        """Determine the length of the training; measure the first updates if it is given in tokens or minutes."""
        settings, pairs = self.settings, self.work / "dev.jsonl" if counts.dev else None
        updates = settings.updates
        if settings.tokens is not None or settings.minutes is not None:
            trial = Training(
                recipe, encoder, data, self.work / "speed", MEASURED_UPDATES, None, saves=False, validations=0
            )
            speed = self.train("measure the first updates", self.work / "speed.json", trial, _speed)
            wanted = (
                settings.tokens / speed["tokens"]
                if settings.tokens
                else 60 * float(settings.minutes or 0) / speed["seconds"]
            )
            updates = max(1, int(wanted))
            took = f"an update reads {speed['tokens']:,.0f} tokens in {speed['seconds']:.2f} s"
            print(
                f"# {took}: {updates:,} updates, about {updates * speed['seconds'] / 60:.0f} minutes without validations"
            )
        elif recipe in RECIPES:
            updates = updates or DEFAULT_UPDATES
        return Training(recipe, encoder, data, self.work / "training", updates, pairs)

    def best_checkpoint(self, training: Training) -> Path:
        """The checkpoint with the best score on dev, without the optimizer's state."""
        path = self.work / "refined" / CHECKPOINT
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            names = ("checkpoint_best.pt", "checkpoint_last.pt")
            found = [training.save_dir / name for name in names if (training.save_dir / name).is_file()]
            if not found:
                raise UserError(f"{training.save_dir}: the training left no checkpoint; see {training.log}")
            strip_checkpoint(found[0], path)
        return path

    def compare(self, counts: HeldOut, data: Path, checkpoints: Sequence[Path]) -> dict[str, Path]:
        """Score the untouched and the refined encoder by retrieval and STS; return the reports."""
        reports: dict[str, Path] = {}
        shared = ["--encoder", *checkpoints, "--data-bin", data, "--device", self.device]
        if counts.test:
            reports["retrieval"] = output = self.work / "retrieval.json"
            words = ["--pairs", self.work / "test.jsonl", "--baselines", "tfidf", "bm25", "--show", EXAMPLES]
            self.clear("compare by retrieval", output, "retrieval", *words, *shared, "--output", output)
        if self.settings.sts is not None:
            reports["sts"] = output = self.work / "sts.json"
            self.clear("compare by STS", output, "sts", "--data", self.settings.sts, *shared, "--output", output)
        return reports

    def put_in_place(self, report: RefineReport, encoder: Path, checkpoint: Path, data: Path) -> None:
        """Write FOLDER: the exported encoder, its checkpoint, and the report."""
        with output_folder(self.settings.dest, self.settings.overwrite) as folder:
            shutil.copytree(encoder, folder, dirs_exist_ok=True)
            place = folder / CHECKPOINT_FOLDER
            place.mkdir()
            shutil.copyfile(checkpoint, place / CHECKPOINT)
            for name in (DICTIONARY, CLEAR_JSON, *read_clear_json(data)["tokenizer"]["files"]):
                shutil.copyfile(data / name, place / name)
            write_report(report, folder)


def _last_score(records: list[dict[str, Any]]) -> float:
    return [float(record["retrieval_mrr"]) for record in records if "retrieval_mrr" in record][-1]


def _speed(records: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds and tokens of an update."""
    first, last = records[0], records[-1]
    seconds = max(last["read_at"] - first["read_at"], SHORTEST_SECONDS)
    return {"seconds": seconds / max(1, last["num_updates"] - first["num_updates"]), "tokens": last["wpb"]}
