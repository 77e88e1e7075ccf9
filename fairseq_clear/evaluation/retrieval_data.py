"""Reads queries, passages and their relevance; makes pairs of documents; weights terms by TF-IDF and BM25.

Importable without torch, like the settings of the mining of hard negatives at the end.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sts_data import find_packed, read_columns
from fairseq_clear.files import CorpusFile, hash_file, read_lines, read_whole_lines, record_texts
from fairseq_clear.libraries import import_library
from fairseq_clear.settings import check_settings, setting

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

__all__ = [
    "MiningSettings",
    "RetrievalData",
    "read_beir",
    "read_pairs",
    "read_pairs_file",
    "term_weights",
]

Pair = tuple[str, str]  # a query and its passage
BASELINES = {"tfidf": "TF-IDF", "bm25": "BM25"}  # value of --baselines -> its row of the table
BM25_K1, BM25_B = 1.2, 0.75  # Lucene's defaults
_BEIR_HINT = "BEIR's corpus.jsonl has _id, title and text, its queries.jsonl _id and text"


@dataclass(frozen=True)
class RetrievalData:
    """Queries, passages, and which passages answer which query.

    Attributes:
        name: of the data in reports.
        queries: Q texts.
        passages: P texts.
        relevant: for each query, number of a passage -> its gain, 1 or more. Numbers from P on are passages that were judged
            but are not in the corpus: they count as relevant and are never found.
        identical: for each query, the number of the passage with the query's id, or -1. BEIR does not count it as found.
        hashes: file -> SHA-256.
        documents: number of documents from which the pairs were made; 0 for other data.
    """

    name: str
    queries: Sequence[str]
    passages: Sequence[str]
    relevant: Sequence[Mapping[int, int]]
    identical: Sequence[int] = ()
    hashes: Mapping[str, str] = field(default_factory=dict)
    documents: int = 0

    def describe(self) -> dict[str, Any]:
        """Counts for a report."""
        judged = {number for gains in self.relevant for number in gains}
        missing = sum(number >= len(self.passages) for number in judged)
        counts = {"queries": len(self.queries), "passages": len(self.passages)}
        others = {"relevant passages that the corpus lacks": missing, "documents": self.documents}
        return counts | {name: count for name, count in others.items() if count}


def read_beir(folder: Path, split: str = "test") -> RetrievalData:
    """Read a folder in BEIR's layout: corpus.jsonl, queries.jsonl (also .gz, .xz) and qrels/SPLIT.tsv.

    A passage is its title and its text, joined by a space. Queries without a line in the qrels are left out, as in BEIR.

    Raises:
        UserError: a missing file, a malformed line, an id that occurs twice, or an unknown query, with file and line.
    """
    hint = "give a folder in BEIR's layout"
    corpus, questions = (find_packed(name, folder, hint=hint) for name in ("corpus.jsonl", "queries.jsonl"))
    qrels = folder / "qrels" / f"{split}.tsv"
    if not qrels.is_file():
        splits = ", ".join(sorted(path.stem for path in qrels.parent.glob("*.tsv"))) or "none"
        raise UserError(f"--data {folder}: has no qrels/{split}.tsv; its splits are {splits}; choose one with --split")
    passages = {name: f"{title} {text}".strip() for name, title, text in _records(corpus, ("_id", "title", "text"))}
    queries = {texts[0]: texts[1] for texts in _records(questions, ("_id", "text"))}
    number_of = {name: number for number, name in enumerate(passages)}
    judged: dict[str, dict[int, int]] = {}
    for number, query, passage, gain in _judgements(qrels):
        if query not in queries:
            raise UserError(
                f"{qrels}:{number}: the query {query!r} is not in {questions}; is one of the files cut off?"
            )
        gains = judged.setdefault(query, {})
        place = number_of.setdefault(passage, len(number_of))  # from len(passages) on if the corpus lacks it
        if gain > 0:
            gains[place] = gain
    if not judged:
        raise UserError(f"{qrels}: judges no query")
    return RetrievalData(
        f"{folder.name} {split}",
        [queries[name] for name in judged],
        list(passages.values()),
        list(judged.values()),
        [number_of[name] if name in passages else -1 for name in judged],
        {path.name: hash_file(path) for path in (corpus, questions, qrels)},
    )


def _records(path: Path, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    seen: set[str] = set()
    for number, line in read_whole_lines(path):
        if line.strip():
            texts = record_texts(line, names, path, number, optional=("title",), hint=_BEIR_HINT)
            if texts[0] in seen:
                raise UserError(f"{path}:{number}: the id {texts[0]!r} occurs twice; remove one of the two records")
            seen.add(texts[0])
            yield texts
    if not seen:
        raise UserError(f"{path}: holds no record")


def _judgements(path: Path) -> Iterator[tuple[int, str, str, int]]:
    """Yield (line number, query, passage, gain) of each line, without BEIR's header."""
    for number, line in read_lines(path):
        if not line.strip() or (number == 1 and line.startswith("query-id")):
            continue
        query, passage, score = read_columns(path, line, number, (0, 1, 2))
        try:
            yield number, query, passage, int(score)
        except ValueError:
            raise UserError(f"{path}:{number}: the score {score!r} is not a whole number") from None


def read_pairs_file(path: Path) -> RetrievalData:
    """Read the data of a file of pairs, see ``read_pairs`` and ``data_of_pairs``."""
    return data_of_pairs(path.name, read_pairs(path), {path.name: hash_file(path)})


