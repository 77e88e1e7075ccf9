r"""Which question without labels predicts what people judge? Measured on collections in BEIR's layout, such as SciFact.

    python examples/refine/questions.py --encoder all-MiniLM-L6-v2 --data SCIFACT CRANFIELD --output asked --seeds 1 2

Encoders are trained on the documents of a collection, by several recipes of ``refine`` and learning rates, and merged with the
encoder that they start from. Each is scored by the queries of people (nDCG@10 of the split ``dev``) and by questions made of
documents that were not trained on (MRR@10). All search the same documents: those that people judged, those of the questions,
and others. The tables show how far the change in a question goes with the change in nDCG@10: Spearman's correlation, how often
the signs agree, and what choosing by the question gains.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import UNTOUCHED, Refined, prepare
from measuring import Untrained, clear, import_encoder, make_parser, measure, parse_with_results
from sklearn.feature_extraction.text import TfidfVectorizer

from fairseq_clear import SentenceEncoder
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.retrieval import score_rankings, search
from fairseq_clear.evaluation.retrieval_data import RetrievalData, read_beir
from fairseq_clear.files import write_json
from fairseq_clear.interop.merging import merge_checkpoints
from fairseq_clear.refining.holding_out import hold_out

RECIPES = ("titles", "cloze", "neighbor", "span", "simcse")
# name -> recipe, updates, tokens of the longest text, flags of fairseq-train
SETTINGS: dict[str, tuple[str, int, int, tuple[str, ...]]] = {
    **{f"{recipe}, lr 1e-4": (recipe, 30, 128, ("--lr", "1e-4")) for recipe in RECIPES},
    "titles, lr 5e-5, 80 updates": ("titles", 80, 128, ()),
    "titles, lr 2e-5, 80 updates": ("titles", 80, 128, ("--lr", "2e-5")),
    "titles, 40 updates of 64": ("titles", 40, 128, ("--batch-size", "64")),
    "titles, 20 updates of 128": ("titles", 20, 128, ("--batch-size", "128")),
    "titles of 64, temperature 0.1": ("titles", 40, 128, ("--batch-size", "64", "--temperature", "0.1")),
    "titles, temperature 0.02": ("titles", 80, 128, ("--temperature", "0.02")),
    "titles, 40 updates, 256 tokens": ("titles", 40, 256, ()),
    "titles, false negatives masked": ("titles", 80, 128, ("--false-negatives", "guide:margin=0.1")),
}
_OF_64 = ("--batch-size", "64")
# further pairs in the same batches, a fifth of an epoch: see FURTHER
SETTINGS |= {
    "titles of 64, false negatives masked": ("titles", 40, 128, (*_OF_64, "--false-negatives", "guide:margin=0.1")),
    **{
        f"titles of 64, with {name}": (
            "titles",
            40,
            128,
            (*_OF_64, "--mix", f"{{folder}}/data-bin:4,{{folder}}/{name}:1"),
        )
        for name in ("sentences", "neighbors")
    },
}
SHARES = (0.5, 1.0)
PEOPLE = "people"  # nDCG@10 of the judged queries
ASKED, CANDIDATES = 200, 1000
LENGTH = 128  # tokens of a text to score
WORDS, BEGIN = 5, 40

Sentences = Sequence[str]


@dataclass
class Collection:
    """A judged collection, prepared: documents as lists of sentences, the title first."""

    folder: Path
    judged: RetrievalData  # dev queries, whole documents
    asked: list[Sentences]  # held-out documents, which make the questions
    others: list[Sentences]  # further candidates


def words_of(texts: Sequence[str]) -> list[str]:
    """The words of highest TF-IDF of each text, joined."""
    vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    weights = vectorizer.fit_transform(texts)
    names = vectorizer.get_feature_names_out()
    return [" ".join(names[row.indices[np.argsort(-row.data, kind="stable")[:WORDS]]]) for row in weights]


def middle(document: Sentences) -> int:
    """The number of the sentence in the middle of the text below the title."""
    return 1 + (len(document) - 1) // 2


# name -> the pair that a document gives, as a title and its text: a sentence like a title, or the sentence after it
FURTHER: dict[str, Callable[[Sentences], Sentences]] = {
    "sentences": lambda d: [d[middle(d)], *d[: middle(d)], *d[middle(d) + 1 :]],
    "neighbors": lambda d: d[middle(d) - 1 : middle(d) + 1],
}
# name -> the query and its passage, from a document
QUESTIONS: dict[str, Callable[[Sentences], tuple[str, str]]] = {
    "title": lambda d: (d[0], " ".join(d[1:])),
    "middle": lambda d: (d[middle(d)], " ".join([*d[: middle(d)], *d[middle(d) + 1 :]])),
    "half": lambda d: (" ".join(d[: (len(d) + 1) // 2]), " ".join(d[(len(d) + 1) // 2 :])),
    "words": lambda d: ("", " ".join(d)),
    "title and sentence": lambda d: (d[0], d[middle(d)]),
    "title and 40 words": lambda d: (d[0], " ".join(" ".join(d[1:]).split()[:BEGIN])),
}


def main() -> None:
    """Prepare, train, score, print."""
    arguments = parse()
    encoder = import_encoder(arguments.encoder, arguments.output)
    collections = {path.name: read_collection(path, arguments.output / path.name, encoder) for path in arguments.data}
    for seeds in [arguments.seeds[: n + 1] for n in range(len(arguments.seeds))]:
        for name, collection in collections.items():
            measure_collection(arguments, name, collection, seeds, encoder)
    found = {
        key: runs for key, runs in json.loads(arguments.results.read_text()).items() if key.startswith("questions-")
    }
    write_json(arguments.results.with_name("questions.json"), summarize(found), flag="--results")


def summarize(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The changes of every case, and how far a change in a question goes with the change in what people judge.

    A case is a training and a share of its weights in a merge with the untouched encoder.
    """
    tables: dict[str, Any] = {}
    changes: dict[str, list[dict[str, float]]] = {}  # collection -> a case each
    people: dict[str, dict[str, list[float]]] = {}  # training -> collection and share -> change
    for key, runs in found.items():
        before = next(run["scores"] for run in runs if run["name"] == UNTOUCHED)
        rows: dict[str, dict[str, list[float]]] = {}
        for run in runs:
            for share in SHARES if run["name"] != UNTOUCHED else ():
                case = {
                    name: run["scores"][f"{name}, {share:g}"] - before[name]
                    for name in before
                    if f"{name}, {share:g}" in run["scores"]
                }
                people.setdefault(run["name"], {}).setdefault(f"{key.partition('-')[2]}, {share:g}", []).append(
                    case[PEOPLE]
                )
                if len(case) == 1:  # of --people-only
                    continue
                changes.setdefault(key, []).append(case)
                row = rows.setdefault(f"{run['name']}" + (f", {share:g}" if share < 1 else ""), {})
                for name, value in case.items():
                    row.setdefault(name, []).append(value)
        tables[key.partition("-")[2]] = {"rows": {UNTOUCHED: {k: [v] for k, v in before.items()}, **rows}}
    agreement: dict[str, dict[str, list[float]]] = {}
    rules: dict[str, tuple[list[str], Callable[[list[float]], float]]] = {name: ([name], min) for name in QUESTIONS}
    rules |= {"mean of all": (list(QUESTIONS), fmean), "least of all": (list(QUESTIONS), min)}
    for rule, (questions, combined) in rules.items():
        cells = agreement.setdefault(rule, {})
        for key, cases in changes.items():
            both = [case for case in cases if set(questions) <= case.keys()]
            judged = np.array([case[PEOPLE] for case in both])
            asked = np.array([combined([case[name] for name in questions]) for case in both])
            name = key.partition("-")[2]
            cells[f"Spearman, {name}"] = [float(spearmanr(judged, asked).statistic)]
            cells[f"same sign, {name}"] = [float(100 * np.mean(np.sign(judged) == np.sign(asked)))]
            # what people say of the case that the question finds best; 0 is the untouched encoder
            cells[f"choice, {name}"] = [float(judged[asked.argmax()] if asked.max() > 0 else 0.0)]
    tables |= {"agreement": {"rows": agreement}, "people": {"rows": people}}
    return tables


