r"""Measures DeCLUTR at small scale, from scratch or an imported encoder: MLM alone, contrastive alone, both, and one anchor.

    python examples/declutr/measure.py --corpora corpora --senteval SentEval/data --output scratch --seeds 1 2 3
    python examples/declutr/measure.py --corpora corpora --senteval SentEval/data --output imported --seeds 1 2 3 \
        --imported minilm --updates 100 --documents 8

Trains on 20 Newsgroups, movie reviews and WikiText-2. Prints the table of RESULTS.md: SentEval accuracies of logistic
regression, and the Spearman correlation on STS-B's test set.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measuring import (
    DOCUMENTS,
    PROJECT,
    TINY,
    UNTRAINED,
    Recipe,
    make_parser,
    measure,
    parse_with_results,
    prepare_documents,
    schedule,
    sizes,
)
from result_tables import scores_of, seconds, table

from fairseq_clear import SentenceEncoder
from fairseq_clear.evaluation.senteval import evaluate_senteval, read_tasks
from fairseq_clear.evaluation.senteval_data import PRESETS

CONFIG = PROJECT / "examples/declutr/config/small.yaml"
VIEWS = "task.views='span:anchors={},positives=2,min=16,max=64'"
RECIPES = {
    "before": Recipe(CONFIG, (VIEWS.format(2), *UNTRAINED)),
    "MLM alone": Recipe(CONFIG, ("+ablation=mlm_only", VIEWS.format(2))),
    "contrastive alone": Recipe(CONFIG, ("+ablation=contrastive_only", VIEWS.format(2))),
    "both": Recipe(CONFIG, (VIEWS.format(2),)),
    "both, A = 1": Recipe(CONFIG, (VIEWS.format(1),)),
}
TASKS = ("MR", "CR", "TREC", "MRPC", "STS-B")


def main() -> None:
    """Prepare the data, train, score, print."""
    arguments = parse()
    tokenizer = ("--tokenizer-dir", arguments.imported) if arguments.imported else ()
    data = prepare_documents(arguments.corpora, list(DOCUMENTS), arguments.output, tokenizer)
    rate = arguments.lr or (5e-5 if arguments.imported else 1e-3)
    overrides = [
        *(f"task.data={data.resolve()}", "task.tokens_per_sample=66", "model.encode_chunk_size=0"),
        *(f"dataset.batch_size={arguments.documents}", *schedule(arguments.updates, rate)),
    ]
    if arguments.imported:
        encoder = arguments.imported / "model.pt"
        overrides += [f"checkpoint.finetune_from_model={encoder.resolve()}", *sizes(encoder)]
    else:
        overrides += ["checkpoint.finetune_from_model=null", *TINY]

    def score(checkpoint: Path, recipe: Recipe, seed: int) -> dict[str, float]:
        encoder = SentenceEncoder.from_pretrained(checkpoint, data)
        result = evaluate_senteval(encoder, read_tasks(arguments.senteval, TASKS), classifiers=PRESETS["logistic"][0])
        return result.means()

    chosen = {name: RECIPES[name].with_overrides(overrides) for name in arguments.recipes}
    start = "imported" if arguments.imported else "scratch"
    found = measure(chosen, arguments.seeds, arguments.output / "runs", score, arguments.results, start)
    print(table(scores_of(found)))
    print(seconds(found))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--corpora", type=Path, required=True, help="folder of 20 Newsgroups, movie reviews and WikiText-2 (.xz)"
    )
    parser.add_argument("--senteval", type=Path, required=True, help="folder of SentEval's data, with STSBenchmark")
    parser.add_argument(
        "--imported", type=Path, help="folder that fairseq-clear import made (default: 2 layers x 128 from scratch)"
    )
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES), help="default: all")
    parser.add_argument("--updates", type=int, default=300, help="updates of each run")
    parser.add_argument("--documents", type=int, default=16, help="documents of an update")
    parser.add_argument(
        "--lr", type=float, help="learning rate (default: the paper's 5e-5 with --imported, 1e-3 from scratch)"
    )
    return parse_with_results(parser)


if __name__ == "__main__":
    main()
