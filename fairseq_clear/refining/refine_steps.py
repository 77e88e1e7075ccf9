"""The steps of ``refine``. A step whose result exists is not repeated; fairseq-train is a child process whose log is read."""

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

import fairseq_clear
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import strip_checkpoint
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.reports import Report
from fairseq_clear.evaluation.retrieval import evaluate_retrieval, score_baseline
from fairseq_clear.evaluation.retrieval_data import read_beir
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.files import hash_file, read_json, write_errors, write_json
from fairseq_clear.interop.exporting import export
from fairseq_clear.output_folder import signals_raise
from fairseq_clear.preparation.prepare_settings import PrepareSettings
from fairseq_clear.preparation.preparing import prepare, write_text
from fairseq_clear.processes import die_with_parent
from fairseq_clear.refining.holding_out import QUESTION
from fairseq_clear.refining.refine_report import COLUMNS
from fairseq_clear.refining.refine_settings import PAIR_RECIPE, PAIRS, RECIPES, RefineSettings
from fairseq_clear.settings import flag_name, typed_flag
from fairseq_clear.tasks.run_record import content_hash
from fairseq_clear.text.data_folders import load_tokenizer

WARMUP_SHARE, WEIGHT_DECAY, CLIP_NORM = 0.1, 0.01, 1.0
# Not fairseq's adam, which adds eps before the bias correction: in the first 20 updates, its eps is 7 to 30 times as large as
# torch's, and words with small gradients move less.
OPTIMIZER = ("clear_adamw", "--decay-vectors")
FRAME = 2  # <s> and </s>
SETTINGS = "settings.json"
OF_ENCODER = (".safetensors", ".bin", ".pt", ".json", ".txt", ".model")  # suffixes of files that make an encoder
SECONDS_PER_LINE = 15
NUMBERS = ("num_updates", "loss", "wps")  # of a record that are read
RECORD = re.compile(r"\| (train_inner|valid)\w* \| (\{.*\})")


@dataclass(frozen=True)
class Training:
    """One call of fairseq-train."""

    recipe: str  # a key of RECIPES, or PAIRS
    encoder: Path  # what --encoder-from takes
    data: Path  # the data folder
    save_dir: Path  # folder of checkpoints and of train.log
    updates: int
    validations: int = 4  # number of validations; 0 for measuring speed
    negatives: int = 0  # hard negatives of each pair, of the recipe PAIRS
    arch: str = "clear_hf"
    prompts: tuple[str, ...] = ()  # names of the prompts of queries and of passages; an empty name is no prompt


