"""Commands that score encoders: ``sts``, ``senteval`` and ``classify``."""

import argparse
import sys
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fairseq_clear.cli.flags import Command, EncoderFlags, add_flags, flag_dest, publish, read_flags
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.labelled_text import REMOVALS, STRENGTHS, evaluate_labelled, read_labelled
from fairseq_clear.evaluation.reports import MAX_SEED, Report, Row, check_seeds
from fairseq_clear.evaluation.senteval_data import DOWNSTREAM_TASKS, PRESETS, PROBING_TASKS, Classifiers
from fairseq_clear.evaluation.sts_data import AGGREGATIONS, DEFAULT_TASKS, METRICS, STS_TASKS
from fairseq_clear.files import check_output_file
from fairseq_clear.settings import flag_name, setting
from fairseq_clear.shared_work import join_workers, remove_vectors

if TYPE_CHECKING:
    from fairseq_clear.evaluation.encoders import CachedEncoder

AVERAGE = "Avg."  # plain mean over the tasks of the table
# Names that --tasks of senteval takes for several tasks, as far as the folder has them.
GROUPS = {"transfer": DOWNSTREAM_TASKS, "probing": tuple(PROBING_TASKS), "all": (*DOWNSTREAM_TASKS, *PROBING_TASKS)}


@dataclass(kw_only=True)
class Evaluation(Command, EncoderFlags, ABC):
    """Base class of the commands that score encoders."""

    def run(self) -> int:
        """Read the data, score every encoder, print the table; write the report last, since that can fail."""
        if self.output is not None:
            check_output_file(self.output, self.overwrite)
        data = self.read()
        rows, lines = [], []
        for encoder in self.encoders():
            rows.append(self.score(encoder, data))
            rate = encoder.sentences / max(encoder.seconds, 1e-9)
            lines.append(f"{encoder.name}: {encoder.sentences:,} distinct sentences, {rate:,.0f} sentences/s")
            del encoder  # so that its memory is free when the next one is loaded
        report = self.report(data, rows)
        if join_workers().rank:  # the workers of a job have the same rows; the first one reports them
            return 0
        publish(report, self.output)
        lines += [] if self.output is None else [f"wrote {self.output}"]
        if (output := self.resumed_output()) is not None:
            remove_vectors(output)
        print("\n".join(lines), file=sys.stderr)
        return 0

    @abstractmethod
    def read(self) -> Any:
        """Read the data, before any encoder is loaded; UserError if they are missing or malformed."""

    @abstractmethod
    def score(self, encoder: "CachedEncoder", data: Any) -> Row:
        """Score one encoder; return its row of the report."""

    @abstractmethod
    def report(self, data: Any, rows: list[Row]) -> Report:
        """Make the report from all rows."""


@dataclass(kw_only=True)
class Sts(Evaluation):
    """Correlate the cosine of two sentence vectors with human scores, x100, without any training.

    STS-B and SICK-R are the test splits (SICK-R: 4,927 pairs; SICK-R-all is train, trial and test, 9,927, as in some
    tables). Pairs of SemEval without a gold score are ignored. For SentEval's trained regressor use fairseq-clear senteval.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear sts --data SentEval/data --encoder checkpoint_best.pt --data-bin data-bin --pooling cls mean first-last
fairseq-clear sts --data SentEval/data --tasks STS-B-dev --encoder a.pt b.pt --data-bin data-bin --output sts.json
fairseq-clear sts --sts-file sts17.es-en.tsv --encoder my_package.encoders:make"""

    data: Path | None = setting(
        "SentEval's data folder, or one that holds STS12-en-test ..., STSBenchmark, SICK", None, metavar="DIR"
    )
    tasks: tuple[str, ...] | None = setting(
        f"some of {', '.join(STS_TASKS)} (default: {', '.join(DEFAULT_TASKS)}, where DIR has them)",
        None,
        metavar="TASK",
    )
    sts_file: tuple[Path, ...] = setting(
        "files of more tasks, in any language: tab-separated text, text, score; STS-B's columns; or STS.input.X.txt", ()
    )
    aggregation: str = setting(
        "how the subsets of a year are combined: all, one correlation over all pairs; mean, the mean of their correlations; "
        "wmean, their mean weighted by the number of pairs. Published tables differ",
        "all",
        choices=AGGREGATIONS,
    )
    metric: str = setting("correlation to show in the table; the report has both", "spearman", choices=METRICS)

    def read(self) -> Any:
        """Read the tasks."""
        from fairseq_clear.evaluation.sts import read_sts_tasks

        return read_sts_tasks(self.data, self.tasks, self.sts_file)

    def score(self, encoder: "CachedEncoder", data: Any) -> Row:
        """Compute the correlation of every task, and their average."""
        import numpy as np

        from fairseq_clear.evaluation.sts import evaluate_sts

        found = evaluate_sts(encoder, data, aggregation=self.aggregation)
        scores = {task: float(getattr(score, self.metric)) for task, score in found.items()}
        if len(scores) > 1:
            scores[AVERAGE] = float(np.mean(list(scores.values())))
        details = {task: asdict(score) for task, score in found.items()}
        return Row(encoder.name, scores, encoder.describe(), details=details)

    def report(self, data: Any, rows: list[Row]) -> Report:
        """Make the report; its columns are the tasks."""
        pairs = {task.name: len(task) for task in data}
        protocol = {"metric": f"{self.metric} of the cosine x100", "aggregation": self.aggregation, "pairs": pairs}
        return Report("sts", protocol, {task.name: task.hashes for task in data}, list(rows[0].scores), rows)


