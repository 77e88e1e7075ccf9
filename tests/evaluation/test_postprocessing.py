"""Whitening against its definition, and with word vectors from the command line."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.postprocessing import Whitening

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
            *("--sts-file", str(tmp_path / "pairs.tsv"), "--encoder", str(tmp_path / "words.vec")),
            *("--output", str(report)),
        ]
        assert main(["sts", *flags, *extra]) == 0
        scores.append(json.loads(report.read_text()))
    assert "whitened" in capsys.readouterr().out
    assert scores[0]["rows"][0]["scores"] != scores[1]["rows"][0]["scores"]
    stated = scores[1]["rows"][0]["encoder"]["whitening"]
    assert (stated["sentences"], stated["dimensions"], len(stated["sha256"])) == (12, 3, 64)
    assert "whitening" not in scores[0]["rows"][0]["encoder"]
    assert main(["sts", *flags[:4], "--pooling", "mean"]) == 2
