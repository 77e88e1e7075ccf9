r"""Measures slice, neighbor, neighbor-slice and MLM alone at small scale: Longformers from scratch, topics and sentiment.

    python examples/views/measure.py --corpora corpora --output measured --seeds 1 2 3

Trains Longformers of 2 layers x 128 with window 128 on texts of up to 512 tokens of 20 Newsgroups and movie reviews. Prints the
table of RESULTS.md: accuracy and macro-F1 for the group of a post, without headers, footers and quotes, and accuracy for the
sentiment of a review in 5 folds.
"""

import argparse
import json
import lzma
import sys
from pathlib import Path

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measuring import (
    PROJECT,
    TINY,
    UNTRAINED,
    Recipe,
    make_parser,
    measure,
    parse_with_results,
    prepare_documents,
    read_newsgroups,
    schedule,
)
from result_tables import scores_of, seconds, table

from fairseq_clear import SentenceEncoder
from fairseq_clear.evaluation.labelled_text import evaluate_labelled

CONFIG = PROJECT / "examples/views/config/neighbor_slice.yaml"
RECIPES = {
    "untrained": Recipe(CONFIG, UNTRAINED),
    "MLM alone": Recipe(CONFIG, ("+ablation=mlm_only",)),
    "slice": Recipe(CONFIG, ("+ablation=slice",)),
    "neighbor": Recipe(CONFIG, ("+ablation=neighbor",)),
    "neighbor-slice": Recipe(CONFIG),
}


def main() -> None:
    """Prepare the data, train, score, print."""
    arguments = parse()
    data = prepare_documents(arguments.corpora, ("20news", "movie_reviews"), arguments.output)
    with lzma.open(arguments.corpora / "movie_reviews.jsonl.xz", "rt", encoding="utf-8") as lines:
        reviews = [json.loads(line) for line in lines]
    overrides = [
        *(f"task.data={data.resolve()}", "checkpoint.finetune_from_model=null", *TINY),
        *("task.tokens_per_sample=512", "model.max_positions=512", "model.attention_window=128"),
        *schedule(arguments.updates, arguments.lr),
    ]

    def score(checkpoint: Path, recipe: Recipe, seed: int) -> dict[str, float]:
        encoder = SentenceEncoder.from_pretrained(checkpoint, data)
        (topics,) = evaluate_labelled(encoder, read_newsgroups(arguments.corpora), strength=1)
        vectors = encoder.encode([review["text"] for review in reviews])
        classifier = LogisticRegression(max_iter=1000)
        signs = cross_val_score(classifier, vectors, [review["label"] for review in reviews], cv=5)
        return {"topics": topics.accuracy, "macro-F1": topics.macro_f1, "sentiment": 100 * float(signs.mean())}

    chosen = {name: RECIPES[name].with_overrides(overrides) for name in arguments.recipes}
    found = measure(chosen, arguments.seeds, arguments.output / "runs", score, arguments.results)
    print(table(scores_of(found)))
    print(seconds(found))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--corpora", type=Path, required=True, help="folder of 20 Newsgroups and movie reviews (.xz)")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES), help="default: all")
    parser.add_argument("--updates", type=int, default=200, help="updates of each run")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate")
    return parse_with_results(parser)


if __name__ == "__main__":
    main()