def read_collection(path: Path, folder: Path, encoder: Path) -> Collection:
    """Prepare a collection as ``refine`` does: some documents are held out."""
    text = folder / "text.txt"
    if not (folder / "data-bin").exists():
        folder.mkdir(parents=True, exist_ok=True)
        corpus = next(path.glob("corpus.jsonl*"))
        clear("prepare", corpus, "--dest", text, "--text-only", "--title-field", "title", "--split-sentences")
        hold_out(text, folder, ASKED / len(read_documents(text)), seed=1)
        prepare(folder, encoder)
    documents = read_documents(text)
    training = read_documents(folder / "train.txt")
    trained = set(map(tuple, training))
    for name, pair in FURTHER.items():
        text = folder / f"{name}.txt"
        if not text.exists():
            text.write_text("\n\n".join("\n".join(pair(d)) for d in training if len(d) > 3) + "\n", encoding="utf-8")
            clear("prepare", text, "--dest", folder / name, "--tokenizer-dir", encoder)
    asked = [d for d in documents if tuple(d) not in trained and len(d) > 2]
    judged = read_beir(path, "dev")
    # passages that people judged first, then others while there is room
    relevant = {number for gains in judged.relevant for number in gains if number < len(judged.passages)}
    order = [*sorted(relevant), *np.random.default_rng(1).permutation(len(judged.passages)).tolist()]
    chosen = list(dict.fromkeys(order))[: max(CANDIDATES, len(relevant))]
    place = {number: n for n, number in enumerate(chosen)}
    gains = [{place[number]: gain for number, gain in one.items() if number in place} for one in judged.relevant]
    passages = [" ".join(judged.passages[n].split()) for n in chosen]
    document_of = {" ".join(d): d for d in documents if tuple(d) in trained and len(d) > 2}
    others = [document_of[passage] for passage in passages if passage in document_of]
    return Collection(folder, RetrievalData(path.name, judged.queries, passages, gains), asked, others)


