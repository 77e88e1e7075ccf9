r"""Measures the recipes of ``fairseq-clear refine`` on three corpora: retrieval, topics or sentiment, and STS-B.

    python examples/refine/measure.py --encoder all-MiniLM-L6-v2 --corpora corpora --sts SentEval/data --output measured \
        --seeds 1 2 3

Every recipe starts from the same encoder. Retrieval finds the rest of a held-out document by its first sentence (MRR@10, x100);
topics and sentiment are the accuracy of a logistic regression, x100; STS-B is the Spearman correlation of its test split, x100.
Writes one JSON file per run and prints a table for each corpus. A run whose file exists is not repeated.
"""

import argparse
import json
import lzma
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "demo"))

from corpus import documents, split, write_text
from measuring import DOCUMENTS, clear, provenance, table
from scores import choose_candidates, classify_topics

from fairseq_clear import SentenceEncoder
from fairseq_clear.evaluation.retrieval import evaluate_retrieval
from fairseq_clear.evaluation.retrieval_data import read_pairs, read_pairs_file
from fairseq_clear.evaluation.sts import evaluate_sts
from fairseq_clear.evaluation.topics import REMOVALS, read_topics
from fairseq_clear.refining.holding_out import divide_pairs, hold_out
from fairseq_clear.refining.refine_settings import RECIPES, RefineSettings
from fairseq_clear.refining.refine_training import Training, run_training, training_command

UNTOUCHED = "untouched"
# Name -> recipe of refine, further flags of fairseq-train.
ROWS = {
    UNTOUCHED: ("", ()),
    **{name: (name, ()) for name in RECIPES},
    "cloze, false negatives masked": ("cloze", ("--false-negatives", "guide:margin=0.0")),
    "cloze, lr 1e-5": ("cloze", ("--lr", "1e-5")),
    "cloze, regulariser 0.1": ("cloze", ("--regularizer-weight", "0.1")),
}
TRAIN, TEST = 60, 30  # labelled texts of each class


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
    arguments.output.mkdir(parents=True, exist_ok=True)
    encoder = arguments.output / "encoder"
    if not encoder.exists():
        clear("import", arguments.encoder, "--dest", encoder)
    for name in arguments.only:
        corpus = CORPORA[name](arguments.corpora, arguments.output / name, encoder)
        rows: dict[str, list[dict[str, float]]] = {}
        for seed in arguments.seeds:
            for row in arguments.rows:
                if row != UNTOUCHED or seed == arguments.seeds[0]:
                    rows.setdefault(row, []).append(measured(arguments, corpus, row, seed, encoder)["scores"])
        print(f"\n{name}\n\n{table(rows)}", flush=True)


def measured(arguments: argparse.Namespace, corpus: Corpus, row: str, seed: int, encoder: Path) -> dict:
    """The result of a run, from its file if there is one."""
    place = arguments.output / "runs" / corpus.folder.name
    stem = f"{''.join(c if c.isalnum() else '_' for c in row)}.{seed}"
    result = place / f"{stem}.json"
    if not result.exists():
        place.mkdir(parents=True, exist_ok=True)
        recipe, flags = ROWS[row]
        began, checkpoint, data = time.monotonic(), encoder / "model.pt", corpus.folder / "data-bin"
        if recipe:
            settings = RefineSettings(
                texts=(), encoder=encoder, dest=corpus.folder, seed=seed, max_length=96, training_flags=flags
            )
            run = Training(recipe, encoder, data, place / stem, arguments.updates, corpus.folder / "dev.jsonl")
            run_training(training_command(run, settings, "cpu"), run, f"{corpus.folder.name}, {row}, seed {seed}")
            checkpoint = run.save_dir / "checkpoint_best.pt"
        trained = time.monotonic() - began
        scores = score(SentenceEncoder.from_pretrained(checkpoint, data), corpus, arguments.sts)
        content = {"name": row, "seed": seed, "scores": scores, "train_seconds": round(trained, 1)}
        content |= {"updates": arguments.updates if recipe else 0, "flags": list(flags), **provenance()}
        result.write_text(json.dumps(content, indent=1) + "\n")
        shutil.rmtree(place / stem, ignore_errors=True)  # checkpoints of many runs would fill the disk
    found: dict = json.loads(result.read_text())
    return found


def score(encoder: SentenceEncoder, corpus: Corpus, sts: Path) -> dict[str, float]:
    """MRR@10 on the held-out documents, accuracy of the classifier, STS-B."""
    encoder.max_length = 128
    retrieval = evaluate_retrieval(encoder, read_pairs_file(corpus.folder / "test.jsonl"))
    train, test = encoder.encode(corpus.train[0]), encoder.encode(corpus.test[0])
    accuracy = 100 * classify_topics(train, test, corpus.train[1], corpus.test[1])
    similarity = evaluate_sts(encoder, sts, ("STS-B",)).scores["STS-B"].spearman
    return {"MRR@10": retrieval.scores["MRR@10"], corpus.task: accuracy, "STS-B": similarity}


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
    """The docstrings of the demonstration; pairs and test texts are of other modules."""
    parts = split(documents())
    if not (folder / "data-bin").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(parts.train, folder / "docstrings.jsonl")
        chosen = choose_candidates(parts.held_out, seed=3, count=1200)
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
    """Posts of 20 Newsgroups without headers, footers and quotes; the test texts are of the test split."""
    whole(folder, DOCUMENTS["20news"](corpora), encoder, split_sentences="paragraphs")
    data = read_topics(corpora, tuple(REMOVALS))
    sides = [
        sample(list(data.texts[name]), list(data.groups[name]), n, 1) for name, n in (("train", TRAIN), ("test", TEST))
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
    """Prepare documents, a twentieth of them held out."""
    if (folder / "data-bin").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "raw.txt"
    text.write_text("\n\n".join(block for block in blocks if block) + "\n", encoding="utf-8")
    options = ("--split-sentences", split_sentences) if split_sentences else ()
    clear("prepare", text, "--dest", folder / "text.txt", "--text-only", *options)
    hold_out(folder / "text.txt", folder, 0.1, 1)
    prepare(folder, encoder)


def prepare(folder: Path, encoder: Path) -> None:
    """Make the data folder of train.txt and valid.txt."""
    tokenizer = ("--tokenizer", "hf", "--tokenizer-dir", encoder)
    clear("prepare", folder / "train.txt", "--valid", folder / "valid.txt", "--dest", folder / "data-bin", *tokenizer)


CORPORA: dict[str, Callable[[Path, Path, Path], Corpus]] = {
    "docstrings": docstrings,
    "20news": newsgroups,
    "movie_reviews": reviews,
}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, required=True, help="Hugging Face or sentence-transformers folder")
    parser.add_argument("--corpora", type=Path, required=True, help="folder of 20 Newsgroups and movie reviews (.xz)")
    parser.add_argument("--sts", type=Path, required=True, help="folder with STSBenchmark")
    parser.add_argument("--output", type=Path, required=True, help="folder for the data and the runs")
    parser.add_argument("--only", nargs="+", default=list(CORPORA), choices=list(CORPORA), help="default: all corpora")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS), help="default: all rows")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--updates", type=int, default=150, help="updates of each run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
