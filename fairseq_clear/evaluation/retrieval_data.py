"""Reads queries, passages and their relevance; makes pairs of documents; weights terms by TF-IDF and BM25.

Importable without torch, like the settings of the mining of hard negatives at the end.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sts_data import read_columns
from fairseq_clear.files import COMPRESSIONS, CorpusFile, hash_files, read_lines, read_whole_lines, record_texts
from fairseq_clear.libraries import import_library
from fairseq_clear.settings import check_settings, setting

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Pair = tuple[str, str]  # a query and its passage
BM25_K1, BM25_B = 1.2, 0.75  # Lucene's defaults
BASELINES = {
    "tfidf": {"baseline": "TF-IDF", "sublinear": True},
    "bm25": {"baseline": "BM25", "k1": BM25_K1, "b": BM25_B},
}  # value of --baselines -> description in reports


@dataclass(frozen=True)
class RetrievalData:
    """Queries, passages, and which passages answer which query."""

    name: str  # of the data in reports
    queries: Sequence[str]  # Q
    passages: Sequence[str]  # P
    # For each query, number of a passage -> its gain, 1 or more. Numbers from P on are passages that were judged but are not in
    # the corpus: they count as relevant and are never found.
    relevant: Sequence[Mapping[int, int]]
    # for each query, the number of the passage with the query's id (BEIR) or text (pairs), or -1; it does not count as found
    identical: Sequence[int] = ()
    hashes: Mapping[str, str] = field(default_factory=dict)  # file -> SHA-256

    def describe(self) -> dict[str, Any]:
        """Counts for a report."""
        counts = {"queries": len(self.queries), "passages": len(self.passages)}
        missing = {number for gains in self.relevant for number in gains if number >= len(self.passages)}
        own = sum(number in gains for number, gains in zip(self.identical, self.relevant, strict=False))
        notes = {
            "relevant passages that the corpus lacks": len(missing),
            "relevant passages with the id of their query, which BEIR never counts as found": own,
        }
        return counts | {note: number for note, number in notes.items() if number}


def read_beir(folder: Path, split: str = "test") -> RetrievalData:
    """Read a folder in BEIR's layout: corpus.jsonl, queries.jsonl (also .gz, .xz) and qrels/SPLIT.tsv.

    A passage is its title and its text, joined by a space. Queries without a line in the qrels are left out, as in BEIR.

    Raises:
        UserError: a missing file, a malformed line, an id that occurs twice, or an unknown query, with file and line.
    """
    corpus, questions = (_find_packed(folder, name) for name in ("corpus.jsonl", "queries.jsonl"))
    qrels = folder / "qrels" / f"{split}.tsv"
    if not qrels.is_file():
        splits = ", ".join(sorted(path.stem for path in qrels.parent.glob("*.tsv"))) or "none"
        raise UserError(f"--data {folder}: has no qrels/{split}.tsv; its splits are {splits}; choose one with --split")
    passages, queries = _read_texts(corpus, ("title", "text")), _read_texts(questions, ("text",))
    number_of = {name: number for number, name in enumerate(passages)}
    judged: dict[str, dict[int, int]] = {}
    for number, line in read_lines(qrels):
        if not line.strip() or (number == 1 and line.startswith("query-id")):
            continue
        if line.count("\t") > 2:
            raise UserError(f"{qrels}:{number}: has more than 3 columns; leave out the second one of TREC's qrels")
        query, passage, score = read_columns(qrels, line, number, (0, 1, 2))
        if query not in queries:
            raise UserError(f"{qrels}:{number}: the query {query!r} is not in {questions}; is a file cut off?")
        if not re.fullmatch(r"[+-]?\d+", score):
            raise UserError(f"{qrels}:{number}: the score {score!r} is not a whole number")
        place = number_of.setdefault(passage, len(number_of))  # from len(passages) on if the corpus lacks it
        gains = judged.setdefault(query, {})
        gains.pop(place, None)  # the last judgement counts, as in BEIR
        if int(score) > 0:
            gains[place] = int(score)
    if not judged:
        raise UserError(f"{qrels}: judges no query")
    return RetrievalData(
        f"{folder.name} {split}",
        [queries[name] for name in judged],
        list(passages.values()),
        list(judged.values()),
        [number_of[name] if name in passages else -1 for name in judged],
        hash_files([corpus, questions, qrels]),
    )


def _find_packed(folder: Path, name: str) -> Path:
    """Find the file ``name``, or one with .gz or .xz."""
    for suffix in ("", *COMPRESSIONS):
        if (path := folder / f"{name}{suffix}").is_file():
            return path
    what = f"has no {name}, nor one with .gz or .xz" if folder.is_dir() else "no such folder"
    raise UserError(f"--data {folder}: {what}; give a folder in BEIR's layout")


def _read_texts(path: Path, names: Sequence[str]) -> dict[str, str]:
    """Id -> the text of these fields of each record of a file of BEIR, joined by a space."""
    hint = "BEIR's corpus.jsonl has _id, title and text, its queries.jsonl _id and text"
    texts: dict[str, str] = {}
    for number, line in read_whole_lines(path):
        if line.strip():
            name, *parts = record_texts(line, ("_id", *names), path, number, optional=("title",), hint=hint)
            if name in texts:
                raise UserError(f"{path}:{number}: the id {name!r} occurs twice; remove one of the two records")
            texts[name] = " ".join(parts).strip()
    if not texts:
        raise UserError(f"{path}: holds no record")
    return texts


def read_pairs_file(path: Path) -> RetrievalData:
    """Read the data of a file of pairs, see ``read_pairs`` and ``data_of_pairs``."""
    return data_of_pairs(path.name, read_pairs(path), hash_files([path]))


def read_pairs(path: Path) -> list[Pair]:
    """Read pairs: lines of query, tab, passage; or .jsonl records with ``query`` and ``passage``; also .gz and .xz.

    Raises:
        UserError: a missing or empty file, or a malformed line, with file and line.
    """
    return [(query, passage) for query, passage, *_ in read_training_pairs(path, most=2)]


def read_training_pairs(path: Path, most: int | None = None) -> list[tuple[str, ...]]:
    """Read pairs as ``read_pairs`` does, each followed by its hard negatives: further columns, or the list ``negatives``.

    ``most`` is the largest number of texts of a pair.

    Raises:
        UserError: as ``read_pairs``.
    """
    is_jsonl, hint, rows = CorpusFile(path).is_jsonl, "a record has a query and a passage", []
    for number, line in read_whole_lines(path):
        if not line.strip():
            continue
        texts: Sequence[Any] = line.split("\t")
        if is_jsonl:
            texts = record_texts(line, ("query", "passage"), path, number, hint=hint)
            negatives = None if most else json.loads(line).get("negatives")
            if not isinstance(negatives, list | None):
                raise UserError(f"{path}:{number}: negatives is {type(negatives).__name__}, not a list of texts")
            if any(re.search("[\ud800-\udfff]", str(text)) for text in negatives or ()):
                raise UserError(f"{path}:{number}: an unpaired surrogate (\\ud800 to \\udfff) in 'negatives'; drop it")
            texts = [*texts, *(negatives or [])]
        texts = [text.replace("\0", " ") if isinstance(text, str) else text for text in texts]  # as prepare does
        if not 2 <= len(texts) <= (most or len(texts)) or not all(
            isinstance(text, str) and text.strip() for text in texts
        ):
            kinds = "a query and a passage" if most else "a query, a passage and, if any, hard negatives"
            raise UserError(f"{path}:{number}: not {kinds}, each with text; a .tsv has a tab between two texts")
        rows.append(tuple(text.strip() for text in texts))
    if rows and [text.lower() for text in rows[0][:2]] == ["query", "passage"]:
        raise UserError(f"{path}:1: is a header; leave it out, a file of pairs has none")
    if not rows:
        raise UserError(f"{path}: holds no pair")
    return rows


def data_of_documents(
    documents: Iterable[Sequence[str]], hashes: Mapping[str, str], *, count: int | None = None, seed: int = 0
) -> RetrievalData:
    """Make a pair of the first sentence of each document and the rest, without texts that occurred in a pair before.

    Args:
        count: maximum number of pairs, drawn with ``seed`` and kept in their order (default: all).

    Raises:
        UserError: fewer than two pairs.
    """
    import numpy as np

    seen: set[str] = set()
    unique = []
    for first, *rest in documents:
        if rest:
            pair = first, " ".join(rest)
            if seen.isdisjoint(pair):
                unique.append(pair)
            seen.update(pair)
    if len(unique) < 2:
        raise UserError(
            f"--documents: {len(unique)} of them have a sentence and more text after it, and retrieval needs two; "
            "--split-sentences divides a document of one line"
        )
    if count is not None and count < len(unique):
        chosen = np.random.default_rng(seed).choice(len(unique), count, replace=False)
        unique = [unique[number] for number in sorted(chosen.tolist())]
    return data_of_pairs("documents", unique, hashes)


def data_of_pairs(name: str, pairs: Sequence[Pair], hashes: Mapping[str, str]) -> RetrievalData:
    """Make the data of pairs. A repeated text is one query, with several relevant passages, or one passage.

    A passage with the text of a query does not count as found by it, unless it is one of its own passages.

    Raises:
        UserError: fewer than two different passages.
    """
    queries: dict[str, dict[int, int]] = {}
    passages: dict[str, int] = {}
    for query, passage in pairs:
        queries.setdefault(query, {})[passages.setdefault(passage, len(passages))] = 1
    if len(passages) < 2:
        raise UserError(f"{name}: {len(passages)} different passages; retrieval needs two or more to choose from")
    own = [passages.get(query, -1) for query in queries]
    own = [-1 if number in gains else number for number, gains in zip(own, queries.values(), strict=True)]
    return RetrievalData(name, list(queries), list(passages), list(queries.values()), own, hashes)


def term_weights(baseline: str, queries: Sequence[str], passages: Sequence[str]) -> tuple["csr_matrix", "csr_matrix"]:
    """Weight the words of texts; the score of a passage is the inner product of its row with the query's.

    Words have two or more characters and are in lower case.

    Args:
        baseline: ``tfidf``, scikit-learn's with logarithmic term frequency, fitted on the passages; or ``bm25``, Robertson's
            with Lucene's idf, log(1 + (P - n + 0.5) / (n + 0.5)) for a word of n passages, k1 = 1.2 and b = 0.75.

    Returns:
        Weights of Q queries (Q, V) and P passages (P, V), float64.

    Raises:
        UserError: scikit-learn is not installed, or the passages have no word.
    """
    import numpy as np

    text = import_library("sklearn.feature_extraction.text", "eval")
    is_tfidf = baseline == "tfidf"
    vectorizer = text.TfidfVectorizer(sublinear_tf=True) if is_tfidf else text.CountVectorizer(dtype=np.float64)
    try:
        weights = vectorizer.fit_transform(passages).tocsr()
    except ValueError as error:  # an empty vocabulary
        raise UserError(f"--baselines {baseline}: the passages have no words ({error})") from None
    if baseline == "bm25":
        lengths = np.asarray(weights.sum(axis=1)).ravel()  # (P,)
        found = np.bincount(weights.indices, minlength=weights.shape[1])  # (V,) passages of each word
        rarity = np.log1p((len(passages) - found + 0.5) / (found + 0.5))
        saturation = BM25_K1 * (1 - BM25_B + BM25_B * lengths / lengths.mean())
        counts = weights.data
        each = np.repeat(saturation, np.diff(weights.indptr))  # the saturation of each entry's passage
        weights.data = rarity[weights.indices] * counts * (BM25_K1 + 1) / (counts + each)
    return vectorizer.transform(queries).tocsr(), weights


@dataclass(kw_only=True)
class MiningSettings:
    """Which candidates become the hard negatives of a pair.

    Candidates are ranked by the cosine of their vector with the query's. The query's own text and its positives have no rank.
    """

    GROUP: ClassVar[str] = "choice of the negatives"

    negatives: int = setting(
        "number of hard negatives of a pair; a pair for which fewer are found is left out", 1, least=1
    )
    first_rank: int = setting(
        "choose among the candidates from this rank on; rank 1 is the nearest to the query. The nearest ones often are "
        "positives that nobody labelled",
        1,
        least=1,
    )
    last_rank: int = setting("choose among the candidates up to this rank", 100, least=1)
    margin: float | None = setting(
        "choose only candidates whose cosine with the query is more than X below the positive's (default: any)",
        None,
        least=-2,
        most=2,
    )

    def check(self) -> None:
        """Raise UserError for values that are out of range or contradict each other."""
        check_settings(self)
        if self.last_rank - self.first_rank + 1 < self.negatives:
            what = f"--first-rank {self.first_rank} --last-rank {self.last_rank}: fewer ranks than --negatives {self.negatives}"
            raise UserError(f"{what}; give a higher --last-rank")
