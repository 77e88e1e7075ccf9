"""The command line of the training that ``refine`` starts, and running it with a progress bar."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

import fairseq_clear
from fairseq_clear.errors import UserError
from fairseq_clear.models.pretrained_encoder import checkpoint_in, encoder_settings
from fairseq_clear.output_folder import signals_raise
from fairseq_clear.refining.refine_settings import DEFAULT_UPDATES, RECIPES, RefineSettings

__all__ = ["Training", "run_training", "shown_command", "training_command"]

WARMUP_SHARE = 0.1
FRAME = 2  # <s> and </s>
SECONDS_PER_LINE = 15  # of a log file, where no bar is drawn
RECORD = re.compile(r"\| (train_inner|valid\w*) \| (\{.*\})")
PROGRAMS = {"fairseq_cli.train": "fairseq-train", "fairseq_cli.hydra_train": "fairseq-hydra-train"}
RUN = "import sys; sys.argv[0] = '{program}'; from {module} import cli_main; sys.exit(cli_main())"


@dataclass(frozen=True)
class Training:
    """One call of fairseq-train."""

    recipe: str  # a key of RECIPES, or the path of a FILE.yaml
    encoder: Path  # what --encoder-from takes
    data: Path  # the data folder
    save_dir: Path  # folder of checkpoints and of the log
    updates: int | None  # number of updates; None for that of a FILE.yaml
    pairs: Path | None  # file for --eval-retrieval; None without retrieval
    saves: bool = True  # if False, no checkpoint is written, for a trial
    validations: int = 4  # number of validations; 0 for measuring speed

    @property
    def log(self) -> Path:
        """The log of fairseq-train."""
        return self.save_dir / "train.log"


def training_command(training: Training, settings: RefineSettings, device: str) -> list[str]:
    """Return the command line, as words: ``python -c ... ARGUMENTS``."""
    is_yaml = training.recipe not in RECIPES
    module = "fairseq_cli.hydra_train" if is_yaml else "fairseq_cli.train"
    arguments = _overrides(training, settings, device) if is_yaml else _flags(training, settings, device)
    code = RUN.format(module=module, program=PROGRAMS[module])
    return [sys.executable, "-c", code, *map(str, arguments), *settings.training_flags]


def shown_command(command: Sequence[str]) -> str:
    """Return the command line as a user types it."""
    module = next(name for name in PROGRAMS if f"from {name} " in command[2])
    return shlex.join([PROGRAMS[module], *command[3:]])


def _flags(training: Training, settings: RefineSettings, device: str) -> list[Any]:
    updates = training.updates or DEFAULT_UPDATES
    interval = math.ceil(updates / max(1, training.validations))
    best = ["--eval-retrieval", training.pairs, "--best-checkpoint-metric", "retrieval_mrr"]
    best = [*best, "--maximize-best-checkpoint-metric"] if training.pairs and training.validations else []
    saving = ["--save-interval-updates", interval, "--keep-interval-updates", 1, "--no-epoch-checkpoints"]
    return [
        training.data, "--user-dir", Path(fairseq_clear.__file__).parent, "--save-dir", training.save_dir,
        "--task", "clear_lm", "--arch", "clear_roberta", "--encoder-from", training.encoder,
        *shlex.split(RECIPES[training.recipe].flags.format(max_span=min(48, settings.max_length - FRAME))),
        "--sample-break-mode", "eos", "--tokens-per-sample", settings.max_length,
        "--batch-size", settings.batch_size, "--required-batch-size-multiple", 1,
        "--optimizer", "adam", "--lr", f"{settings.learning_rate:g}", "--lr-scheduler", "polynomial_decay",
        "--warmup-updates", max(1, round(WARMUP_SHARE * updates)), "--total-num-update", updates, "--max-update", updates,
        *(["--validate-interval-updates", interval] if training.validations else ["--disable-validation"]),
        *best, *(saving if training.saves else ["--no-save"]),
        "--seed", settings.seed, "--num-workers", 1, "--distributed-world-size", 1,
        "--log-format", "json", "--log-interval", _log_interval(updates), *(["--cpu"] if device == "cpu" else []),
    ]  # fmt: skip


def _overrides(training: Training, settings: RefineSettings, device: str) -> list[Any]:
    """Overrides of a FILE.yaml. ``++`` also sets what the file does not name; sizes and pooling are those of the encoder."""
    config = Path(training.recipe).resolve()
    sizes = encoder_settings(checkpoint_in(str(training.encoder)))
    values: dict[str, Any] = {
        "common.user_dir": Path(fairseq_clear.__file__).parent, "common.seed": settings.seed,
        "common.cpu": str(device == "cpu").lower(), "common.log_format": "json",
        "task.data": training.data.resolve(), "checkpoint.save_dir": training.save_dir.resolve(),
        "model.encoder_from": training.encoder.resolve(), "checkpoint.no_epoch_checkpoints": "true",
        "task.eval_sts": settings.sts.resolve() if settings.sts else "null",
        "distributed_training.distributed_world_size": 1, "checkpoint.no_save": str(not training.saves).lower(),
        "dataset.disable_validation": str(not training.validations).lower(),
    }  # fmt: skip
    values |= {f"model.{name}": str(value).lower() for name, value in sizes.items()}
    if training.pairs and training.validations:
        values |= {
            "task.eval_retrieval": training.pairs.resolve(),
            "checkpoint.best_checkpoint_metric": "retrieval_mrr",
            "checkpoint.maximize_best_checkpoint_metric": "true",
        }
    if training.updates is not None:
        interval = math.ceil(training.updates / max(1, training.validations))
        values |= {
            "optimization.max_update": training.updates, "lr_scheduler.total_num_update": training.updates,
            "lr_scheduler.warmup_updates": max(1, round(WARMUP_SHARE * training.updates)),
            "dataset.validate_interval_updates": interval, "checkpoint.save_interval_updates": interval,
            "common.log_interval": _log_interval(training.updates),
        }  # fmt: skip
    hydra = [f"hydra.run.dir={_quoted(training.save_dir.resolve() / 'hydra')}", "hydra.job.chdir=false"]
    named = ["--config-dir", config.parent, "--config-name", config.stem]
    return [*named, *hydra, *(f"++{name}={_quoted(value)}" for name, value in values.items())]


def _quoted(value: Any) -> Any:
    """Quote a path for hydra, which would parse its commas, brackets and equals signs."""
    return "'{}'".format(str(value).replace("'", r"\'")) if isinstance(value, Path) else value


def _log_interval(updates: int) -> int:
    return min(10, max(1, updates // 10))


def run_training(
    command: Sequence[str], training: Training, title: str, *, keep: int | None = None
) -> list[dict[str, Any]]:
    """Run a training, or resume it, and show its progress: a bar on a terminal, a line every few seconds elsewhere.

    If this process is interrupted, fairseq-train is asked to stop and its end is awaited.

    Args:
        command: see ``training_command``.
        keep: file descriptor that fairseq-train inherits, so that a lock is held as long as it runs.

    Returns:
        The records of fairseq's log, in order; ``part`` is train_inner or valid, ``read_at`` the time in seconds, on a clock of
        this process (fairseq's ``wall`` is rounded to seconds).

    Raises:
        UserError: the training failed, with the last line of its log.
    """
    training.save_dir.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, Any]] = []
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
    if keep is not None:
        options["pass_fds"] = (keep,)
    with (
        signals_raise(),
        open(training.log, "a", encoding="utf-8") as log,
        tqdm(total=training.updates, desc=title, unit="update", disable=None, leave=False) as bar,
        subprocess.Popen(list(command), errors="replace", **options) as process,
    ):
        report = _on_terminal(bar) if not bar.disable else _in_lines(title, training.updates)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                if match := RECORD.search(line):
                    record = {**_read(match[1], match[2]), "read_at": time.monotonic()}
                    records.append(record)
                    report(record)
        except BaseException:
            process.terminate()  # fairseq-train saves after the update and exits
            process.wait()
            raise
    if process.returncode:
        lines = training.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing in it"]
        message = re.sub(r"^.*?\| (?:ERROR|WARNING|INFO) \| [\w.]+ \| ", "", lines[-1])
        raise UserError(f"fairseq-train ended with status {process.returncode}: {message[:400]} (log: {training.log})")
    return records


def _read(part: str, text: str) -> dict[str, Any]:
    """Return a record of the log; of a validation, without ``valid_`` in the names."""
    found = {name.removeprefix(f"{part}_"): _number(value) for name, value in json.loads(text).items()}
    return {**found, "part": "train_inner" if part == "train_inner" else "valid"}


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _on_terminal(bar: "tqdm[Any]") -> Callable[[dict[str, Any]], None]:
    shown: dict[str, str] = {}

    def report(record: dict[str, Any]) -> None:
        shown.update(_summary(record))
        bar.set_postfix(shown, refresh=False)
        bar.update(max(0, int(record["num_updates"]) - bar.n))
        bar.refresh()

    return report


def _in_lines(title: str, updates: int | None) -> Callable[[dict[str, Any]], None]:
    last, first = -math.inf, (0.0, 0)  # time and update of the first record: what comes before is the start of Python

    def report(record: dict[str, Any]) -> None:
        nonlocal last, first
        now, done = time.monotonic(), int(record["num_updates"])
        first = first if first[1] else (now, done)
        if record["part"] != "valid" and now - last < SECONDS_PER_LINE and done != updates:
            return
        last = now
        numbers = ", ".join(f"{name} {value}" for name, value in _summary(record).items())
        left = ""
        if updates is not None and first[1] < done < updates:
            left = f", {_clock((now - first[0]) * (updates - done) / (done - first[1]))} left"
        print(f"{title}: update {done}{f'/{updates}' if updates else ''}, {numbers}{left}", flush=True)

    return report


def _summary(record: dict[str, Any]) -> dict[str, str]:
    """What to show of a record."""
    if record["part"] == "valid":
        score = record.get("retrieval_mrr")
        return {"held-out loss": f"{record['loss']:.3f}"} if score is None else {"held-out MRR@10": f"{score:.2f}"}
    shown = {"loss": f"{record['loss']:.3f}"}
    if "contrastive_accuracy" in record:
        shown["accuracy"] = f"{record['contrastive_accuracy']:.2f}"
    if record.get("wps"):
        shown["tokens/s"] = f"{record['wps']:,.0f}"
    return shown


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
