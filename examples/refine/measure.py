r"""Measures the recipes of ``fairseq-clear refine`` on three corpora: retrieval, topics or sentiment, and STS-B.

    python examples/refine/measure.py --encoder all-MiniLM-L6-v2 --corpora corpora --sts SentEval/data --output measured \
        --seeds 1 2 3

Every recipe starts from the same encoder. Retrieval asks the question of ``refine`` (MRR@10, x100);
topics and sentiment are the accuracy of a logistic regression, x100; STS-B is the Spearman correlation of its test split, x100.
Writes all runs to ``results.json`` and prints the tables of RESULTS.md. A run in that file is not repeated.

``--general`` scores STS alone, of every task that --sts holds, for the refined encoder and for its merge of a half with the
untouched one.
"""

import argparse
import json
import lzma
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "demo"))

from corpus import documents, split, write_text
from measuring import (
    DOCUMENTS,
    Trained,
    Untrained,
    clear,
    import_encoder,
    make_parser,
    measure,
    parse_with_results,
    read_newsgroups,
)
from result_tables import difference_table, scores_of, seconds, table
from scores import choose_candidates, classify_topics

from fairseq_clear import SentenceEncoder
from fairseq_clear.evaluation.retrieval import evaluate_retrieval
from fairseq_clear.evaluation.retrieval_data import read_beir, read_pairs
from fairseq_clear.evaluation.sts import evaluate_sts, read_sts_tasks
from fairseq_clear.files import hash_file
from fairseq_clear.interop.merging import merge_checkpoints
from fairseq_clear.refining.holding_out import divide_pairs, hold_out, read_documents
from fairseq_clear.refining.refine_settings import RECIPES, RefineSettings
from fairseq_clear.refining.refine_steps import Training, train, training_flags

UNTOUCHED = "untouched"
TRAIN, TEST = 60, 30  # labelled texts of each class
HELD_OUT = 900  # documents at most: 600 are queries, as half of the held-out ones, at most 300, are dev
LENGTH = 64  # tokens of a text to score
GENERAL = ("STS12", "STS14", "STS-B", "SICK-R-trial")  # the trial split of SICK


@dataclass(frozen=True)
class Refined:
    """A row: a recipe of refine with further flags of fairseq-train, on one corpus.

    Attributes:
        recipe: a key of RECIPES.
        flags: of fairseq-train; ``{folder}`` stands for the folder of the corpus.
        encoder, corpus: folders of the encoder and of the prepared corpus.
        updates, max_length: as the flags of refine.
        documents: train on this many documents alone; 0 takes all.
        once: see ``measuring.Trained``.
    """

    recipe: str
    flags: tuple[str, ...] = ()
    encoder: Path = Path()
    corpus: Path = Path()
    updates: int = 0
    max_length: int = 0
    documents: int = 0
    once: bool = False

    def train(self, seed: int, folder: Path) -> Path:
        """Train as ``refine`` does, without merging; return the last checkpoint."""
        settings = RefineSettings(
            texts=(), encoder=self.encoder, dest=self.corpus, seed=seed, max_length=self.max_length, batch_size=32,
            training_flags=tuple(flag.format(folder=self.corpus) for flag in self.flags),
        )  # fmt: skip
        run = Training(self.recipe, self.encoder, self._data(), folder, self.updates, validations=2)
        train(run, training_flags(run, settings, "cpu"), f"{folder.parent.name}, {folder.name}")
        return run.save_dir / "checkpoint_last.pt"

    def _data(self) -> Path:
        """The data folder, made of the first documents of the corpus if their number is given."""
        data = self.corpus / (f"data-bin-{self.documents}" if self.documents else "data-bin")
        if not data.exists():
            text = data.with_suffix(".txt")
            some = islice(read_documents(self.corpus / "train.txt"), self.documents)
            text.write_text("".join("\n".join(document) + "\n\n" for document in some), encoding="utf-8")
            prepare(self.corpus, self.encoder, text, data)
        return data

    def about(self) -> dict[str, Any]:
        """The recipe, its flags, the length of the training, and hashes of test pairs and searched texts."""
        sizes = {"updates": self.updates, "max_length": self.max_length, "documents": self.documents}
        sizes["train_documents"] = self.documents or sum(1 for _ in read_documents(self.corpus / "train.txt"))
        return {
            "recipe": self.recipe,
            "flags": self.flags,
            **sizes,
            "test": hash_file(self.corpus / "question" / "qrels" / "test.tsv")[:12],
            "searched": hash_file(self.corpus / "question" / "corpus.jsonl")[:12],
        }