def read_documents(path: Path) -> list[list[str]]:
    """The documents of canonical text."""
    return [block.split("\n") for block in path.read_text(encoding="utf-8").strip().split("\n\n")]


def measure_collection(
    arguments: argparse.Namespace, name: str, collection: Collection, seeds: list[int], encoder: Path
) -> None:
    """Train and score every row with every seed."""
    rows: dict[str, Any] = {UNTOUCHED: Untrained(encoder / "model.pt")}
    for label in arguments.rows:
        recipe, updates, length, flags = SETTINGS[label]
        rows[label] = Refined(recipe, flags, encoder, collection.folder, updates, length)

    def score(checkpoint: Path, row: Refined | Untrained, seed: int) -> dict[str, float]:
        asked = () if arguments.people_only else tuple(QUESTIONS)
        if isinstance(row, Untrained):
            return scores_of(checkpoint, collection, asked)
        found = {}
        for share in SHARES:
            merged = checkpoint
            if share < 1:
                merged = checkpoint.with_name("merged.pt")
                merge_checkpoints(encoder / "model.pt", checkpoint, merged, share)
            found |= {f"{key}, {share:g}": value for key, value in scores_of(merged, collection, asked).items()}
        return found

    measure(rows, seeds, arguments.output / "runs" / name, score, arguments.results, f"questions-{name}")


def scores_of(checkpoint: Path, collection: Collection, asked: Sequence[str]) -> dict[str, float]:
    """The scores of an encoder by the queries of people and by the questions ``asked``, x100."""
    encoder = SentenceEncoder.from_pretrained(checkpoint, collection.folder / "data-bin")
    encoder.max_length = LENGTH
    cached = CachedEncoder(encoder)
    found = {PEOPLE: ndcg(cached, collection.judged)}
    whole = [" ".join(d) for d in collection.others]
    words = words_of([" ".join(d) for d in (*collection.asked, *collection.others)])[: len(collection.asked)]
    for name in asked:
        ask = QUESTIONS[name]
        queries, passages = zip(*map(ask, collection.asked), strict=True)
        queries = words if name == "words" else queries
        others = [ask(d)[1] for d in collection.others] if name.startswith("title and") else whole
        data = RetrievalData(name, queries, [*passages, *others], [{n: 1} for n in range(len(queries))])
        found[name] = ndcg(cached, data, column=0)
    return found


def ndcg(encoder: CachedEncoder, data: RetrievalData, column: int = 1) -> float:
    """The mean of a column of ``retrieval.METRICS``: 0 is MRR@10, 1 is nDCG@10; x100."""
    queries, passages = (encoder.encode(list(texts)) for texts in (data.queries, data.passages))
    ranked = search(queries, [passages], 10).passages.numpy()
    return float(100 * score_rankings(ranked, data.relevant)[:, column].mean())


def parse() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--encoder", type=Path, required=True, help="Hugging Face or sentence-transformers folder")
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, help="folders in BEIR's layout with qrels/dev.tsv"
    )
    parser.add_argument("--rows", nargs="+", default=list(SETTINGS), choices=list(SETTINGS), help="default: all")
    parser.add_argument("--people-only", action="store_true", help="score by the queries of people alone")
    return parse_with_results(parser)


if __name__ == "__main__":
    main()
