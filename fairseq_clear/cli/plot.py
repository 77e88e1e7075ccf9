"""``fairseq-clear plot``: draws training curves and encoders as PNG, SVG or PDF."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fairseq_clear.cli.flags import Command, ModelFlags
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sts_data import read_sts_file
from fairseq_clear.evaluation.training_log import read_log
from fairseq_clear.files import check_output_file
from fairseq_clear.libraries import import_library
from fairseq_clear.settings import setting

SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(kw_only=True)
class Picture(Command):
    """Base class of the pictures."""

    labels: tuple[str, ...] | None = setting("names in the legend, one for each log or encoder", None, metavar="TEXT")
    output: Path = setting("picture to write: NAME.png, NAME.svg or NAME.pdf", metavar="NAME.SUFFIX")
    overwrite: bool = setting("replace an existing picture", False)

    def run(self) -> int:
        """Draw and write the picture."""
        import_library("matplotlib", "eval")
        from fairseq_clear.evaluation.plots import save_figure

        if self.output.suffix not in SUFFIXES:
            raise UserError(f"--output {self.output}: give a name that ends with {', '.join(SUFFIXES)}")
        check_output_file(self.output, self.overwrite)
        save_figure(self.draw(), self.output)
        print(f"wrote {self.output}")
        return 0

    def draw(self) -> Any:
        """Draw the picture, a figure of matplotlib."""
        raise NotImplementedError

    def named(self, entries: Sequence[Any]) -> dict[str, Any]:
        """The entries by their names in the legend: the labels, or the entries themselves."""
        names = self.labels or tuple(map(str, entries))
        if len(names) != len(entries) or len(set(names)) < len(names):
            raise UserError(f"--labels {' '.join(names)}: give a different name for each of {len(entries)} entries")
        return dict(zip(names, entries, strict=True))


@dataclass(kw_only=True)
class Curves(Picture):
    """Training logs: losses, accuracy, scores, alignment and uniformity."""

    logs: tuple[Path, ...] = setting(
        "output of fairseq-train with --log-format simple or json, or its --log-file", metavar="LOG", positional=True
    )

    def draw(self) -> Any:
        """Draw the curves of every log."""
        from fairseq_clear.evaluation.plots import curve_panels, draw_lines

        logs = {name: read_log(path) for name, path in self.named(self.logs).items()}
        return draw_lines(curve_panels(logs), "updates")


@dataclass(kw_only=True)
class Layers(Picture, ModelFlags):
    """STS score by layer, with the first token's vector (cls) and the mean over tokens."""

    encoder: tuple[str, ...] = setting("checkpoints, or for embedding also package.module:factory", metavar="ENC")
    sts_file: Path = setting("scored pairs, as in fairseq-clear sts, such as STSBenchmark/sts-dev.csv")

    def draw(self) -> Any:
        """Draw a line for each encoder and pooling; print the numbers."""
        from fairseq_clear.evaluation.plots import draw_lines, score_layers
        from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder

        (pairs,), lines = read_sts_file(self.sts_file).subsets.values(), {}
        for name, path in self.named(self.encoder).items():
            encoder = self.load_encoders(path, [None])[0].encoder
            if not isinstance(encoder, SentenceEncoder):
                raise UserError(f"--encoder {path}: has no layers to compare; give a checkpoint")
            for pooling, scores in score_layers(encoder, pairs, self.batch_size).items():
                lines[f"{name}, {pooling}"] = list(enumerate(scores.tolist(), 1))
                print(f"{name}, {pooling}: {' '.join(f'{score:.2f}' for score in scores)}")
        return draw_lines({f"{self.sts_file.stem} Spearman (x100)": lines}, "layer")


@dataclass(kw_only=True)
class Embedding(Layers):
    """Map of the highest and lowest scored pairs, by t-SNE."""

    pairs: int = setting("number of pairs of each kind", 20, metavar="K")

    def draw(self) -> Any:
        """Draw a map for each encoder."""
        from fairseq_clear.evaluation.plots import draw_map, map_pairs

        (pairs,), maps = read_sts_file(self.sts_file).subsets.values(), {}
        for name, path in self.named(self.encoder).items():
            maps[name] = map_pairs(self.load_encoders(path, [None])[0], pairs, self.pairs)
        return draw_map(maps)


@dataclass(kw_only=True)
class Plot(Command):
    """Draw a figure as wide as a column of a paper, readable for colour-blind readers and in greyscale."""

    EXAMPLES: ClassVar[str] = """
fairseq-clear plot curves clear/train.log roberta/train.log --output curves.pdf
fairseq-clear plot layers --encoder checkpoint_best.pt --data-bin data-bin --sts-file sts-dev.csv --output layers.pdf
fairseq-clear plot embedding --encoder a.pt b.pt --data-bin data-bin --sts-file sts-dev.csv --output pairs.pdf"""
    STEP: ClassVar[str] = "PICTURE"
    STEPS = {
        "curves": (Curves, "losses, accuracy, scores, alignment and uniformity of training logs"),
        "layers": (Layers, "STS by layer and pooling"),
        "embedding": (Embedding, "t-SNE of the highest and lowest scored pairs"),
    }
