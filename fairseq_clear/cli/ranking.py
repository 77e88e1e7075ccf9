"""``fairseq-clear retrieval`` scores encoders by the passages that they find; ``mine`` finds hard negatives with an encoder."""

import sys
from dataclasses import dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fairseq_clear.cli.evaluation import Evaluation
from fairseq_clear.cli.flags import PAIRS, Command, OneEncoderFlags, PairFlags
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation import retrieval_data
from fairseq_clear.evaluation.reports import Report, Row
from fairseq_clear.evaluation.retrieval_data import BASELINES, MiningSettings, RetrievalData
from fairseq_clear.files import check_fields, corpus_files, hash_files, versions, write_json
from fairseq_clear.output_folder import check_destination, output_folder, scratch_folder
from fairseq_clear.preparation.corpus_reading import TextSource
from fairseq_clear.preparation.prepare_settings import DocumentSettings
from fairseq_clear.settings import flag_name, setting
from fairseq_clear.shared_work import join_workers, remove_vectors

if TYPE_CHECKING:
    from fairseq_clear.evaluation.encoders import CachedEncoder

MINE_JSON = "mine.json"


@dataclass(kw_only=True)
class Retrieval(Evaluation, PairFlags, DocumentSettings):
    """Find the passages that answer a query by the cosine of their vectors: MRR, nDCG, MAP and recall, x100.

    The search is exact. After each score stands half of its 95 % interval, from a bootstrap over queries; the report has both
    ends, the rank of each query's passage, and what is found for three queries. Without labelled data, --documents makes the
    queries from text of your own: the first sentence of a document must find the remaining text. Texts that the encoder was
    trained on give scores that are too high.
    """

    SHARES_WORK: ClassVar[bool] = True
    EXAMPLES: ClassVar[str] = """
fairseq-clear retrieval --documents held-out.txt --baselines tfidf bm25 --encoder a.pt b.pt --data-bin data-bin
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
    split: str | None = setting("with --data, the qrels to use (default: test)", None, group=PAIRS)
    count: int | None = setting(
        "with --documents, use at most N of them, drawn with --seed (default: all)", None, least=2, group=PAIRS
    )
    baselines: tuple[str, ...] = setting("also score word weights fitted on the passages", (), choices=tuple(BASELINES))
    seed: int = setting("seed of the bootstrap, of --count and of the queries that the report shows", 0, least=0)
    rows: list[Row] = field(default_factory=list)  # the baselines, set by ``read``

    def resumed_output(self) -> Path | None:
        """The report, if one is written."""
        return self.output

    def read(self) -> RetrievalData:
        """Read the data and score the baselines, which need no encoder."""
        from fairseq_clear.distributed import choose_device
        from fairseq_clear.evaluation.retrieval import score_baseline

        choose_device(self.device)
        kinds = dict.fromkeys(("count", *(item.name for item in fields(DocumentSettings))), "documents")
        for item in fields(self):
            kind, value = (kinds | {"split": "data"}).get(item.name), getattr(self, item.name)
            if kind and not getattr(self, kind) and value != item.default:
                raise UserError(f"{flag_name(item)} {value}: belongs to --{kind}; leave it out for other data")
        if self.data is not None:
            data = retrieval_data.read_beir(self.data, self.split or "test")
        elif self.pairs is not None:
            data = retrieval_data.read_pairs_file(self.pairs)
        elif self.documents:
            files = corpus_files(self.documents)
            # as prepare reads them, with an empty row between documents
            rows = groupby(TextSource(files, self).rows(), key=bool)
            documents = ([row[0] for row in document] for is_text, document in rows if is_text)
            hashes = hash_files([file.path for file in files])
            data = retrieval_data.data_of_documents(documents, hashes, count=self.count, seed=self.seed)
        else:
            raise UserError("no data: give --data, --pairs or --documents")
        self.rows = [score_baseline(name, data, seed=self.seed) for name in self.baselines]
        return data

    def score(self, encoder: "CachedEncoder", data: RetrievalData) -> Row:
        """Search the passages for every query, and compute the metrics and their intervals."""
        from fairseq_clear.distributed import choose_device
        from fairseq_clear.evaluation.retrieval import evaluate_retrieval

        prefixes = {"query_prefix": self.query_prefix, "passage_prefix": self.passage_prefix}
        row = evaluate_retrieval(encoder, data, **prefixes, seed=self.seed, device=choose_device(self.device))
        if "prompts" in encoder.notes and join_workers().rank == 0:
            print(f"# {encoder.name}: prompts {encoder.notes['prompts']}", file=sys.stderr)
        return row

    def report(self, data: RetrievalData, rows: list[Row]) -> Report:
        """Make the report; the baselines are its first rows, its columns the metrics."""
        from fairseq_clear.evaluation.retrieval import RESAMPLES

        protocol = {"similarity": "cosine", **data.describe()}
        prefixes = {"query prefix": self.query_prefix, "passage prefix": self.passage_prefix}
        protocol |= {name: repr(text) for name, text in prefixes.items() if text}
        protocol["\u00b1"] = f"half of the 95 % interval, bootstrap over queries, {RESAMPLES:,} resamples"
        hashes = {data.name: data.hashes}
        return Report("retrieval", protocol, hashes, list(rows[0].scores), self.rows + rows, (self.seed,))


@dataclass(kw_only=True)
class Mine(Command, MiningSettings, PairFlags, OneEncoderFlags):
    """Find hard negatives for pairs of a query and a passage: other texts whose vectors are near the query's.

    A pair's negatives come from the passages of all pairs and from --candidates. Texts equal to the query or to one of its
    passages are left out. The search is exact.

    DEST gets query.txt, positive.txt, negative1.txt and so on, with a line for each pair that has enough negatives, and
    mine.json with settings, counts, mean similarities and hashes. If the command fails, DEST is not written; a rerun goes on
    with the finished blocks of vectors in DEST.partial. To train on the negatives, give the files to prepare --paraphrase, and
    fairseq-train --hard-negatives.
    """

    SHARES_WORK: ClassVar[bool] = True
    EXAMPLES: ClassVar[str] = """