@dataclass(kw_only=True)
class Senteval(Evaluation):
    """SentEval: train a classifier on frozen sentence vectors and test it, x100.

    MR, CR, SUBJ, MPQA: nested cross-validation. TREC, MRPC: cross-validation on the training split. SST2, SST5, SICK-E, SNLI
    and the probing tasks: validation on their dev split. SICK-R, STS-B: SentEval's regressor, Spearman. STS12-16: no training,
    the mean of the subsets' Spearman correlations. Pairs are [|u-v|, u*v] ([u, v, u*v, |u-v|] for SNLI). WordContent never
    uses a hidden layer and SNLI has at most 15 epochs, as in SentEval. Averages as DeCLUTR computes them (MRPC counts as the
    mean of accuracy and F1), without image-caption retrieval.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear senteval --data SentEval/data --encoder checkpoint_best.pt --data-bin data-bin --pooling mean
fairseq-clear senteval --data SentEval/data --tasks probing --preset logistic --encoder my_package.encoders:make
fairseq-clear senteval --data SentEval/data --tasks MR TREC --preset self-guided --encoder ck.pt --data-bin data-bin"""

    data: Path = setting("SentEval's data folder", metavar="DIR")
    tasks: tuple[str, ...] = setting(
        f"some of {', '.join(GROUPS['all'])}; or transfer (the first {len(DOWNSTREAM_TASKS)}), probing (the last "
        f"{len(PROBING_TASKS)}) or all, for those that DIR has",
        ("transfer",),
        metavar="TASK",
    )
    split: str = setting("split to show in the table; the report has both", "test", choices=("test", "dev"))
    seeds: tuple[int, ...] = setting("seeds of the classifiers (default: the preset's)", ())
    preset: str = setting(
        "senteval and simcse: SentEval's network without hidden layer, 10 folds, adam; self-guided: hidden layer of 50, "
        "8 seeds; logistic: scikit-learn; prototype: SentEval's fast setting, SimCSE's dev mode",
        "senteval",
        choices=sorted(PRESETS),
    )
    classifiers: Classifiers

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Declare the flags. The classifier's flags have no defaults, because the preset sets them."""
        super().add_arguments(parser)
        group = parser.add_argument_group("classifier (default: the preset's)")
        add_flags(group, Classifiers, have_defaults=False)

    @classmethod
    def from_flags(cls, args: argparse.Namespace) -> Self:
        """Make the command with the preset's seeds and classifier, changed by the given flags."""
        classifiers, seeds = PRESETS[args.preset]
        args.seeds = args.seeds or seeds
        values = ((item, getattr(args, flag_dest(item))) for item in fields(Classifiers))
        given = {item: value for item, value in values if value is not None}
        classifiers = replace(classifiers, **{item.name: value for item, value in given.items()})
        for item, value in given.items():
            if classifiers.kind == "logistic" and item.name not in ("kind", "folds"):
                raise UserError(f"{flag_name(item)} {value}: has no effect on logistic regression; leave it out")
        return read_flags(cls, args, classifiers=classifiers)

    def read(self) -> Any:
        """Read the tasks of --tasks; of a group, those whose data are in the folder."""
        from fairseq_clear.evaluation.senteval import find_tasks, read_tasks

        check_seeds(self.seeds)
        parts = [find_tasks(self.data, GROUPS[task]) if task in GROUPS else [task] for task in self.tasks]
        return read_tasks(self.data, [task for part in parts for task in part])

    def score(self, encoder: "CachedEncoder", data: Any) -> Row:
        """Compute mean and standard deviation over the seeds, and averages over the tasks."""
        from fairseq_clear.evaluation.senteval import evaluate_senteval

        result = evaluate_senteval(encoder, data, classifiers=self.classifiers, seeds=self.seeds)
        scores = result.means(self.split)
        if len(scores) > 1:
            scores |= result.summary(self.split)
        return Row(encoder.name, scores, encoder.describe(), result.deviations(self.split), result.to_dict())

    def report(self, data: Any, rows: list[Row]) -> Report:
        """Make the report; its columns are the tasks and their averages."""
        from fairseq_clear.evaluation.senteval import hashes_of

        columns = list(dict.fromkeys(column for row in rows for column in row.scores))
        protocol = {"split": self.split, "preset": self.preset, **self.classifiers.describe()}
        return Report("senteval", protocol, hashes_of(data), columns, rows, self.seeds)


