"""The two tasks of the demonstration: predict the package of a docstring, and find its body by its first sentence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from corpus import Document
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

CANDIDATES = 1_000


@dataclass(frozen=True)
class Scores:
    """The scores of one encoder, between 0 and 1.

    Attributes:
        topics, topics_error: accuracy and its standard error sqrt(p (1 - p) / n).
        mrr, first: mean reciprocal rank of the right body by cosine, and the share of queries for which it is first.
        centred_mrr, centred_first: the same after the mean vector is subtracted. The cosines of anisotropic vectors are all
            similar, so without centring retrieval favours less anisotropic encoders.
        anisotropy: mean cosine of random pairs of bodies.
    """

    topics: float
    topics_error: float
    mrr: float
    first: float
    centred_mrr: float
    centred_first: float
    anisotropy: float


@dataclass
class Questions:
    """The documents of both tasks, the same for every encoder."""

    topic_train: list[Document]
    topic_test: list[Document]
    retrieval: list[Document]

    def texts(self) -> list[str]:
        """All texts to embed, in one list: training texts of topics, test texts of topics, first sentences, bodies."""
        labelled = [document.text for document in (*self.topic_train, *self.topic_test)]
        return labelled + [d.first_sentence for d in self.retrieval] + [d.body for d in self.retrieval]


def choose_candidates(held_out: Sequence[Document], seed: int, count: int = CANDIDATES) -> list[Document]:
    """Draw documents with unique first sentences and bodies of at least 15 words."""
    seen: dict[str, Document] = {}
    for document in held_out:
        if len(document.first_sentence.split()) >= 5 and len(document.body.split()) >= 15:
            seen.setdefault(document.first_sentence.lower(), document)
    order = np.random.default_rng(seed).permutation(len(seen))
    unique = list(seen.values())
    return [unique[i] for i in order[:count]]


def score(vectors: np.ndarray | sparse.csr_matrix, questions: Questions) -> Scores:
    """Score the vectors of ``questions.texts()`` on both tasks."""
    sizes = [len(questions.topic_train), len(questions.topic_test), len(questions.retrieval), len(questions.retrieval)]
    train, test, sentences, bodies = _split(vectors, sizes)
    accuracy, error = _topics(train, test, questions)
    centre = bodies.mean(axis=0)
    plain = _ranks(sentences, bodies)
    centred = _ranks(np.asarray(sentences - centre), np.asarray(bodies - centre))
    return Scores(
        accuracy,
        error,
        float((1 / plain).mean()),
        float((plain == 1).mean()),
        float((1 / centred).mean()),
        float((centred == 1).mean()),
        _anisotropy(bodies),
    )


def tfidf_vectors(questions: Questions, corpus: Sequence[str]) -> sparse.csr_matrix:
    """TF-IDF vectors over words, fitted on the training text of the encoders."""
    return term_vectors(corpus, questions.texts())


def term_vectors(corpus: Sequence[str], texts: Sequence[str]) -> sparse.csr_matrix:
    """TF-IDF vectors over words, fitted on the corpus."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2)
    vectorizer.fit(corpus)
    return vectorizer.transform(texts)


def _split(vectors: np.ndarray | sparse.csr_matrix, sizes: Sequence[int]) -> list:
    ends = np.cumsum(sizes)
    return [vectors[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _topics(train: np.ndarray, test: np.ndarray, questions: Questions) -> tuple[float, float]:
    labels = [[document.package for document in some] for some in (questions.topic_train, questions.topic_test)]
    accuracy = classify_topics(train, test, *labels)
    return accuracy, math.sqrt(accuracy * (1 - accuracy) / test.shape[0])


def classify_topics(
    train: np.ndarray, test: np.ndarray, train_labels: Sequence[str], test_labels: Sequence[str]
) -> float:
    """Accuracy, 0 to 1, of a logistic regression on dense or sparse vectors."""
    scaler = StandardScaler(with_mean=not sparse.issparse(train), with_std=not sparse.issparse(train))
    classifier = make_pipeline(scaler, LogisticRegression(max_iter=2_000, C=10.0 if sparse.issparse(train) else 0.1))
    classifier.fit(train, train_labels)
    return float(classifier.score(test, test_labels))


def _unit(vectors: np.ndarray | sparse.csr_matrix) -> np.ndarray | sparse.csr_matrix:
    if sparse.issparse(vectors):
        return vectors  # the rows of TfidfVectorizer have length 1 already
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _ranks(queries: np.ndarray | sparse.csr_matrix, candidates: np.ndarray | sparse.csr_matrix) -> np.ndarray:
    """Rank of candidate i for query i; 1 is the nearest, and equal candidates share the mean rank."""
    cosine = _unit(queries) @ _unit(candidates).T
    cosine = cosine.toarray() if sparse.issparse(cosine) else cosine
    own = np.diag(cosine)[:, None]
    return 1 + (cosine > own).sum(axis=1) + ((cosine == own).sum(axis=1) - 1) / 2


def _anisotropy(vectors: np.ndarray | sparse.csr_matrix) -> float:
    total = np.asarray(_unit(vectors).sum(axis=0)).ravel()
    rows = vectors.shape[0]
    return float((total @ total - rows) / (rows * (rows - 1)))
