"""``fairseq-clear retrieval``: scores encoders by the passages that they find for queries."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fairseq_clear.cli.evaluation import Evaluation
from fairseq_clear.cli.flags import PAIRS, PairFlags
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.reports import Report, Row
from fairseq_clear.evaluation.retrieval_data import (
    BASELINES,
    BM25_B,
    BM25_K1,
    RetrievalData,
    data_of_documents,
    data_of_pairs,
    pairs_of_documents,
    pairs_of_titles,
    read_beir,
)
from fairseq_clear.files import CorpusFile, corpus_files, hash_file
from fairseq_clear.preparation.corpus_reading import TextSource
from fairseq_clear.preparation.prepare_settings import DocumentSettings
from fairseq_clear.settings import setting

if TYPE_CHECKING:
    from fairseq_clear.evaluation.encoders import CachedEncoder
    from fairseq_clear.evaluation.retrieval import RetrievalResult

WEIGHTS = {"tfidf": {"baseline": "TF-IDF", "sublinear": True}, "bm25": {"baseline": "BM25", "k1": BM25_K1, "b": BM25_B}}


@dataclass(kw_only=True)
class Retrieval(Evaluation, PairFlags, DocumentSettings):
    """Find the passages that answer a query by the cosine of their vectors: MRR, nDCG, MAP and recall, x100.

    The search is exact. After each score stands half of its 95 % interval, from a bootstrap over queries; the report has both
    ends. Without labelled data, --documents makes the queries from text of your own: the first sentence of a document must
    find the rest of it, or the title of a record its text. Texts that the encoder was trained on give scores that are too high.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear retrieval --documents held-out.txt --baselines tfidf bm25 --encoder a.pt b.pt --data-bin data-bin
fairseq-clear retrieval --documents news.jsonl --title-field title --count 1000 --encoder my_package.encoders:make
fairseq-clear retrieval --data beir/scifact --encoder checkpoint_best.pt --data-bin data-bin --output retrieval.json
fairseq-clear retrieval --pairs pairs.tsv --query-prefix "query: " --encoder checkpoint_best.pt --data-bin data-bin"""

    data: Path | None = setting(
        "folder in BEIR's layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv",
        None,
        metavar="DIR",
        exclusive=PAIRS,
        group=PAIRS,
    )
    documents: tuple[Path, ...] = setting(
        "documents to make pairs of, as prepare reads them: .txt with a sentence per line and blank lines between documents, "
        ".jsonl, also .gz and .xz, or folders",
        (),
        exclusive=PAIRS,
        group=PAIRS,
    )
    split: str = setting("with --data, the qrels to use", "test", group=PAIRS)
    title_field: str | None = setting(
        "with --documents, the field of a .jsonl record that is the query; the passage is --text-field",
        None,
        group=PAIRS,
    )
    count: int | None = setting(
        "with --documents, use at most N of them, drawn with --seed (default: all)", None, least=2, group=PAIRS
    )
    baselines: tuple[str, ...] = setting(
        "also score word weights, fitted on the passages: tfidf, bm25", (), choices=tuple(BASELINES)
    )
    seed: int = setting("seed of the bootstrap and of --count", 0, least=0)
    rows: list[Row] = field(default_factory=list)  # the baselines, set by ``read``

    def read(self) -> RetrievalData:
        """Read the data and score the baselines, which need no encoder."""
        from fairseq_clear.evaluation.retrieval import score_baseline
        from fairseq_clear.evaluation.sentence_encoder import choose_device

        choose_device(self.device)
        data = self.read_data()
        for name in self.baselines:
            result = score_baseline(name, data, seed=self.seed)
            self.rows.append(make_row(BASELINES[name], result, WEIGHTS[name]))
        return data

    def read_data(self) -> RetrievalData:
        """Read the queries and passages of the flag that is given."""
        pairs = self.read_pairs()
        if self.count is not None and not self.documents:
            raise UserError(f"--count {self.count}: chooses among --documents; leave it out for other data")
        if self.title_field is not None and not self.documents:
            raise UserError(f"--title-field {self.title_field}: belongs to --documents; leave it out for other data")
        if self.data is not None:
            return read_beir(self.data, self.split)
        if pairs is not None:
            return data_of_pairs(*pairs)
        if not self.documents:
            raise UserError("no data: give --data, --pairs, --queries with --passages, or --documents")
        files = corpus_files(self.documents)
        hashes = {file.path.name: hash_file(file.path) for file in files}
        if self.title_field is None:
            found = pairs_of_documents(self.sentences(files))
        else:
            found = pairs_of_titles(files, self.title_field, self.text_field)
        return data_of_documents("documents", found, hashes, count=self.count, seed=self.seed)

    def sentences(self, files: list[CorpusFile]) -> Iterator[Sequence[str]]:
        """Yield the sentences of each document, as ``prepare`` reads them."""
        for is_text, rows in groupby(TextSource(files, self).rows(), key=bool):
            if is_text:
                yield [row[0] for row in rows]

    def score(self, encoder: "CachedEncoder", data: RetrievalData) -> Row:
        """Search the passages for every query, and compute the metrics and their intervals."""
        from fairseq_clear.evaluation.retrieval import score_retrieval
        from fairseq_clear.evaluation.sentence_encoder import choose_device

        prefixes = {"query_prefix": self.query_prefix, "passage_prefix": self.passage_prefix}
        result = score_retrieval(encoder, data, **prefixes, seed=self.seed, device=choose_device(self.device))
        return make_row(encoder.name, result, encoder.describe())

    def report(self, data: RetrievalData, rows: list[Row]) -> Report:
        """Make the report; the baselines are its first rows, its columns the metrics."""
        from fairseq_clear.evaluation.retrieval import RESAMPLES

        protocol = {"similarity": "cosine", **data.describe()}
        prefixes = {"query prefix": repr(self.query_prefix), "passage prefix": repr(self.passage_prefix)}
        protocol |= {name: text for name, text in prefixes.items() if text != "''"}
        protocol["\u00b1"] = f"half of the 95 % interval, bootstrap over queries, {RESAMPLES:,} resamples"
        rows = [*self.rows, *rows]
        return Report("retrieval", protocol, {data.name: data.hashes}, list(rows[0].scores), rows, (self.seed,))


def make_row(label: str, result: "RetrievalResult", description: dict[str, Any]) -> Row:
    """Make the row of a result; half the width of each interval follows the score in the table."""
    halves = {name: (high - low) / 2 for name, (low, high) in result.intervals.items()}
    return Row(label, result.scores, description, halves, {"intervals": result.to_dict()["intervals"]})
