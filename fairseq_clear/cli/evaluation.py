"""Commands that score encoders: ``sts``, ``senteval``, ``probing``, ``captions`` and ``topics``."""

import argparse
import sys
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fairseq_clear.cli.flags import Command, EncoderFlags, add_flags, given_flags, read_flags
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.reports import Report, Row, check_seeds
from fairseq_clear.evaluation.senteval_data import DOWNSTREAM_TASKS, PRESETS, PROBING_TASKS, Classifiers
from fairseq_clear.evaluation.sts_data import AGGREGATIONS, DEFAULT_TASKS, METRICS, STS_TASKS
from fairseq_clear.evaluation.topics import REMOVALS, evaluate_topics, read_topics
from fairseq_clear.files import check_output_file, hash_file
from fairseq_clear.settings import setting

if TYPE_CHECKING:
    from fairseq_clear.evaluation.encoders import CachedEncoder

ALL = "all"
AVERAGE = "Avg."  # plain mean over the tasks of the table
DIRECTIONS = {"image>text": "captions", "text>image": "images"}
MEASURES = ("R@1", "R@5", "R@10", "median rank")


@dataclass(kw_only=True)
class Evaluation(Command, EncoderFlags):
    """Base class of the commands that score encoders."""

    def run(self) -> int:
        """Read the data, score every encoder, print the table; write the report last, since that can fail."""
        if self.output is not None:
            check_output_file(self.output, self.overwrite)
        data = self.read()
        rows, lines = [], []
        for encoder in self.encoders():
            rows.append(self.score(encoder, data))
            rate, share = encoder.sentences / max(encoder.seconds, 1e-9), encoder.padding_share
            padding = "" if share is None else f"; {share:.1%} padding"
            lines.append(f"{encoder.name}: {encoder.sentences:,} distinct sentences, {rate:,.0f} sentences/s{padding}")
        report = self.report(data, rows)
        print(report.table(bold=sys.stdout.isatty()))
        print(report.caption())
        self.show_examples()
        if self.output is not None:
            report.write(self.output)
            lines.append(f"wrote {self.output}")
        print("\n".join(lines), file=sys.stderr)
        return 0

    def show_examples(self) -> None:
        """Print what follows the table, if anything."""

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
    tables). Pairs without a gold score are ignored. For SentEval's trained regressor use fairseq-clear senteval.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear sts --data SentEval/data --encoder checkpoint_best.pt --data-bin data-bin --pooling cls mean first-last
fairseq-clear sts --data SentEval/data --tasks STS-B-dev --encoder a.pt b.pt --data-bin data-bin --output sts.json
fairseq-clear sts --sts-file sts17.es-en.tsv --encoder my_package.encoders:make"""

    data: Path | None = setting(
        "SentEval's data folder, or one that holds STS12-en-test ..., STSBenchmark, SICK", None, metavar="DIR"
    )
    tasks: tuple[str, ...] | None = setting(
        f"some of {', '.join(STS_TASKS)} (default: those of {', '.join(DEFAULT_TASKS)} that DIR has)",
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

        if self.data is None and not self.sts_file:
            raise UserError("--data: give the folder of SentEval's data, or --sts-file")
        return read_sts_tasks(self.data, self.tasks, self.sts_file)

    def score(self, encoder: "CachedEncoder", data: Any) -> Row:
        """Compute the correlation of every task, and their average."""
        from fairseq_clear.evaluation.sts import evaluate_sts

        result = evaluate_sts(encoder, data, aggregation=self.aggregation)
        scores = {task: float(getattr(score, self.metric)) for task, score in result.scores.items()}
        if len(scores) > 1:
            scores[AVERAGE] = result.average(self.metric)
        return Row(encoder.name, scores, encoder.describe(), details=asdict(result)["scores"])

    def report(self, data: Any, rows: list[Row]) -> Report:
        """Make the report; its columns are the tasks."""
        pairs = {task.name: len(task) for task in data}
        protocol = {"metric": f"{self.metric} of the cosine x100", "aggregation": self.aggregation, "pairs": pairs}
        return Report("sts", protocol, {task.name: task.hashes for task in data}, list(rows[0].scores), rows)


def task_setting(default: Iterable[str]) -> Any:
    """Return the dataclass field of --tasks."""
    return setting(
        f"some of {', '.join([*DOWNSTREAM_TASKS, *PROBING_TASKS])}, or {ALL} for those that DIR has (default: those of "
        f"{', '.join(default)} that DIR has)",
        None,
        metavar="TASK",
    )


@dataclass(kw_only=True)
class Senteval(Evaluation):
    """SentEval: train a classifier on frozen sentence vectors and test it, x100.

    MR, CR, SUBJ, MPQA: nested cross-validation. TREC, MRPC: cross-validation on the training split. SST2, SST5, SICK-E, SNLI
    and the probing tasks: validation on their dev split. SICK-R, STS-B: SentEval's regressor, Spearman. STS12-16: no training,
    the mean of the subsets' Spearman correlations. Pairs are [|u-v|, u*v] ([u, v, u*v, |u-v|] for SNLI). Averages as in
    DeCLUTR's Table 1. Image-caption retrieval: fairseq-clear captions.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear senteval --data SentEval/data --encoder checkpoint_best.pt --data-bin data-bin --pooling mean
