"""Whitening against its definition; word vectors against means by hand; both from the command line."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import Whitening
from fairseq_clear.evaluation.named_encoders import WordVectors

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(200, 6)) @ RNG.normal(size=(6, 6)) + 5


def test_whitened_vectors_have_mean_0_and_covariance_1() -> None:
    whitened = Whitening.fit(ROWS)(ROWS)
    np.testing.assert_allclose(whitened.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(np.cov(whitened, rowvar=False), np.eye(6), atol=1e-4)
    assert np.abs(np.cov(ROWS, rowvar=False) - np.eye(6)).max() > 1


def test_fewer_dimensions_are_those_of_most_variance() -> None:
    full, reduced = Whitening.fit(ROWS), Whitening.fit(ROWS, 2)
    np.testing.assert_allclose(reduced(ROWS), full(ROWS)[:, :2], atol=1e-5)
    centred = ROWS - ROWS.mean(axis=0)
    variance = np.linalg.svd(centred, compute_uv=False)[0] ** 2 / (len(ROWS) - 1)
    first = full.kernel[:, 0] * np.sqrt(variance)
    assert np.linalg.norm(first) == pytest.approx(1)
    assert (centred @ first).var(ddof=1) == pytest.approx(variance)


def test_directions_without_variance_are_left_out() -> None:
    flat = np.concatenate([ROWS, ROWS[:, :1] * 2, np.ones((200, 1))], axis=1)
    assert Whitening.fit(flat)(flat).shape == (200, 6)
    with pytest.raises(UserError, match="variance in 6"):
        Whitening.fit(flat, 7)
    for hopeless in (ROWS[:1], np.ones((5, 3))):
        with pytest.raises(UserError):
            Whitening.fit(hopeless)


FILE = "3 2\nfilm 1 0\ngood 0 1\nNew York 5 5\n"


@pytest.mark.parametrize("packed", [False, True])
def test_texts_are_means_of_their_words(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("small.vec.gz" if packed else "small.vec")
    path.write_bytes(gzip.compress(FILE.encode()) if packed else FILE.encode())
    encoder = WordVectors(path)
    found = encoder.encode(["Good film, film!", "unheard of", ""])
    np.testing.assert_allclose(found, [[2 / 3, 1 / 3], [0, 0], [0, 0]], rtol=1e-6)
    assert encoder.unknown == 4  # two words, a comma and an exclamation mark
    assert encoder.describe()["words"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("film 1 0\ngood 1\n", ":2: not a word and 2 numbers"),
        ("film 1 x\n", ":1: malformed number"),
        ("", "no word vector"),
    ],
)
def test_malformed_files_are_named_with_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.vec").write_text(text)
    with pytest.raises(UserError, match=message):
        WordVectors(tmp_path / "bad.vec")
    with pytest.raises(UserError, match="no such file"):
        WordVectors(tmp_path / "none.vec")


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"w{number}" for number in range(12)]
    lines = [f"{word} {' '.join(f'{x:.3f}' for x in RNG.normal(size=4))}" for word in words]
    (tmp_path / "words.vec").write_text("\n".join(lines) + "\n")
    (tmp_path / "pairs.tsv").write_text("".join(f"{a} {b}\t{b} w3\t{n}\n" for n, (a, b) in enumerate(pairwise(words))))
    (tmp_path / "text.txt").write_text("\n".join(words) + "\n")
    scores = []
    for extra in ((), ("--whitening", str(tmp_path / "text.txt"), "--whitening-dimensions", "3")):
        report = tmp_path / f"report{len(scores)}.json"
        flags = [
            "--sts-file",
            str(tmp_path / "pairs.tsv"),
            "--encoder",
            str(tmp_path / "words.vec"),
            "--output",
            str(report),
        ]
        assert main(["sts", *flags, *extra]) == 0
        scores.append(json.loads(report.read_text()))
    assert "whitened" in capsys.readouterr().out
    assert scores[0]["rows"][0]["scores"] != scores[1]["rows"][0]["scores"]
    stated = scores[1]["rows"][0]["encoder"]["whitening"]
    assert (stated["sentences"], stated["dimensions"], len(stated["sha256"])) == (12, 3, 64)
    assert "whitening" not in scores[0]["rows"][0]["encoder"]
    assert main(["sts", *flags[:4], "--pooling", "mean"]) == 2
