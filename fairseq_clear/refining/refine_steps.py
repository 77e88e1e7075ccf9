"""The steps of ``refine``. A step whose result exists is not repeated."""

import shlex
import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairseq_clear.evaluation.checkpoints import strip_checkpoint
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.reports import Report
from fairseq_clear.evaluation.retrieval import evaluate_retrieval, score_baseline
from fairseq_clear.evaluation.retrieval_data import read_beir
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.files import read_json
from fairseq_clear.interop.exporting import export
from fairseq_clear.preparation.prepare_settings import PrepareSettings
from fairseq_clear.preparation.preparing import prepare, write_text
from fairseq_clear.refining.holding_out import QUESTION
from fairseq_clear.refining.refine_report import COLUMNS
from fairseq_clear.refining.refine_settings import RefineSettings
from fairseq_clear.refining.refine_training import Training, train, training_flags
from fairseq_clear.settings import flag_name
from fairseq_clear.text.data_folders import load_tokenizer


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
            train(training, flags, name)
            strip_checkpoint(training.save_dir / "checkpoint_last.pt", result)
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
