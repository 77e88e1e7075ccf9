r"""Measures the rows of CLEAR's Tables 1 to 3 and its sweep of section 4.1 at small scale, from scratch.

    python examples/clear/measure.py --corpora corpora --sts SentEval/data --senteval SentEval/data \
        --synonyms counterfitted_neighbors.json --output measured --seeds 1 2 3

Encoders of 2 layers x 128 (``--size mini``: 4 x 256) are trained on the sentences of 20 Newsgroups' training split, movie
reviews and WikiText-2. Every row reads as many masked tokens as ``--masked`` says. Scores, x100: Spearman's correlation on STS,
with mean and with CLS pooling; SentEval's transfer tasks by logistic regression, with mean pooling; the correlation on STS-B's
dev split at each fifth of the training; with ``--glue`` the dev metrics of three tasks of GLUE, fine-tuned for five epochs in
batches of 32 at the learning rate 3e-4. Further rows: an untrained encoder, and TF-IDF reduced by SVD, fitted on the same text.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measuring import (
    DOCUMENTS,
    PROJECT,
    UNTRAINED,
    Recipe,
    clear,
    finetune,
    make_parser,
    measure,
    parse_with_results,
    schedule,
)
from result_tables import difference_table, scores_of, seconds, table

from fairseq_clear import SentenceEncoder
from fairseq_clear.evaluation.encoders import CachedEncoder, load_encoders
from fairseq_clear.evaluation.glue.glue_tasks import metric_of
from fairseq_clear.evaluation.plots import STYLE, WIDTH, save_figure
from fairseq_clear.evaluation.senteval import evaluate_senteval, read_tasks
from fairseq_clear.evaluation.senteval_data import Classifiers
from fairseq_clear.evaluation.sts import evaluate_sts, read_sts_tasks

CONFIG = PROJECT / "examples/clear/config/tiny.yaml"
MASKED, BATCH, FIFTHS = 0.15, 128, 5
MAX_LENGTH = 128  # positions of tiny.yaml
BASELINE = "RoBERTa"
STS = ("STS12", "STS14", "STS-B", "SICK-R-trial")
DEV = "STS-B-dev"
TRANSFER = ("MR", "CR", "TREC", "MRPC")
GLUE = ("CoLA", "RTE", "MRPC")
TUNING = ("--recipe", "clear", "--epochs", 5, "--lr", 3e-4, "--batch-size", 32)
# Row of the paper -> ablation, or the augmentation of base_256gpu.yaml itself, and batches of BATCH texts that an update masks
TABLES: dict[str, tuple[str, int]] = {
    BASELINE: ("roberta", 1),
    "Double-batch": ("double_batch", 2),
    "Double-MLM": ("double_mlm", 2),
    "del-word": ("del_word", 1),
    "del-span": ("del_span", 1),
    "subs+del-word": ("subs_del_word", 1),
    "subs+del-span": ("subs_del_span", 1),
    "del-word+reorder": ("del_word_reorder", 1),
    "del-span+reorder": ("del-span:spans=5,ratio=0.05+reorder:pairs=5,ratio=0.05", 1),
    "subs+del-word+reorder": ("subs_del_word_reorder", 1),
}
FAILING = {"subs": ("subs", 1), "reorder": ("reorder", 1), "subs+reorder": ("subs_reorder", 1)}  # section 4.2
SWEEP = {f"del-word {share} %": (f"del_word_{share}", 1) for share in (30, 40, 50, 60, 80, 90)}  # section 4.1
ROWS = TABLES | FAILING | SWEEP
SIZES = {"tiny": (2, 128), "mini": (4, 256)}


@dataclass(frozen=True)
class Baseline:
    """A row without a training: an encoder that ``fairseq-clear sts --encoder`` takes."""

    name: str
    once: bool = True

    def train(self, seed: int, folder: Path) -> Path:
        """Nothing to train."""
        return Path()

    def about(self) -> dict[str, Any]:
        """The name of the encoder."""
        return {"encoder": self.name}


def main() -> None:
    """Prepare the data, train, score, print."""
    arguments = parse()
    read_sts_tasks(arguments.sts, (*STS, DEV))  # a wrong folder is found before hours of training
    read_tasks(arguments.senteval, TRANSFER)
    data = prepare(arguments)
    layers, width = SIZES[arguments.size]
    length = mean_length(data)
    rows: dict[str, Any] = {"TF-IDF": Baseline("baselines:tfidf_svd")}
    own = {"untrained": ("roberta", 1), **{name: ROWS[name] for name in arguments.rows}}
    for name, (ablation, batches) in own.items():
        updates = round(arguments.masked / (MASKED * length * BATCH * batches))
        overrides = [
            f"task.augment='{ablation}'" if ":" in ablation else f"+ablation={ablation}",
            *(f"task.data={data.resolve()}", f"++model.encoder_layers={layers}"),
            *(f"++model.encoder_embed_dim={width}", f"++model.encoder_ffn_embed_dim={4 * width}"),
            *(f"++model.encoder_attention_heads={width // 64}", f"dataset.batch_size={BATCH}"),
            *schedule(updates, arguments.lr),
            *(f"++checkpoint.save_interval_updates={-(-updates // FIFTHS)}", "++checkpoint.keep_interval_updates=-1"),
        ]
        overrides += [f"dataset.batch_size={BATCH * batches}"] if ablation == "double_batch" else []
        rows[name] = Recipe(CONFIG, (*overrides, *(UNTRAINED if name == "untrained" else ())))

    def score(checkpoint: Path, row: Any, seed: int) -> dict[str, float]:
        if isinstance(row, Baseline):
            return score_encoder(load_encoders(row.name, [None])[0][1], arguments)
        found = score_encoder(SentenceEncoder.from_pretrained(checkpoint, data, pooling="mean"), arguments)
        by_cls = SentenceEncoder.from_pretrained(checkpoint, data, pooling="cls")
        found |= {f"{name}, CLS": value for name, value in sts(by_cls, arguments.sts, STS).items()}
        if arguments.glue is not None:
            glue_bin = arguments.output / "glue-bin"
            for task in GLUE:
                run = (checkpoint, glue_bin, task, metric_of("clear", task), seed, checkpoint.parent / task)
                found[f"{task}, tuned"] = finetune(*run, *TUNING)
        if arguments.keep:
            words = (
                "--format",
                "sentence-transformers",
                "--dest",
                arguments.output / "encoders" / checkpoint.parent.name,
            )
            clear("export", checkpoint, "--data-bin", data, *words, "--overwrite")
        return found | curve(checkpoint.parent, data, arguments.sts)

    group = f"{arguments.size}-{arguments.masked / 1e6:g}M"  # of results.json: runs of one length are compared
    found = measure(rows, arguments.seeds, arguments.output / "runs", score, arguments.results, group)
    scores = scores_of(found)
    print(table(scores), difference_table(scores, BASELINE) if BASELINE in scores else "", seconds(found), sep="\n\n")
    draw(scores, arguments.output / "clear.png")


def prepare(arguments: argparse.Namespace) -> Path:
    """The data folder with its synonym table; the text is also that of TF-IDF."""
    data, text = arguments.output / "data-bin", arguments.output / "text.txt"
    if not data.exists():
        arguments.output.mkdir(parents=True, exist_ok=True)
        blocks = [block for read in DOCUMENTS.values() for block in read(arguments.corpora)]
        text.with_name("raw.txt").write_text("\n\n".join(filter(None, blocks)) + "\n", encoding="utf-8")
        words = (text.with_name("raw.txt"), "--dest", text, "--text-only", "--split-sentences", "paragraphs")
        clear("prepare", *words)
        clear("prepare", text, "--dest", data, "--vocab-size", 8000)
    if not (data / "synonyms.npz").exists():
        clear("synonyms", "--data-bin", data, "--source", arguments.synonyms)
    if arguments.glue is not None and not (arguments.output / "glue-bin").exists():
        words = ("--data-bin", data, "--tasks", *GLUE, "--max-length", MAX_LENGTH)
        clear("glue", "prepare", "--glue-dir", arguments.glue, *words, "--dest", arguments.output / "glue-bin")
    os.environ["BASELINE_TEXT"] = str(text.resolve())
    sys.path.insert(1, str(PROJECT / "examples/evaluation"))
    return data


def mean_length(data: Path) -> float:
    """Mean number of tokens of a sentence of the training set."""
    parts: Mapping[str, Any] = json.loads((data / "clear.json").read_text())
    split = parts["splits"]["train"]
    return float(split["tokens"] / split["sentences"])


def score_encoder(encoder: Any, arguments: argparse.Namespace) -> dict[str, float]:
    """STS without training, and the transfer tasks."""
    cached = CachedEncoder.of(encoder)
    data, classifiers = read_tasks(arguments.senteval, TRANSFER), Classifiers(kind="logistic", folds=5)
    return sts(cached, arguments.sts, STS) | evaluate_senteval(cached, data, classifiers=classifiers).means()


def sts(encoder: Any, folder: Path, tasks: tuple[str, ...]) -> dict[str, float]:
    """Spearman's correlation x100 of each task, and their mean if there are several."""
    scores = evaluate_sts(encoder, read_sts_tasks(folder, tasks))
    found = {name: score.spearman for name, score in scores.items()}
    return found | ({"mean of STS": sum(found.values()) / len(found)} if len(found) > 1 else {})


