"""``fairseq-clear plot``: draws training curves and results as PNG and SVG."""

import sys
from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fairseq_clear.cli.flags import Command, ModelFlags, choose_tokenizer
from fairseq_clear.errors import UserError
from fairseq_clear.libraries import import_library
from fairseq_clear.settings import setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fairseq_clear.evaluation.sts_data import StsData


def check_picture(path: Path, overwrite: bool, *, flag: str = "--output") -> None:
    """Check that a picture can be drawn and written; raises UserError."""
    import_library("matplotlib", "eval")
    from fairseq_clear.evaluation.plotting import check_picture_path

    check_picture_path(path, overwrite, flag=flag)


@dataclass(kw_only=True)
class Picture(Command):
    """Base class of the pictures."""

    labels: tuple[str, ...] | None = setting("names in the legend, one for each entry", None, metavar="TEXT")
    output: Path = setting("write NAME.png and NAME.svg", metavar="NAME")
    overwrite: bool = setting("replace existing pictures", False)

    def run(self) -> int:
        """Draw the picture and write both files."""
        check_picture(self.output, self.overwrite)
        from fairseq_clear.evaluation.plotting import save_figure

        files = save_figure(self.draw(), self.output)
        print(f"wrote {' and '.join(map(str, files))}")
        return 0

    @abstractmethod
    def draw(self) -> "Figure":
        """Draw the picture."""

    def names(self, count: int) -> tuple[str, ...] | tuple[None, ...]:
        """The labels of ``count`` entries, None if not given."""
        if self.labels is not None and len(self.labels) != count:
            raise UserError(f"--labels: {len(self.labels)} for {count} entries of the legend; give one for each")
        return self.labels or (None,) * count


@dataclass(kw_only=True)
class Curves(Picture):
    """Training logs: losses, accuracy, alignment against uniformity."""

    logs: tuple[Path, ...] = setting(
        "output of fairseq-train with --log-format simple or json, or its --log-file", metavar="LOG", positional=True
    )
    metrics: tuple[str, ...] | None = setting(
        "names as in the log, without train_ or valid_ (default: the usual ones)", None
    )

    def draw(self) -> "Figure":
        """Draw the curves of every log."""
        from fairseq_clear.evaluation.training_curves import draw_curves
        from fairseq_clear.evaluation.training_log import read_log

        names = self.names(len(self.logs))
        return draw_curves([read_log(*pair) for pair in zip(self.logs, names, strict=True)], self.metrics)


@dataclass(kw_only=True)
class Compare(Picture):
    """Bars over JSON reports of sts, senteval, classify and glue."""

    reports: tuple[Path, ...] = setting(
        "reports of sts, senteval, classify or glue", metavar="REPORT.json", positional=True
    )
    columns: tuple[str, ...] | None = setting("columns to draw, in this order (default: all)", None)

    def draw(self) -> "Figure":
        """Draw bars for every row of the reports."""
        from fairseq_clear.evaluation.plotting import draw_compare, read_bars

        bars = read_bars(self.reports)
        pairs = zip(bars, self.names(len(bars)), strict=True)
        return draw_compare([replace(bar, label=name or bar.label) for bar, name in pairs], self.columns)


@dataclass(kw_only=True)
class StsPicture(Picture, ModelFlags):
    """Base class of pictures of encoders on an STS task."""

    encoder: tuple[str, ...] = setting("checkpoints, or for embedding also package.module:factory", metavar="ENC")
    data: Path | None = setting("SentEval's data folder, or the folder of the task", None, metavar="DIR")
    task: str = setting("task, as in fairseq-clear sts", "STS-B-dev", metavar="TASK")
    sts_file: Path | None = setting("tab-separated pairs in place of --data and --task", None)

    def read(self) -> "StsData":
        """Read the pairs and their scores."""
        from fairseq_clear.evaluation.sts_data import read_sts, read_sts_file

        if self.sts_file is not None:
            return read_sts_file(self.sts_file)
        if self.data is None:
            raise UserError("--data: give the folder of SentEval's data, or --sts-file")
        return read_sts(self.data, self.task)


@dataclass(kw_only=True)
class Layers(StsPicture):
    """STS score by layer and pooling."""

    poolings: tuple[str, ...] = setting("poolings, each drawn as a line", ("cls", "mean", "max"))

    def draw(self) -> "Figure":
        """Draw a line for each encoder and pooling; print the numbers."""
        from tqdm import tqdm

        from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
        from fairseq_clear.evaluation.sts_plots import draw_layers, score_layers

        data, names = self.read(), self.names(len(self.encoder))
        if self.data_bin is None:
            raise UserError("--data-bin: give the folder with the dict.txt and tokenizer of the checkpoints")
        results = []
        for path, name in zip(self.encoder, names, strict=True):
            tokenizer = choose_tokenizer(self.tokenizer, Path(self.data_bin))
            encoder = SentenceEncoder.from_pretrained(path, self.data_bin, tokenizer=tokenizer, device=self.device)
            label = name or path
            with tqdm(total=len(data), unit="pair", file=sys.stderr, disable=None, leave=False) as bar:
                results.append(
                    score_layers(
                        encoder, data, self.poolings, label=label, batch_size=self.batch_size, on_batch=bar.update
                    )
                )
            for pooling, scores in results[-1].scores.items():
                print(f"{label} {pooling}: {' '.join('-' if score != score else f'{score:.2f}' for score in scores)}")
        return draw_layers(results, data.name)


@dataclass(kw_only=True)
class Embedding(StsPicture):
    """Map of the highest and lowest scored pairs, by t-SNE."""

    pooling: str | None = setting("pooling (default: the checkpoint's own)", None)
    pairs: int = setting("number of pairs of each kind", 20, metavar="K")
    seed: int = setting("seed of t-SNE, and of the choice among equal scores", 1)

    def draw(self) -> "Figure":
        """Draw a map for each encoder."""
        from fairseq_clear.evaluation.sts_plots import choose_pairs, draw_embedding, map_pairs

        names = self.names(len(self.encoder))
        pairs, scores = choose_pairs(self.read(), self.pairs, self.seed)
        maps = []
        for path, name in zip(self.encoder, names, strict=True):
            encoder = self.load_encoders(path, [self.pooling])[0]
            encoder.name = name or encoder.name
            maps.append(map_pairs(encoder, pairs, seed=self.seed))
        return draw_embedding(maps, scores)


@dataclass(kw_only=True)
class Plot(Command):
    """Draw a picture at the width of a paper's column, legible to colour-blind readers and in grey: PNG and SVG."""

    EXAMPLES: ClassVar[str] = """
fairseq-clear plot curves clear/train.log roberta/train.log --output curves
fairseq-clear plot compare sts.json glue-runs/report.json --columns STS-B RTE --output compare
fairseq-clear plot layers --encoder checkpoint_best.pt --data-bin data-bin --data SentEval/data --output layers
fairseq-clear plot embedding --encoder a.pt b.pt --data-bin data-bin --data SentEval/data --output pairs"""
    STEP: ClassVar[str] = "PICTURE"
    STEPS = {
        "curves": (Curves, "losses, accuracy, alignment against uniformity of training logs"),
        "compare": (Compare, "bars over JSON reports of sts, senteval, classify and glue"),
        "layers": (Layers, "STS by layer and pooling"),
        "embedding": (Embedding, "t-SNE of the highest and lowest scored pairs"),
    }