fairseq-clear mine --pairs pairs.tsv --encoder checkpoint_best.pt --data-bin data-bin --margin 0.05 --dest mined
fairseq-clear mine --pairs pairs.tsv --candidates corpus.txt --encoder bert/model.pt --data-bin bert-bin \\
    --first-rank 11 --last-rank 60 --negatives 3 --dest mined"""

    candidates: tuple[Path, ...] = setting(
        "further texts to choose negatives from: .txt with a text per line, or .jsonl, also .gz and .xz, or folders",
        (),
        group=PAIRS,
    )
    text_field: str = setting("name of the field of a .jsonl record of --candidates", "text", group=PAIRS)
    dest: Path = setting("folder to create; must not exist yet", metavar="DEST")
    overwrite: bool = setting("replace DEST if it is a folder of this command", False)

    def run(self) -> int:
        """Mine the negatives, write the folder, and print the counts."""
        from fairseq_clear.distributed import choose_device
        from fairseq_clear.evaluation.embedding_files import read_sentences
        from fairseq_clear.evaluation.mining import mine_negatives  # takes seconds to import
        from fairseq_clear.text.sentence_folders import DOCUMENT, QUERY, prompt_for

        self.check()
        check_destination(self.dest, self.overwrite, (MINE_JSON,))
        device = choose_device(self.device)
        if self.pairs is None:
            raise UserError("no pairs: give --pairs")
        pairs, files = retrieval_data.read_pairs(self.pairs), corpus_files(self.candidates)
        check_fields(files, {"--text-field": self.text_field})
        hashes = hash_files([self.pairs, *(file.path for file in files)])
        further = [text for file in files for text in read_sentences(file.path, self.text_field)]
        encoder = self.load()
        prefixes = {
            "query_prefix": prompt_for(encoder, QUERY, self.query_prefix),
            "passage_prefix": prompt_for(encoder, DOCUMENT, self.passage_prefix),
        }
        # The other workers encode the same blocks in turn, and write nothing.
        is_first = join_workers().rank == 0
        if is_first and any(prefixes.values()):
            print(f"# prompts of queries and of passages: {', '.join(map(repr, prefixes.values()))}", file=sys.stderr)
        opened = output_folder(self.dest, self.overwrite, (MINE_JSON,)) if is_first else scratch_folder()
        with opened as folder:
            mined = mine_negatives(encoder, pairs, further, self, **prefixes, device=device)
            described = mined.describe()
            report = {
                "settings": {item.name: getattr(self, item.name) for item in fields(MiningSettings)} | prefixes,
                "encoder": encoder.describe(),
                **described,
                "inputs": hashes,
                "versions": versions(),
                "files": mined.write(folder),
            }
            write_json(folder / MINE_JSON, report, flag="--dest")
        if is_first:
            remove_vectors(self.dest)
        print(f"{'; '.join(f'{what} {count:,}' for what, count in described['counts'].items())}; wrote {self.dest}")
        return 0

    def resumed_output(self) -> Path:
        """The folder to create."""
        return self.dest