def training_flags(training: Training, settings: RefineSettings, device: str) -> list[str]:
    """Return the arguments of fairseq-train; ``device`` is cpu or cuda."""
    interval = math.ceil(training.updates / max(1, training.validations))
    recipe = PAIR_RECIPE if training.recipe == PAIRS else RECIPES[training.recipe]
    described = recipe.flags.format(
        max_span=min(48, settings.max_length - FRAME), encoder=shlex.quote(str(training.encoder))
    )
    hard = ",".join(f"negative{n + 1}" for n in range(training.negatives))
    given = {word.partition("=")[0] for word in settings.training_flags}
    flags = [
        training.data, "--user-dir", Path(fairseq_clear.__file__).parent, "--save-dir", training.save_dir,
        "--task", "clear_lm", "--arch", training.arch, "--encoder-from", training.encoder,
        *shlex.split(described), *(["--hard-negatives", hard] if hard else []),
        *(["--prompts", ",".join(training.prompts[: 1 + recipe.asks])] if training.prompts else []),
        "--sample-break-mode", "eos", "--tokens-per-sample", settings.max_length,
        "--batch-size", settings.batch_size, "--required-batch-size-multiple", 1,
        *(["--optimizer", *OPTIMIZER] if "--optimizer" not in given else []),
        "--weight-decay", WEIGHT_DECAY, "--clip-norm", CLIP_NORM,
        "--lr", f"{settings.learning_rate:g}", "--lr-scheduler", "polynomial_decay",
        "--warmup-updates", max(1, round(WARMUP_SHARE * training.updates)),
        "--total-num-update", training.updates, "--max-update", training.updates,
        *(["--validate-interval-updates", interval] if training.validations else ["--disable-validation"]),
        "--save-interval-updates", interval, "--keep-interval-updates", 1, "--no-epoch-checkpoints",
        "--seed", settings.seed, "--num-workers", 1, "--distributed-world-size", 1, "--log-format", "json",
        "--log-interval", min(10, max(1, training.updates // 10)), *(["--cpu"] if device == "cpu" else []),
    ]  # fmt: skip
    return [*map(str, flags), *settings.training_flags]


def train(training: Training, flags: list[str], title: str) -> list[dict[str, Any]]:
    """Run fairseq-train, or resume it, and print its progress every few seconds.

    If this process is interrupted, fairseq-train is asked to stop and its end is awaited; if it is killed, so is fairseq-train.

    Returns:
        The records of fairseq's log, in order: its NUMBERS, ``part`` (train_inner or valid), and ``read_at``, in seconds.

    Raises:
        UserError: the training failed, with the last line of its log.
    """
    training.save_dir.mkdir(parents=True, exist_ok=True)
    path, records, last = training.save_dir / "train.log", [], -math.inf
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
    with (
        write_errors(path, "--dest"),  # also when the last lines of the log are written
        signals_raise(),
        open(path, "a", encoding="utf-8") as log,
        subprocess.Popen(
            [sys.executable, "-m", "fairseq_cli.train", *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", env=environment, preexec_fn=die_with_parent,
        ) as process,
    ):  # fmt: skip
        try:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                if match := RECORD.search(line):
                    values = {name.removeprefix("valid_"): value for name, value in json.loads(match[2]).items()}
                    numbers = {name: float(values[name]) for name in NUMBERS if name in values}
                    now = time.monotonic()
                    records.append({**numbers, "part": match[1], "read_at": now})
                    if match[1] == "valid" or now - last > SECONDS_PER_LINE:
                        last = now
                        print(f"{title}: {_describe(records, training.updates)}", flush=True)
        except BaseException:
            process.terminate()  # fairseq-train saves after the update and exits
            process.wait()
            raise
    if process.returncode:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing in it"]
        message = re.sub(r"^.*?\| (?:ERROR|WARNING|INFO) \| [\w.]+ \| ", "", lines[-1])
        raise UserError(f"fairseq-train ended with status {process.returncode}: {message[:400]} (log: {path})")
    return records


def _describe(records: list[dict[str, Any]], updates: int) -> str:
    first, last = records[0], records[-1]  # what comes before the first record is the start of Python
    done, since = int(last["num_updates"]), int(last["num_updates"] - first["num_updates"])
    shown = [f"update {done}/{updates}", f"{'held-out ' if last['part'] == 'valid' else ''}loss {last['loss']:.3f}"]
    shown += [f"{last['wps']:,.0f} tokens/s"] if last.get("wps") else []
    if since > 0 and done < updates:
        left = int((last["read_at"] - first["read_at"]) * (updates - done) / since)
        shown.append(f"{left // 60}:{left % 60:02d} left")
    return ", ".join(shown)


def check_same(settings: RefineSettings, texts: list[Path]) -> None:
    """Write settings.json; UserError if the work folder was made with other settings or other content of a file."""
    encoder = settings.encoder
    parts = (
        [path for path in sorted(encoder.rglob("*")) if path.suffix in OF_ENCODER] if encoder.is_dir() else [encoder]
    )
    given = [path for path in (*parts, settings.pairs, settings.train_pairs) if path is not None and path.is_file()]
    wanted = {**settings.as_json(), "texts": [hash_file(path) for path in texts]}
    wanted["content of --from or of pairs"] = [content_hash(path) for path in given]
    file = settings.work / SETTINGS
    known = read_json(file) if file.is_file() else wanted
    trained = [*settings.work.glob("training*.pt"), *settings.work.glob("tr*/**/*.pt")]  # also of trials
    if not trained:  # other flags may follow a mistake in them
        known["training_flags"] = wanted["training_flags"]
    named = [item for item in fields(settings) if item.metadata and item.name != "texts"]
    flags = {item.name: typed_flag(item, known.get(item.name)) for item in named}
    if differing := sorted(name for name in wanted if known.get(name) != wanted[name]):
        flags["training_flags"] = "other flags after --"
        shown = ", ".join(flags.get(name, f"another {name}") for name in differing)
        raise UserError(f"{settings.work}: was started with {shown}; give the same to go on, or remove the folder")
    write_json(file, wanted, flag="--dest")


class Steps:
    """Runs the steps: prints the command of each, and does not repeat one whose result exists."""

    def __init__(self, settings: RefineSettings, device: str) -> None:
        self.settings, self.work, self.device = settings, settings.work, device
        self.commands: list[str] = []
        self.question = QUESTION  # name of its folder
        # of each checkpoint, because both splits of the question have the same passages
        self._vectors: dict[Path, dict[str, Any]] = {}

    def must_run(self, name: str, result: Path, *command: Any) -> bool:
        """Print the step; return whether ``result``, a file or a folder, does not exist yet."""
        self.commands.append(shlex.join(map(str, command)))
        print(f"# {name}: done already" if result.exists() else f"# {name}\n{self.commands[-1]}", flush=True)
        return not result.exists()

    def prepare(self, name: str, made: PrepareSettings) -> None:
        """Write the text or the data folder."""
        words: list[Any] = ["prepare", *made.inputs]
        for item in fields(made):
            value = getattr(made, item.name)
            if item.name not in ("inputs", "workers") and value != item.default:
                several = value if isinstance(value, tuple) else () if value is True else (value,)
                words += [flag_name(item), *("=".join(map(str, v)) if isinstance(v, tuple) else v for v in several)]
        if self.must_run(name, made.dest, "fairseq-clear", *words):
            print((write_text if made.text_only else prepare)(made).summary())

    def train(self, name: str, training: Training) -> Path:
        """Run or resume a training; return its last checkpoint, without the optimizer's state."""
        flags, result = training_flags(training, self.settings, self.device), training.save_dir.with_suffix(".pt")
        if self.must_run(name, result, "fairseq-train", *flags):
            if torch.cuda.is_initialized():  # the memory of encoders that were scored before
                torch.cuda.empty_cache()
            train(training, flags, name)
            last = training.save_dir / "checkpoint_last.pt"
            if not last.is_file():
                unsaved = "--save-dir, --no-save and --no-last-checkpoints"
                raise UserError(f"fairseq-train wrote no {last}; leave {unsaved} out of the flags after --")
            strip_checkpoint(last, result)
            shutil.rmtree(training.save_dir)
        return result

    def search(self, name: str, data: Path, split: str, checkpoints: dict[str, Path], *baselines: str) -> Any:
        """Score encoders by a split of the question; return the report, which is kept in NAME.json."""
        output, question = self.work / f"{name.replace(' ', '-')}.json", self.work / self.question
        words = ("--data", question, "--split", split, *(("--baselines", *baselines) if baselines else ()))
        encoders = ("--encoder", *checkpoints.values(), "--data-bin", data, "--device", self.device)
        if self.must_run(name, output, "fairseq-clear", "retrieval", *words, *encoders, "--output", output):
            asked = read_beir(question, split)
            rows = [score_baseline(baseline, asked) for baseline in baselines]
            rows += [evaluate_retrieval(one, asked, device=self.device) for one in self.encoders(data, checkpoints)]
            report = Report("retrieval", asked.describe(), {asked.name: asked.hashes}, COLUMNS, rows, (0,))
            print(report.table())
            report.write(output)
        return read_json(output)

    def encoders(self, data: Path, checkpoints: dict[str, Path]) -> Iterator[CachedEncoder]:
        """Yield the encoders, one in memory at a time."""
        for name, path in checkpoints.items():
            encoder = SentenceEncoder.from_pretrained(path, data, device=self.device)
            yield CachedEncoder(encoder, name=name, vectors=self._vectors.setdefault(path, {}))

    def export(self, name: str, checkpoint: Path, data: Path, dest: Path) -> Path:
        """Write an encoder for sentence-transformers to ``dest``, which is returned."""
        form = "sentence-transformers"
        words = ("export", checkpoint, "--data-bin", data, "--format", form, "--dest", dest)
        if self.must_run(name, dest, "fairseq-clear", *words):
            for parity in export(checkpoint, data, dest, form, load_tokenizer(data)):
                print(parity.summary())
        return dest
