"""``fairseq-clear refine``: trains a pretrained encoder on text of one's own."""

import argparse
from dataclasses import dataclass
from typing import ClassVar, Self

from fairseq_clear.cli.flags import Command, read_flags
from fairseq_clear.refining.refine_settings import RefineSettings


@dataclass(kw_only=True)
class Refine(Command, RefineSettings):
    """Train a pretrained encoder on text or pairs of your own, and show whether it got better.

    Give text, --train-pairs or both. Text needs no labels: the encoder learns to find a text by its title, or a sentence by its
    context. Pairs are queries and the passages that answer them.

    FOLDER becomes a folder for sentence-transformers, with the checkpoint in FOLDER/checkpoint and the comparison in report.md,
    report.json and report.png. The command of every step is printed before it runs. Finished steps are kept in FOLDER.partial:
    after an interruption, the same command resumes there.

    Part of the documents is held out. The untouched encoder, the refined one, TF-IDF and BM25 are compared by how well the
    title or first sentence of a held-out document finds the text after it, among many documents. Other queries of this kind
    choose what is exported: a merge with half of the refined and half of the untouched weights, unless the best share is better
    by more than two standard errors. If the untouched encoder scores higher by more than one standard error, it is exported.

    If you have queries and the passages that answer them, compare by those: --pairs. Text without documents of several
    sentences allows no comparison without --pairs or --sts; this is said before the training.

    Flags of fairseq-train may follow --.
    """

    EXAMPLES: ClassVar[str] = r"""
fairseq-clear refine notes/ --from all-MiniLM-L6-v2 --dest refined
fairseq-clear refine articles.jsonl.gz --title-field title --from all-MiniLM-L6-v2 --dest refined --recipe auto --updates 600
fairseq-clear refine --train-pairs pairs.tsv --negatives 1 --from all-MiniLM-L6-v2 --dest refined
fairseq-clear refine corpus.txt --from bert-base-uncased --dest refined --updates 2000 --sts SentEval/data \
    -- --bf16 --regularizer-weight 0.1"""

    @classmethod
    def from_flags(cls, args: argparse.Namespace) -> Self:
        """Make the command from parsed flags and what follows ``--``."""
        return read_flags(cls, args, training_flags=args.rest)

    def run(self) -> int:
        """Refine the encoder, and print the comparison."""
        from fairseq_clear.refining.refining import run_refine  # fairseq takes seconds to import

        run_refine(self)
        return 0