fairseq-clear senteval --data SentEval/data --tasks all --preset logistic --encoder my_package.encoders:make
fairseq-clear senteval --data SentEval/data --tasks MR TREC --preset self-guided --encoder ck.pt --data-bin data-bin"""
    NAME: ClassVar[str] = "senteval"
    DEFAULT_TASKS: ClassVar[tuple[str, ...]] = DOWNSTREAM_TASKS

    data: Path = setting("SentEval's data folder", metavar="DIR")
    tasks: tuple[str, ...] | None = task_setting(DOWNSTREAM_TASKS)
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
        """Declare the flags; those of the classifier have no defaults, because the preset sets them."""
        super().add_arguments(parser)
        group = parser.add_argument_group("classifier (default: the preset's)")
        add_flags(group, Classifiers, have_defaults=False)

    @classmethod
    def from_flags(cls, args: argparse.Namespace) -> Self:
        """Make the command with the preset's seeds and classifier, changed by the given flags."""
        classifiers, seeds = PRESETS[args.preset]
        args.seeds = args.seeds or seeds
        return read_flags(cls, args, classifiers=replace(classifiers, **given_flags(Classifiers, args)))

    def read(self) -> Any:
        """Read the tasks of --tasks; by default, those whose data are in the folder."""
        from fairseq_clear.evaluation.senteval import find_tasks, read_tasks

        check_seeds(self.seeds)
        is_all = self.tasks == (ALL,)
        names = (*DOWNSTREAM_TASKS, *PROBING_TASKS) if is_all else self.tasks or self.DEFAULT_TASKS
        return read_tasks(self.data, find_tasks(self.data, names) if is_all or not self.tasks else names)

    def score(self, encoder: "CachedEncoder", data: Any) -> Row:
        """Compute mean and standard deviation over the seeds, and averages over the tasks."""
        from fairseq_clear.evaluation.senteval import evaluate_senteval

        result = evaluate_senteval(encoder, data, classifiers=self.classifiers, seeds=self.seeds)
        means = {task: result.mean(task, self.split) for task in result.scores}
        scores = {task: mean for task, mean in means.items() if mean is not None}
        spreads = {task: result.deviation(task, self.split) for task in scores}
        if len(scores) > 1:
            scores |= result.summary(self.split)
        known = {task: value for task, value in spreads.items() if value is not None}
        return Row(encoder.name, scores, encoder.describe(), known, result.to_dict())

    def report(self, data: Any, rows: list[Row]) -> Report:
        """Make the report; its columns are the tasks and their averages."""
        from fairseq_clear.evaluation.senteval import hashes_of

        columns = list(dict.fromkeys(column for row in rows for column in row.scores))
        protocol = {"split": self.split, "preset": self.preset, **self.classifiers.describe()}
        return Report(self.NAME, protocol, hashes_of(data), columns, rows, self.seeds)


@dataclass(kw_only=True)
class Probing(Senteval):
    """SentEval's ten probing tasks (Conneau et al. 2018, arXiv:1805.01070): accuracy x100 of a classifier on frozen vectors.

    Its regularisation is chosen on the dev split. WordContent never uses a hidden layer, as in SentEval.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear probing --data SentEval/data --encoder checkpoint_best.pt --data-bin data-bin --preset logistic"""
    NAME: ClassVar[str] = "probing"
    DEFAULT_TASKS: ClassVar[tuple[str, ...]] = tuple(PROBING_TASKS)

    tasks: tuple[str, ...] | None = task_setting(PROBING_TASKS)