SHORT, LONG, UPDATES, DOCUMENT_COUNTS = 10, 160, 40, (100, 1000)  # of the curves
STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"))  # colour-blind safe
# How many updates, how much text, which learning rate
CURVES = {
    **{f"cloze, {number} updates": Refined("cloze", updates=number) for number in (SHORT, UPDATES, LONG)},
    **{f"cloze, {number} documents": Refined("cloze", updates=UPDATES, documents=number) for number in DOCUMENT_COUNTS},
    **{f"cloze, lr {rate}": Refined("cloze", ("--lr", rate), updates=UPDATES) for rate in ("1e-5", "2e-4")},
}
# Name -> row; the last two are tried for a smaller loss on STS-B.
ROWS = {
    **{name: Refined(name) for name in RECIPES},
    "cloze, false negatives masked": Refined("cloze", ("--false-negatives", "guide:margin=0.0")),
    "cloze, lr 1e-5": Refined("cloze", ("--lr", "1e-5")),
    "cloze, regulariser 0.1": Refined("cloze", ("--regularizer-weight", "0.1")),
}


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus: its folder, and labelled texts (texts, labels) to train and to test a classifier."""

    folder: Path
    task: str
    train: tuple[list[str], list[str]]
    test: tuple[list[str], list[str]]


def main() -> None:
    """Prepare, train, score, print."""
    arguments = parse()
    encoder = import_encoder(arguments.encoder, arguments.output)
    corpora = {name: CORPORA[name](arguments.corpora, arguments.output / name, encoder) for name in arguments.only}
    # by seed, so that an interrupted measurement has something of every corpus
    for seeds in [arguments.seeds[: n + 1] for n in range(len(arguments.seeds))]:
        found = {name: measure_corpus(arguments, corpus, seeds, encoder) for name, corpus in corpora.items()}
    if arguments.curves:
        draw_curves(found, arguments.output / "curves.png")
    for name, runs in found.items():
        rows = scores_of(runs)
        print(f"\n{name}\n\n{table(rows)}\n\ndifferences from {UNTOUCHED}, with standard errors\n")
        print(difference_table(rows, UNTOUCHED), seconds(runs), sep="\n", flush=True)


def measure_corpus(
    arguments: argparse.Namespace, corpus: Corpus, seeds: list[int], encoder: Path
) -> dict[str, list[dict[str, Any]]]:
    """The runs of every row on a corpus."""
    rows: dict[str, Trained] = {UNTOUCHED: Untrained(encoder / "model.pt")}
    for name, row in (CURVES if arguments.curves else {name: ROWS[name] for name in arguments.rows}).items():
        sizes = {"updates": row.updates or arguments.updates, "max_length": arguments.max_length}
        rows[name] = replace(row, encoder=encoder, corpus=corpus.folder, **sizes)

    def score(checkpoint: Path, row: Trained, seed: int) -> dict[str, float]:
        encoder = SentenceEncoder.from_pretrained(checkpoint, corpus.folder / "data-bin")
        encoder.max_length = LENGTH
        pairs = read_beir(corpus.folder / "question", "test")
        train, test = encoder.encode(corpus.train[0]), encoder.encode(corpus.test[0])
        return {
            "MRR@10": evaluate_retrieval(encoder, pairs).scores["MRR@10"],
            corpus.task: 100 * classify_topics(train, test, corpus.train[1], corpus.test[1]),
            "STS-B": evaluate_sts(encoder, read_sts_tasks(arguments.sts, ("STS-B",)))["STS-B"].spearman,
        }

    def score_general(checkpoint: Path, row: Trained, seed: int) -> dict[str, float]:
        start, half = encoder / "model.pt", checkpoint.with_name("half.pt")
        merged = {"": checkpoint}
        if checkpoint != start:
            merge_checkpoints(start, checkpoint, half, 0.5)
            merged[", half"] = half
        found = {}
        for suffix, path in merged.items():
            scored = SentenceEncoder.from_pretrained(path, corpus.folder / "data-bin")
            scores = {n: s.spearman for n, s in evaluate_sts(scored, read_sts_tasks(arguments.sts, GENERAL)).items()}
            found |= {f"{name}{suffix}": value for name, value in scores.items()}
            found[f"mean{suffix}"] = sum(scores.values()) / len(scores)
        return found

    kind = "curves-" if arguments.curves else "general-" if arguments.general else ""
    group = f"{kind}{corpus.folder.name}"
    scorer = score_general if arguments.general else score
    return measure(rows, seeds, arguments.output / "runs" / group, scorer, arguments.results, group)


def draw_curves(found: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], path: Path) -> None:
    """Draw the change in MRR@10 against updates, documents and learning rate, a line for each corpus, mean over seeds."""
    middle = f"cloze, {UPDATES} updates"
    panels = {
        "updates": {number: f"cloze, {number} updates" for number in (SHORT, UPDATES, LONG)},
        f"documents, {UPDATES} updates": {
            **{number: f"cloze, {number} documents" for number in DOCUMENT_COUNTS},
            0: middle,
        },
        f"learning rate, {UPDATES} updates": {1e-5: "cloze, lr 1e-5", 5e-5: middle, 2e-4: "cloze, lr 2e-4"},
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(8, 2.6), sharey=True, constrained_layout=True)
    for (corpus, runs), (colour, marker) in zip(found.items(), STYLES, strict=False):
        scores = {name: float(np.mean([run["scores"]["MRR@10"] for run in some])) for name, some in runs.items()}
        for axis, (title, rows) in zip(axes, panels.items(), strict=True):
            everything = runs[middle][0]["train_documents"]
            places = [place or everything for place in rows]
            changes = [scores[name] - scores[UNTOUCHED] for name in rows.values()]
            axis.plot(places, changes, color=colour, marker=marker, label=corpus.replace("_", " "))
            axis.set(xscale="log", xlabel=title)
            axis.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    axes[0].set_ylabel("change in MRR@10")
    axes[-1].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def sample(texts: list[str], labels: list[str], count: int, seed: int) -> tuple[list[str], list[str]]:
    """Draw ``count`` texts of each label."""
    rng = np.random.default_rng(seed)
    chosen = [
        number
        for label in sorted(set(labels))
        for number in rng.permutation([n for n, other in enumerate(labels) if other == label])[:count].tolist()
    ]
    return [texts[n] for n in chosen], [labels[n] for n in chosen]


def docstrings(corpora: Path, folder: Path, encoder: Path) -> Corpus:
    """The docstrings of the demonstration; pairs and test texts come from other modules."""
    parts = split(documents())
    if not (folder / "data-bin").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(parts.train, folder / "docstrings.jsonl")
        chosen = choose_candidates(parts.held_out, seed=3, count=750)
        lines = [json.dumps({"query": d.first_sentence, "passage": d.body}) for d in chosen]
        (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
        text = folder / "text.txt"
        clear("prepare", folder / "docstrings.jsonl", "--dest", text, "--text-only", "--split-sentences")
        divide_pairs(read_pairs(folder / "pairs.jsonl"), text, folder, 1)
        prepare(folder, encoder)
    train, test = (parts.labelled(some, most=n, seed=1) for some, n in ((parts.train, TRAIN), (parts.held_out, TEST)))
    sides = [([d.text for d in some], [d.package for d in some]) for some in (train, test)]
    return Corpus(folder, "topics", *sides)


def newsgroups(corpora: Path, folder: Path, encoder: Path) -> Corpus:
    """Posts of 20 Newsgroups without headers, footers and quotes; the test texts come from the test split."""
    whole(folder, DOCUMENTS["20news"](corpora), encoder, split_sentences="paragraphs")
    data = read_newsgroups(corpora)
    sides = [
        sample(list(data.texts[name]), list(data.labels[name]), n, 1) for name, n in (("train", TRAIN), ("test", TEST))
    ]
    return Corpus(folder, "topics", *sides)


def reviews(corpora: Path, folder: Path, encoder: Path) -> Corpus:
    """Movie reviews. The classifier is trained and tested on different reviews; refining reads the text of both."""
    whole(folder, DOCUMENTS["movie_reviews"](corpora), encoder)
    with lzma.open(corpora / "movie_reviews.jsonl.xz", "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    texts, labels = sample([r["text"] for r in records], [str(r["label"]) for r in records], 500, 1)
    sides = [(texts[n::2], labels[n::2]) for n in (0, 1)]
    return Corpus(folder, "sentiment", *sides)


def whole(folder: Path, blocks: list[str], encoder: Path, split_sentences: str | None = None) -> None:
    """Prepare documents, some of them held out."""
    if (folder / "data-bin").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "raw.txt"
    text.write_text("\n\n".join(block for block in blocks if block) + "\n", encoding="utf-8")
    options = ("--split-sentences", split_sentences) if split_sentences else ()
    clear("prepare", text, "--dest", folder / "text.txt", "--text-only", *options)
    hold_out(folder / "text.txt", folder, min(0.3, HELD_OUT / len(blocks)), 1)
    prepare(folder, encoder)


def prepare(folder: Path, encoder: Path, text: Path | None = None, dest: Path | None = None) -> None:
    """Make the data folder, data-bin, of a text, train.txt, and of valid.txt."""
    text, dest = text or folder / "train.txt", dest or folder / "data-bin"
    clear("prepare", text, "--valid", folder / "valid.txt", "--dest", dest, "--tokenizer-dir", encoder)


CORPORA: dict[str, Callable[[Path, Path, Path], Corpus]] = {
    "docstrings": docstrings,
    "20news": newsgroups,
    "movie_reviews": reviews,
}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--encoder", type=Path, required=True, help="Hugging Face or sentence-transformers folder")
    parser.add_argument("--corpora", type=Path, required=True, help="folder of 20 Newsgroups and movie reviews (.xz)")
    parser.add_argument("--sts", type=Path, required=True, help="folder with STSBenchmark")
    parser.add_argument("--only", nargs="+", default=list(CORPORA), choices=list(CORPORA), help="default: all corpora")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS), help="default: all rows")
    parser.add_argument("--curves", action="store_true", help="other numbers of updates, documents, and learning rates")
    parser.add_argument("--general", action="store_true", help="STS alone, of the refined and the merged encoder")
    parser.add_argument("--updates", type=int, default=60, help="updates of each run, of 32 pairs")
    parser.add_argument("--max-length", type=int, default=64, help="tokens of the longest text of a pair")
    return parse_with_results(parser)


if __name__ == "__main__":
    main()
