r"""Scores what ``fairseq-clear refine`` exports by queries that people judged, on collections in BEIR's layout, and by STS-B.

    python examples/refine/judged.py --encoder all-MiniLM-L6-v2 --data SCIFACT CRANFIELD --sts SentEval/data --output judged \
        --seeds 1 2 3

``refine`` reads the documents of a collection, with default settings unless a row says otherwise; "refine --train-pairs" also
reads the judged pairs of the split ``dev``. The queries of the split ``test`` search all documents: nDCG@10 and MRR@10, x100.
"low" and "high" bound the difference of nDCG@10 from the untouched encoder: 95 %, paired bootstrap over queries. STS-B is the
Spearman correlation of its test split, x100. A run that is in ``--results`` is not repeated.
"""

import argparse
import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measuring import (
    Untrained,
    clear,
    import_encoder,
    interval,
    make_parser,
    means,
    measure,
    parse_with_results,
    values_of,
)
from result_tables import difference_table, scores_of, seconds, table

from fairseq_clear import SentenceEncoder
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.retrieval_data import read_beir
from fairseq_clear.evaluation.sts import evaluate_sts, read_sts_tasks

UNTOUCHED = "untouched"


@dataclass(frozen=True)
class Refine:
    """A row: a call of ``refine`` on the documents of a collection.

    Attributes:
        flags: of refine.
        trains_on_pairs: whether the judged pairs of dev are trained on.
        encoder, collection: folders of the encoder and of the collection.
        once: see ``measuring.Trained``.
    """

    flags: tuple[str, ...] = ()
    trains_on_pairs: bool = False
    encoder: Path = Path()
    collection: Path = Path()
    once: bool = False

    def train(self, seed: int, folder: Path) -> Path:
        """Run refine; return the exported checkpoint."""
        corpus, flags = next(self.collection.glob("corpus.jsonl*")), list(self.flags)
        folder.mkdir(parents=True, exist_ok=True)
        if self.trains_on_pairs:
            data = read_beir(self.collection, "dev")
            pairs = folder / "pairs.jsonl"
            with open(pairs, "w", encoding="utf-8") as file:
                for query, gains in zip(data.queries, data.relevant, strict=True):
                    for number in gains:
                        if number < len(data.passages):
                            file.write(json.dumps({"query": query, "passage": data.passages[number]}) + "\n")
            flags += ["--train-pairs", str(pairs)]
        dest = folder / "refined"
        words = (corpus, "--title-field", "title", "--from", self.encoder, "--dest", dest, "--seed", seed, *flags)
        clear("refine", *words, "--overwrite")  # a run that was interrupted before its scores were kept is repeated
        shutil.copy(dest / "report.json", folder.with_name(f"{folder.name}.json"))
        return dest / "checkpoint" / "model.pt"

    def about(self) -> dict[str, Any]:
        """The flags, and whether pairs are trained on."""
        return {"flags": self.flags, "trains_on_pairs": self.trains_on_pairs}


ROWS = {
    "refine": Refine(),
    "refine --recipe auto": Refine(("--recipe", "auto")),
    "refine --recipe cloze": Refine(("--recipe", "cloze")),
    "refine --train-pairs": Refine(trains_on_pairs=True),
}


def main() -> None:
    """Refine, score, print."""
    arguments = parse()
    encoder = import_encoder(arguments.encoder, arguments.output)
    measured: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for seeds in [arguments.seeds[: n + 1] for n in range(len(arguments.seeds))]:
        for collection in arguments.data:
            rows: dict[str, Any] = {UNTOUCHED: Untrained(encoder / "model.pt")}
            for name in arguments.rows:
                rows[name] = replace(ROWS[name], encoder=encoder, collection=collection.resolve())
            measured[collection.name] = measure_collection(arguments, collection, rows, seeds, encoder)
    for name, runs in measured.items():
        found = scores_of(runs)
        print(f"\n{name}\n\n{table(found)}\n\n{difference_table(found, UNTOUCHED)}\n{seconds(runs)}")


def measure_collection(
    arguments: argparse.Namespace, collection: Path, rows: dict[str, Any], seeds: list[int], encoder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Train and score every row with every seed."""
    # a query is no copy of the document with the same id, which retrieval would leave out
    judged = replace(read_beir(collection, "test"), identical=())
    start = CachedEncoder(SentenceEncoder.from_pretrained(encoder / "model.pt", encoder))

    def score(checkpoint: Path, row: Any, seed: int) -> dict[str, float]:
        is_untouched = row is rows[UNTOUCHED]
        scored = (
            start if is_untouched else CachedEncoder(SentenceEncoder.from_pretrained(checkpoint, checkpoint.parent))
        )
        values = values_of(scored, judged)
        sts = evaluate_sts(scored, read_sts_tasks(arguments.sts, ("STS-B",)))["STS-B"].spearman
        low, high = interval(values, values_of(start, judged))
        return means(values) | {"STS-B": sts} | ({} if is_untouched else {"low": low, "high": high})

    name = collection.name
    return measure(rows, seeds, arguments.output / "runs" / name, score, arguments.results, f"judged-{name}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--encoder", type=Path, required=True, help="Hugging Face or sentence-transformers folder")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders in BEIR's layout")
    parser.add_argument("--sts", type=Path, required=True, help="folder with STSBenchmark")
    parser.add_argument("--rows", nargs="+", default=["refine"], choices=list(ROWS), help="default: refine")
    return parse_with_results(parser)


if __name__ == "__main__":
    main()