@dataclass(kw_only=True)
class Captions(Evaluation):
    """SentEval's image-caption retrieval: rank captions for an image and images for a caption.

    Images and captions are projected into one space, trained to rank each other, and searched in both directions. Recall at
    1, 5 and 10 (x100) and median rank, in folds of a thousand test images.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear captions --data coco --encoder checkpoint_best.pt --data-bin data-bin --seeds 1 2 3"""

    data: Path = setting(
        "folder with SPLIT.npy, (images, features), and SPLIT.txt, captions grouped by image, for train, dev and test",
        metavar="DIR",
    )
    seeds: tuple[int, ...] = setting("seeds of the ranking model", (1111,))
    max_epoch: int = setting("maximum number of epochs", 200, least=1)

    def read(self) -> Any:
        """Read the three splits."""
        from fairseq_clear.evaluation.captions import read_captions

        check_seeds(self.seeds)
        return read_captions(self.data)

    def score(self, encoder: "CachedEncoder", data: Any) -> Row:
        """Compute means and standard deviations over the seeds."""
        from fairseq_clear.evaluation.captions import Ranker, evaluate_captions

        settings = Ranker(max_epoch=self.max_epoch)
        found = [evaluate_captions(encoder, data, settings=settings, seed=seed) for seed in self.seeds]
        values = {
            f"{direction} {measure}": [float(getattr(scores, name)[measure]) for scores in found]
            for direction, name in DIRECTIONS.items()
            for measure in MEASURES
        }
        means = {column: mean(numbers) for column, numbers in values.items()}
        spreads = {column: stdev(numbers) for column, numbers in values.items()} if len(found) > 1 else {}
        details = {"seeds": [asdict(scores) for scores in found]}
        return Row(encoder.name, means, encoder.describe(), spreads, details)

    def report(self, data: Any, rows: list[Row]) -> Report:
        """Make the report; its columns are the measures of both directions."""
        from fairseq_clear.evaluation.captions import SPLITS, Ranker

        files = [self.data / f"{split}.{kind}" for split in SPLITS for kind in ("npy", "txt")]
        hashes = {"captions": {file.name: hash_file(file) for file in files}}
        columns = list(rows[0].scores)
        ranks = frozenset(column for column in columns if column.endswith("rank"))
        protocol = asdict(Ranker(max_epoch=self.max_epoch))
        return Report("captions", protocol, hashes, columns, rows, self.seeds, ranks)


@dataclass(kw_only=True)
class Topics(Evaluation):
    """Predict the group of a 20 Newsgroups post from its vector by logistic regression.

    Accuracy and macro-F1 x100 on the test split by date. Long posts are cut at the encoder's maximum length.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear topics --data corpora --remove headers footers quotes --encoder checkpoint_best.pt --data-bin data-bin"""

    data: Path = setting(
        'folder with 20news.train.jsonl and 20news.test.jsonl, also .xz or .gz: {"group": ..., "text": ...} per line',
        metavar="DIR",
    )
    remove: tuple[str, ...] = setting(
        f"some of {', '.join(REMOVALS)}, recognised as scikit-learn does (default: nothing; headers reveal the group)",
        (),
        metavar="PART",
    )
    strength: float = setting("inverse regularisation of scikit-learn's logistic regression", 1.0, metavar="C")

    def read(self) -> Any:
        """Read both splits."""
        return read_topics(self.data, self.remove)

    def score(self, encoder: "CachedEncoder", data: Any) -> Row:
        """Compute accuracy and macro-F1."""
        result = evaluate_topics(encoder, data, strength=self.strength)
        scores = {"accuracy": result.accuracy, "macro-F1": result.macro_f1}
        return Row(encoder.name, scores, encoder.describe(), details=asdict(result))

    def report(self, data: Any, rows: list[Row]) -> Report:
        """Make the report; its columns are accuracy and macro-F1."""
        protocol = {
            "classifier": "logistic (scikit-learn, lbfgs)",
            "C": self.strength,
            "removed": ", ".join(data.removed) or "nothing",
            "texts": {split: len(texts) for split, texts in data.texts.items()},
        }
        return Report("topics", protocol, {"20news": data.hashes}, list(rows[0].scores), rows)