def curve(folder: Path, data: Path, sts_folder: Path) -> dict[str, float]:
    """The correlation on STS-B's dev split at each fifth of a training."""
    paths = sorted(folder.glob("checkpoint_*_*.pt"), key=lambda path: int(path.stem.rpartition("_")[2]))
    paths = [*paths[: FIFTHS - 1], folder / "checkpoint_last.pt"] if paths else []
    found = {}
    for number, path in enumerate(paths, start=1):
        encoder = SentenceEncoder.from_pretrained(path, data, pooling="mean")
        found[f"dev, {number}/{FIFTHS}"] = sts(encoder, sts_folder, (DEV,))[DEV]
    return found


def draw(scores: Mapping[str, Mapping[int, Mapping[str, float]]], path: Path) -> None:
    """Draw the mean of STS of every row and seed, with both poolings, and STS-B's dev split while a row trains."""
    with style.context((*STYLE, {"font.size": 6})):
        figure = Figure(figsize=(2 * WIDTH, 2.8))
        means, curves = figure.subplots(1, 2)
        for offset, pooling, name in ((-0.15, "mean", "mean of STS"), (0.15, "CLS", "mean of STS, CLS")):
            points = [
                (run[name], row + offset)
                for row, runs in enumerate(scores.values())
                for run in runs.values()
                if name in run
            ]
            means.plot(
                *zip(*points, strict=True), "os"[offset > 0], markersize=3, linestyle="", label=f"{pooling} pooling"
            )
        means.set(xlabel="mean of STS", yticks=range(len(scores)), yticklabels=scores)
        means.invert_yaxis()
        means.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)  # inside, it would cover points
        for number, (name, runs) in enumerate(scores.items()):
            fifths = range(1, FIFTHS + 1)
            trained = [run for run in runs.values() if f"dev, 1/{FIFTHS}" in run]
            if trained:
                values = [sum(run[f"dev, {fifth}/{FIFTHS}"] for run in trained) / len(trained) for fifth in fifths]
                curves.plot(fifths, values, "-:"[number % 2], color=f"C{number // 2}", linewidth=1, label=name)
        curves.set(xlabel="fifth of the training", ylabel="STS-B, dev split", xticks=range(1, FIFTHS + 1))
        curves.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    save_figure(figure, path)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--corpora", type=Path, required=True, help="folder of the three corpora (.xz)")
    parser.add_argument("--sts", type=Path, required=True, help="folder of STS12, STS14, STS-B and SICK")
    parser.add_argument("--senteval", type=Path, required=True, help="folder of SentEval's transfer tasks")
    parser.add_argument("--glue", type=Path, help="folder of CoLA, RTE and MRPC, to fine-tune each new run on")
    parser.add_argument("--synonyms", type=Path, required=True, help="counter-fitted neighbours, a JSON file")
    parser.add_argument("--rows", nargs="+", default=list(TABLES), choices=list(ROWS), help="default: Tables 1 to 3")
    parser.add_argument("--size", default="tiny", choices=list(SIZES), help="2 x 128 or 4 x 256")
    parser.add_argument("--masked", type=float, default=1e6, help="masked tokens that each row reads")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--keep", action="store_true", help="export the encoder of each new run to OUTPUT/encoders")
    return parse_with_results(parser)


if __name__ == "__main__":
    main()
