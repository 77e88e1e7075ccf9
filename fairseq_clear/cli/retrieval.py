"""``fairseq-clear retrieval`` scores encoders by the passages that they find; ``mine`` finds hard negatives with an encoder."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from fairseq_clear.cli.evaluation import Evaluation
from fairseq_clear.cli.flags import PAIRS, Command, OneEncoderFlags, PairFlags
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.reports import Report, Row
from fairseq_clear.evaluation.retrieval_data import (
    BASELINES,
    BM25_B,
    BM25_K1,
    MiningSettings,
    RetrievalData,
    data_of_documents,
    data_of_pairs,
    pairs_of_documents,
    pairs_of_titles,
    read_beir,
)
from fairseq_clear.files import CorpusFile, corpus_files, hash_files, versions, write_json
from fairseq_clear.output_folder import check_destination, output_folder
from fairseq_clear.preparation.corpus_reading import TextSource
from fairseq_clear.preparation.prepare_settings import DocumentSettings
from fairseq_clear.settings import setting
from fairseq_clear.shared_work import join_workers

if TYPE_CHECKING:
    from fairseq_clear.evaluation.encoders import CachedEncoder
    from fairseq_clear.evaluation.mining import MinedNegatives

MINE_JSON = "mine.json"
WEIGHTS = {"tfidf": {"baseline": "TF-IDF", "sublinear": True}, "bm25": {"baseline": "BM25", "k1": BM25_K1, "b": BM25_B}}


@dataclass(kw_only=True)
class Retrieval(Evaluation, PairFlags, DocumentSettings):
    """Find the passages that answer a query by the cosine of their vectors: MRR, nDCG, MAP and recall, x100.

    The search is exact. After each score stands half of its 95 % interval, from a bootstrap over queries; the report has both
    ends. Without labelled data, --documents makes the queries from text of your own: the first sentence of a document must
    find the rest of it, or the title of a record its text. Texts that the encoder was trained on give scores that are too high.
    """

    SHARES_WORK: ClassVar[bool] = True
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
    show: int = setting(
        "print N queries, drawn with --seed, with the nearest passages that each encoder finds", 0, least=0
    )
    seed: int = setting("seed of the bootstrap, of --count and of --show", 0, least=0)
    rows: list[Row] = field(default_factory=list)  # the baselines, set by ``read``
    shown: list[int] = field(default_factory=list)  # numbers of the queries of --show, set by ``read``

    def read(self) -> RetrievalData:
        """Read the data and score the baselines, which need no encoder."""
        import numpy as np

        from fairseq_clear.distributed import choose_device
        from fairseq_clear.evaluation.retrieval import make_row, score_baseline

        choose_device(self.device)
        data = self.read_data()
        drawn = np.random.default_rng(self.seed).permutation(len(data.queries))[: self.show]
        self.shown = sorted(drawn.tolist())
        for name in self.baselines:
            result = score_baseline(name, data, seed=self.seed)
            self.rows.append(make_row(BASELINES[name], result, data, WEIGHTS[name], self.shown))
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
            raise UserError("no data: give --data, --pairs or --documents")
        files = corpus_files(self.documents)
        hashes = hash_files([file.path for file in files])
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
        from fairseq_clear.distributed import choose_device
        from fairseq_clear.evaluation.retrieval import evaluate_retrieval, make_row

        prefixes = {"query_prefix": self.query_prefix, "passage_prefix": self.passage_prefix}
        result = evaluate_retrieval(encoder, data, **prefixes, seed=self.seed, device=choose_device(self.device))
        return make_row(encoder.name, result, data, encoder.describe(), self.shown)

    def report(self, data: RetrievalData, rows: list[Row]) -> Report:
        """Make the report; the baselines are its first rows, its columns the metrics."""
        from fairseq_clear.evaluation.retrieval import RESAMPLES

        protocol = {"similarity": "cosine", **data.describe()}
        prefixes = {"query prefix": repr(self.query_prefix), "passage prefix": repr(self.passage_prefix)}
        protocol |= {name: text for name, text in prefixes.items() if text != "''"}
        protocol["\u00b1"] = f"half of the 95 % interval, bootstrap over queries, {RESAMPLES:,} resamples"
        self.rows += rows
        rows = self.rows
        return Report("retrieval", protocol, {data.name: data.hashes}, list(rows[0].scores), rows, (self.seed,))

    def show_examples(self) -> None:
        """Print the queries of --show."""
        for number in range(len(self.shown)):
            examples = [(row.label, row.details["examples"][number]) for row in self.rows]
            print(f"\nquery: {shorten(examples[0][1]['query'])}")
            for label, example in examples:
                place = f"has rank {example['rank']}" if example["rank"] else "is not among the first 100"
                print(f"  {label}: the right passage {place}")
                marks = ["*" if is_right else " " for is_right in example["right"]]
                for mark, text in zip(marks, example["passages"], strict=True):
                    print(f"   {mark} {shorten(text)}")


def shorten(text: str, width: int = 110) -> str:
    """The text on one line, cut to ``width`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}\u2026"


@dataclass(kw_only=True)
class Mine(Command, MiningSettings, PairFlags, OneEncoderFlags):
    """Find hard negatives for pairs of a query and a passage: other texts whose vectors are near the query's.

    A pair's negatives come from the passages of all pairs and from --candidates. Texts equal to the query or to one of its
    passages are left out. The search is exact.

    DEST gets query.txt, positive.txt, negative1.txt and so on, with a line for each pair that has enough negatives, and
    mine.json with settings, counts and hashes. The commands that follow, for training, are printed. If the command fails, DEST
    is not written.
    """

    SHARES_WORK: ClassVar[bool] = True
    EXAMPLES: ClassVar[str] = """
fairseq-clear mine --pairs pairs.tsv --encoder checkpoint_best.pt --data-bin data-bin --margin 0.05 --dest mined
fairseq-clear mine --pairs pairs.tsv --candidates corpus.txt --encoder bert/model.pt --data-bin bert-bin \\
    --first-rank 11 --last-rank 60 --negatives 3 --sample random --dest mined"""

    candidates: tuple[Path, ...] = setting(
        "further texts to choose negatives from: .txt with a text per line, or .jsonl, also .gz and .xz, or folders",
        (),
        group=PAIRS,
    )
    text_field: str = setting("name of the field of a .jsonl record of --candidates", "text", group=PAIRS)
    dest: Path = setting("folder to create; must not exist yet", metavar="DEST")
    overwrite: bool = setting("replace DEST if it is a folder of this command", False)

    def run(self) -> int:
        """Mine the negatives, write the folder, and print counts and the next commands."""
        from fairseq_clear.distributed import choose_device
        from fairseq_clear.evaluation.embedding_files import read_sentences
        from fairseq_clear.evaluation.mining import mine_negatives  # takes seconds to import

        self.check()
        check_destination(self.dest, self.overwrite)
        device = choose_device(self.device)
        given = self.read_pairs()
        if given is None:
            raise UserError("no pairs: give --pairs")
        source, pairs, _ = given
        if not pairs:
            raise UserError(f"{source}: holds no pair")
        files = corpus_files(self.candidates)
        hashes = hash_files([Path(str(self.pairs)), *(file.path for file in files)])
        further = [text for file in files for text in read_sentences(file.path, self.text_field)]
        cached = self.load()
        # The other workers encode the same blocks in turn, and write nothing.
        is_first = join_workers().rank == 0
        opened = output_folder(self.dest, self.overwrite) if is_first else TemporaryDirectory(prefix="fairseq-clear-")
        with opened as name:
            folder = Path(name)
            mined = mine_negatives(
                cached, pairs, further, self, device=device,
                query_prefix=self.query_prefix, passage_prefix=self.passage_prefix,
            )  # fmt: skip
            report = self.describe(mined, cached, hashes) | {"files": mined.write(folder)}
            write_json(folder / MINE_JSON, report, flag="--dest")
        print(table(report))
        print(self.next_commands())
        return 0

    def describe(self, mined: "MinedNegatives", encoder: "CachedEncoder", hashes: dict[str, str]) -> dict[str, Any]:
        """Content of ``mine.json``, as JSON values."""
        settings = {item.name: getattr(self, item.name) for item in fields(MiningSettings)}
        settings |= {"query_prefix": self.query_prefix, "passage_prefix": self.passage_prefix}
        counts = {"pairs": len(mined.pairs), "kept": len(mined.kept), "candidates": len(mined.texts)}
        means = {
            "positive": float(mined.positive_similarities.mean()),
            "negatives": mined.similarities.mean(axis=0).tolist(),
        }
        return {
            "settings": settings,
            "encoder": encoder.describe(),
            "counts": counts,
            "mean_similarity": means,
            "mean_rank": mined.ranks.mean(axis=0).tolist(),
            "inputs": hashes,
            "versions": versions(),
        }

    def next_commands(self) -> str:
        """The commands that train on the negatives, with the choices that are left in angle brackets."""
        names = ["positive", *(f"negative{number + 1}" for number in range(self.negatives))]
        files = " ".join(f"{name}={shlex.quote(f'{self.dest / name}.txt')}" for name in names)
        query = shlex.quote(str(self.dest / "query.txt"))
        return (
            "next:\n"
            f"  fairseq-clear prepare {query} --paraphrase {files} --document-start . --dest <data-bin> <tokenizer>\n"
            "  fairseq-train <data-bin> --user-dir fairseq_clear --task clear_lm --criterion clear_nt_xent "
            f"--views paraphrase:original,positive --hard-negatives {','.join(names[1:])} --sample-break-mode eos ..."
        )


def table(report: Mapping[str, Any]) -> str:
    """Counts, and the mean similarity and rank of each column."""
    counts, similarity = report["counts"], report["mean_similarity"]
    dropped = counts["pairs"] - counts["kept"]
    lines = [
        f"pairs {counts['pairs']:,}; kept {counts['kept']:,}; dropped {dropped:,}, with fewer than "
        f"{report['settings']['negatives']} negatives; candidates {counts['candidates']:,}",
        f"{'':<12}{'mean similarity':>16}{'mean rank':>11}",
        f"{'positive':<12}{similarity['positive']:>16.3f}",
    ]
    for number, (cosine, rank) in enumerate(zip(similarity["negatives"], report["mean_rank"], strict=True), 1):
        lines.append(f"{f'negative{number}':<12}{cosine:>16.3f}{rank:>11.1f}")
    return "\n".join(lines)