def read_pairs(path: Path) -> list[Pair]:
    """Read pairs: lines of query, tab, passage; or .jsonl records with ``query`` and ``passage``; also .gz and .xz.

    Raises:
        UserError: a missing file, or a malformed line, with file and line.
    """
    is_jsonl = CorpusFile(path).is_jsonl
    hint = "a record has a query and a passage"
    pairs = []
    for number, line in read_whole_lines(path):
        if not line.strip():
            continue
        if is_jsonl:
            query, passage = record_texts(line, ("query", "passage"), path, number, hint=hint)
        elif line.count("\t") == 1:
            query, passage = line.split("\t")
        else:
            columns = line.count("\t") + 1
            raise UserError(f"{path}:{number}: {columns} tab-separated columns, not the two of a query and its passage")
        pairs.append(_pair(query, passage, f"{path}:{number}"))
    return pairs


def _pair(query: str, passage: str, where: str) -> Pair:
    query, passage = query.strip(), passage.strip()
    if not query or not passage:
        raise UserError(f"{where}: the {'passage' if query else 'query'} is empty; fill it in or remove the pair")
    return query, passage


def pairs_of_documents(documents: Iterable[Sequence[str]]) -> Iterator[Pair | None]:
    """Yield the first sentence of each document with the rest; None for a document of one sentence."""
    for sentences in documents:
        yield (sentences[0], " ".join(sentences[1:])) if len(sentences) > 1 else None


def pairs_of_titles(files: Iterable[CorpusFile], title_field: str, text_field: str) -> Iterator[Pair | None]:
    """Yield the title of each record of .jsonl files with its text; None for a record in which one of them is empty.

    Raises:
        UserError: a file that is not .jsonl, or a malformed line, with file and line.
    """
    hint = "name the right ones with --title-field and --text-field"
    for file in files:
        if not file.is_jsonl:
            raise UserError(f"{file.path}: --title-field reads .jsonl files; leave the flag out for plain text")
        for number, line in read_lines(file):
            if line.strip():
                title, text = record_texts(line, (title_field, text_field), file.path, number, hint=hint)
                yield (" ".join(title.split()), " ".join(text.split())) if title.strip() and text.strip() else None


def data_of_documents(
    name: str, pairs: Iterable[Pair | None], hashes: Mapping[str, str], *, count: int | None = None, seed: int = 0
) -> RetrievalData:
    """Make the data of the pairs of documents, without a pair whose query or passage occurred before.

    Args:
        pairs: one for each document, None for a document that has none.
        count: maximum number of pairs, drawn with ``seed`` and kept in their order (default: all).

    Raises:
        UserError: fewer than two pairs.
    """
    seen: set[str] = set()
    unique, documents = [], 0
    for documents, pair in enumerate(pairs, 1):  # noqa: B007 (the number of documents)
        if pair is not None:
            if seen.isdisjoint(pair):
                unique.append(pair)
            seen.update(pair)
    if len(unique) < 2:
        raise UserError(
            f"{name}: {len(unique)} of {documents} documents give a query and a passage, and retrieval needs two; a document "
            "of one line gives none without --split-sentences or --title-field"
        )
    if count is not None and count < len(unique):
        import numpy as np

        chosen = np.random.default_rng(seed).choice(len(unique), count, replace=False)
        unique = [unique[number] for number in sorted(chosen.tolist())]
    return replace(data_of_pairs(name, unique, hashes), documents=documents)


def data_of_pairs(name: str, pairs: Sequence[Pair], hashes: Mapping[str, str]) -> RetrievalData:
    """Make the data of pairs. A repeated text is one query, with several relevant passages, or one passage.

    Raises:
        UserError: fewer than two different passages.
    """
    queries: dict[str, dict[int, int]] = {}
    passages: dict[str, int] = {}
    for query, passage in pairs:
        queries.setdefault(query, {})[passages.setdefault(passage, len(passages))] = 1
    if len(passages) < 2:
        raise UserError(f"{name}: {len(passages)} different passages; retrieval needs two or more to choose from")
    return RetrievalData(name, list(queries), list(passages), list(queries.values()), (), hashes)


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
        "choose only candidates whose cosine with the query is below the positive's less X (default: any)",
        None,
    )
    max_similarity: float | None = setting(
        "choose only candidates whose cosine with the query is X or less (default: any)", None
    )
    sample: str = setting(
        "top chooses the nearest of these candidates, random any of them, with --seed", "top", choices=("top", "random")
    )
    seed: int = setting("seed of --sample random", 0, least=0)

    def check(self) -> None:
        """Raise UserError for values that are out of range or contradict each other."""
        check_settings(self)
        ranks = self.last_rank - self.first_rank + 1
        if ranks < self.negatives:
            raise UserError(
                f"--first-rank {self.first_rank} --last-rank {self.last_rank}: {max(ranks, 0)} ranks, fewer than --negatives "
                f"{self.negatives}; give a higher --last-rank"
            )
        for flag, value, bound in (("--margin", self.margin, 2), ("--max-similarity", self.max_similarity, 1)):
            if value is not None and not (math.isfinite(value) and -bound <= value <= bound):
                raise UserError(f"{flag} {value:g}: must be between -{bound} and {bound}, in units of the cosine")