@dataclass(kw_only=True)
class Classify(Evaluation):
    """Predict the label of a text from its vector by logistic regression.

    Accuracy and macro-F1 x100 on the texts of --test, or the mean over folds of --train. The regularisation is chosen by folds
    of the training texts. Long texts are cut at the encoder's maximum length.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear classify --train reviews.tsv --folds 10 --encoder checkpoint_best.pt --data-bin data-bin
fairseq-clear classify --train train.jsonl --test test.jsonl --label-field group --encoder a.pt b.pt --data-bin data-bin
fairseq-clear classify ... --remove headers footers quotes --strength 1 --output classify.json"""

    train: Path = setting("labelled texts: .jsonl records, or .tsv whose first line names the columns; also .gz or .xz")
    test: Path | None = setting("texts to score on, in the same form (default: --folds of --train)", None)
    text_field: str = setting("field of the text", "text")
    label_field: str = setting("field of the label, a text or a whole number", "label")
    remove: tuple[str, ...] = setting(
        f"parts of posts of 20 Newsgroups to remove, some of {', '.join(REMOVALS)}, recognised as scikit-learn does (default: "
        "nothing; headers reveal the group)",
        (),
        metavar="PART",
    )
    folds: int = setting("number of stratified folds", 5, least=2, metavar="K")
    strength: float | None = setting(
        f"inverse regularisation (default: the best of {', '.join(f'{strength:g}' for strength in STRENGTHS)} on folds of the "
        "training texts)",
        None,
        above=0,
        metavar="C",
    )
    seed: int = setting("seed of the folds", 1, least=0, most=MAX_SEED)

    def read(self) -> Any:
        """Read the texts."""
        names = {"text_field": self.text_field, "label_field": self.label_field}
        return read_labelled(self.train, self.test, **names, remove=self.remove)

    def score(self, encoder: "CachedEncoder", data: Any) -> Row:
        """Compute accuracy and macro-F1; over folds, their means and standard deviations."""
        found = evaluate_labelled(encoder, data, folds=self.folds, strength=self.strength, seed=self.seed)
        values = {"accuracy": [score.accuracy for score in found], "macro-F1": [score.macro_f1 for score in found]}
        means = {name: mean(numbers) for name, numbers in values.items()}
        spreads = {name: stdev(numbers) for name, numbers in values.items()} if len(found) > 1 else {}
        return Row(encoder.name, means, encoder.describe(), spreads, {"scores": [asdict(score) for score in found]})

    def report(self, data: Any, rows: list[Row]) -> Report:
        """Make the report; its columns are accuracy and macro-F1."""
        choice = f"the best of {', '.join(f'{strength:g}' for strength in STRENGTHS)} on {self.folds} folds of training texts"
        protocol = {
            "split": f"{self.folds} stratified folds (± over folds)" if self.test is None else "train and test file",
            "classifier": "logistic (scikit-learn, lbfgs)",
            "C": choice if self.strength is None else self.strength,
            "labels": len(set(data.labels["train"])),
            "removed": ", ".join(data.removed) or "nothing",
            "texts": {split: len(texts) for split, texts in data.texts.items()},
        }
        return Report("classify", protocol, {"classify": data.hashes}, list(rows[0].scores), rows, (self.seed,))
