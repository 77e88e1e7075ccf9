"""``fairseq-clear plot``: draws training curves and encoders as PNG and SVG."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fairseq_clear.cli.flags import Command, ModelFlags, choose_tokenizer
from fairseq_clear.errors import UserError
from fairseq_clear.libraries import import_library
from fairseq_clear.settings import setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fairseq_clear.evaluation.sts_data import StsData


@dataclass(kw_only=True)
class Picture(Command):
    """Base class of the pictures."""

    labels: tuple[str, ...] | None = setting("names in the legend, one for each entry", None, metavar="TEXT")
    output: Path = setting("write NAME.png and NAME.svg", metavar="NAME")
    overwrite: bool = setting("replace existing pictures", False)

    def run(self) -> int:
        """Draw the picture and write both files."""
        import_library("matplotlib", "eval")
        from fairseq_clear.evaluation.plotting import picture_files, save_figure

        picture_files(self.output, self.overwrite)
        files = save_figure(self.draw(), self.output)
        print(f"wrote {' and '.join(map(str, files))}")
        return 0

    @abstractmethod
    def draw(self) -> "Figure":
        """Draw the picture."""

    def names(self, entries: Sequence[object]) -> list[str]:
        """The names of the entries in the legend: the labels, or the entries themselves."""
        names = [str(entry) for entry in entries] if self.labels is None else list(self.labels)
        if len(names) != len(entries) or len(set(names)) < len(names):
            raise UserError(f"--labels {' '.join(names)}: give a different name for each of {len(entries)} entries")
        return names


@dataclass(kw_only=True)
class Curves(Picture):
    """Training logs: losses, accuracy, scores, alignment and uniformity."""

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

        names = self.names(self.logs)
        return draw_curves({name: read_log(path) for name, path in zip(names, self.logs, strict=True)}, self.metrics)


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

    poolings: tuple[str, ...] = setting(
        "poolings, each drawn as a line", ("cls", "mean", "max"), choices=("cls", "mean", "max")
    )

    def draw(self) -> "Figure":
        """Draw a line for each encoder and pooling; print the numbers."""
        from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
        from fairseq_clear.evaluation.sts_plots import draw_layers, score_layers

        data, results = self.read(), {}
        if self.data_bin is None:
            raise UserError("--data-bin: give the folder with the dict.txt and tokenizer of the checkpoints")
        tokenizer = choose_tokenizer(self.tokenizer, Path(self.data_bin))
        for path, name in zip(self.encoder, self.names(self.encoder), strict=True):
            encoder = SentenceEncoder.from_pretrained(path, self.data_bin, tokenizer=tokenizer, device=self.device)
            results[name] = score_layers(encoder, data, self.poolings, self.batch_size)
            for pooling, scores in results[name].items():
                print(f"{name} {pooling}: {' '.join('-' if score != score else f'{score:.2f}' for score in scores)}")
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

        pairs, scores = choose_pairs(self.read(), self.pairs, self.seed)
        maps = {}
        for path, name in zip(self.encoder, self.names(self.encoder), strict=True):
            maps[name] = map_pairs(self.load_encoders(path, [self.pooling])[0], pairs, seed=self.seed)
        return draw_embedding(maps, scores)


@dataclass(kw_only=True)
class Plot(Command):
    """Draw a picture at the width of a paper's column, legible to colour-blind readers and in grey: PNG and SVG."""

    EXAMPLES: ClassVar[str] = """
fairseq-clear plot curves clear/train.log roberta/train.log --output curves
fairseq-clear plot layers --encoder checkpoint_best.pt --data-bin data-bin --data SentEval/data --output layers
fairseq-clear plot embedding --encoder a.pt b.pt --data-bin data-bin --data SentEval/data --output pairs"""
    STEP: ClassVar[str] = "PICTURE"
    STEPS = {
        "curves": (Curves, "losses, accuracy, scores, alignment and uniformity of training logs"),
        "layers": (Layers, "STS by layer and pooling"),
        "embedding": (Embedding, "t-SNE of the highest and lowest scored pairs"),
    }
