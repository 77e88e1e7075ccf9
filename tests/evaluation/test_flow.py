"""BERT-flow against the Jacobian of autograd and a known Gaussian, its file, command and flags; whitening."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from fairseq_clear.cli.flags import EncoderFlags
from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.postprocessing import Flow, Whitening, fit_flow, load_flow, save_flow
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import rejected, sentences

WIDTH = 5
RNG = np.random.default_rng(0)
MIXING = RNG.normal(size=(WIDTH, WIDTH)) / 2
MEAN = np.arange(WIDTH) - 1.0
ROWS = (RNG.normal(size=(4000, WIDTH)) @ MIXING.T + MEAN).astype(np.float32)


def random_flow(dimension: int, steps: int = 3) -> Flow:
    """A flow in float64 whose every parameter differs from its first value."""
    torch.manual_seed(dimension)
    flow = Flow(dimension, steps, width=7).double()
    flow.initialise(torch.randn(50, dimension, dtype=torch.float64) * 3 + 1, seed=2)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    return flow


@pytest.mark.parametrize("dimension", [2, 5, 8])
def test_the_determinant_is_that_of_the_jacobian(dimension: int) -> None:
    flow, x = random_flow(dimension), torch.randn(6, dimension, dtype=torch.float64)
    _, found = flow(x)
    for row, value in zip(x, found, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda one: flow(one.unsqueeze(0))[0].squeeze(0), row)
        assert value.item() == pytest.approx(torch.linalg.slogdet(jacobian).logabsdet.item(), abs=1e-9)
    assert found.std() > 1e-3, "it depends on the vector"


@pytest.mark.slow
def test_the_density_integrates_to_1() -> None:
    flow = random_flow(2, steps=2)
    grid = torch.linspace(-60, 60, 601, dtype=torch.float64)
    points = torch.cartesian_prod(grid, grid)
    density = flow.log_likelihood(points).exp().sum() * (grid[1] - grid[0]) ** 2
    assert density.item() == pytest.approx(1, abs=0.02)


def distance_to_normal(rows: np.ndarray) -> float:
    """Frobenius norm of the difference of mean and second moments to those of N(0, I)."""
    moments = rows.T @ rows / len(rows) - np.eye(rows.shape[1])
    return float(math.hypot(np.linalg.norm(rows.mean(axis=0)), np.linalg.norm(moments)))


def gaussian_log_likelihood(rows: np.ndarray) -> float:
    """Mean log density under the Gaussian that the rows were drawn from: the best that any model can reach."""
    covariance = MIXING @ MIXING.T
    centred = rows.astype(np.float64) - MEAN
    distance = np.einsum("nd,de,ne->n", centred, np.linalg.inv(covariance), centred)
    constant = WIDTH * math.log(2 * math.pi) + np.linalg.slogdet(covariance)[1]
    return float(-0.5 * (distance + constant).mean())


@pytest.mark.slow
def test_fitting_raises_the_likelihood_towards_that_of_the_gaussian() -> None:
    train, held_out = ROWS[:2000], torch.from_numpy(ROWS[3000:])
    best = gaussian_log_likelihood(ROWS[3000:])
    likelihoods, distances = [], []
    for epochs in (0, 1, 6):
        flow = fit_flow(train, steps=4, epochs=epochs, seed=3)
        likelihoods.append(flow.log_likelihood(held_out).mean().item())
        distances.append(distance_to_normal(flow.transform(ROWS[3000:])))
    assert likelihoods[0] < likelihoods[1] < likelihoods[2] < best + 0.02
    assert likelihoods[2] > best - 0.1
    assert distance_to_normal((ROWS[3000:] - ROWS.mean(axis=0)) / ROWS.std(axis=0)) > distances[1] > distances[2]
    assert distances[2] < 0.35, "a thousand vectors of N(0, I) have about 0.2"


def test_a_new_flow_has_vectors_of_unit_variance() -> None:
    flow = Flow(WIDTH, steps=1)
    flow.initialise(torch.from_numpy(ROWS), seed=1)
    variance, mean = torch.var_mean(flow.norms[0](torch.from_numpy(ROWS))[0], dim=0, correction=0)
    torch.testing.assert_close(mean, torch.zeros(WIDTH), atol=1e-5, rtol=0)
    torch.testing.assert_close(variance, torch.ones(WIDTH), atol=1e-3, rtol=0)


def test_the_seed_determines_the_flow() -> None:
    one, same, other = (fit_flow(ROWS[:200], seed=seed).transform(ROWS) for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


def test_what_cannot_be_fitted() -> None:
    for rows, rate, said in (
        (ROWS[:1], 1e-3, "two or more sentences"),
        (ROWS[:, :1], 1e-3, "two or more dimensions"),
        (ROWS, 1e4, "smaller --lr"),  # the likelihood becomes NaN
        (ROWS[:30], 1e4, "smaller --lr"),  # after the only update
    ):
        with pytest.raises(UserError, match=said):
            fit_flow(rows, learning_rate=rate)


@pytest.mark.slow
def test_a_dimension_without_variance() -> None:
    flat = np.concatenate([ROWS[:500], np.ones((500, 1), np.float32)], axis=1)
    assert np.isfinite(fit_flow(flat).transform(flat)).all()


# The file


def test_saved_and_loaded_gives_the_same_bits(tmp_path: Path) -> None:
    flow, path = fit_flow(ROWS[:300], steps=2), tmp_path / "flow.npz"
    save_flow(path, flow, {"pooling": "cls"})
    loaded = load_flow(path)
    assert np.array_equal(loaded.transform(ROWS), flow.transform(ROWS))
    assert loaded.origin == {"pooling": "cls"} and len(loaded.norms) == 2
    first = path.read_bytes()
    save_flow(path, loaded, loaded.origin)
    assert path.read_bytes() == first


@pytest.mark.parametrize("name", ["empty", "cut", "flipped", "text", "new", "missing"])
def test_a_damaged_file_is_one_line(name: str, tmp_path: Path) -> None:
    path, said = tmp_path / "flow.npz", r"not a complete flow \(\w+.*\); fit it again$"
    save_flow(path, Flow(4, 2), {})
    content = bytearray(path.read_bytes())
    half = len(content) // 2
    content[half] ^= 0xFF
    path.write_bytes({"empty": b"", "cut": path.read_bytes()[:half], "text": b"not a flow"}.get(name, content))
    if name == "new":
        np.savez(path, description=np.array(json.dumps({"format": 2})))
        said = "format 2 instead of 1"
    elif name == "missing":
        path.unlink()
        said = "no such file; make it with fairseq-clear flow"
    with pytest.raises(UserError, match=f"--flow .*: .*{said}"):
        load_flow(path)


# The command, and the flags that take its file


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with word vectors, a text and scored pairs."""
    folder = tmp_path_factory.mktemp("words")
    lines = [f"w{n} {' '.join(f'{x:.3f}' for x in row)}\n" for n, row in enumerate(ROWS[:30])]
    (folder / "words.vec").write_text("".join(lines))
    (folder / "text.txt").write_text("".join(f"w{n}\n\n" for n in range(30)))
    (folder / "pairs.tsv").write_text("".join(f"w{n} w{n + 1}\tw{n + 1} w3\t{n % 5}\n" for n in range(29)))
    return folder


def by_hand(transform: Callable[[np.ndarray], np.ndarray]) -> float:
    """Spearman of the cosines of what ``transform`` makes of the means of two words."""
    rows = ROWS[:30].round(3)
    first, second = (rows[:-1] + rows[1:]) / 2, (rows[1:] + rows[3]) / 2
    z = [transform(side.astype(np.float32)) for side in (first, second)]
    cosines = (z[0] * z[1]).sum(axis=1) / np.linalg.norm(z[0], axis=1) / np.linalg.norm(z[1], axis=1)
    return float(100 * spearmanr(cosines, [n % 5 for n in range(29)]).statistic)


def test_sts_uses_the_flow_and_whitens(words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, encoder = str(words / "text.txt"), ("--encoder", str(words / "words.vec"))
    flow, report = str(tmp_path / "flow.npz"), tmp_path / "report.json"
    assert main(["flow", text, *encoder, "--output", flow, "--steps", "4", "--epochs", "3"]) == 0
    assert f"30 sentences, dimension {WIDTH}, 4 steps; wrote {flow}" in capsys.readouterr().out
    whitening = Whitening.fit(ROWS[:30].round(3), 3)
    for kind, flags, transform in (
        ("", (), lambda vectors: vectors),
        ("flow", ("--flow", flow), load_flow(flow).transform),
        ("whitening", ("--whitening", text, "--whitening-dimensions", "3"), whitening),
    ):
        sts = ["sts", "--sts-file", str(words / "pairs.tsv"), *encoder, "--output", str(report), "--overwrite", *flags]
        assert main(sts) == 0
        (row,) = json.loads(report.read_text())["rows"]
        assert next(iter(row["scores"].values())) == pytest.approx(by_hand(transform), abs=1e-3), kind
        assert [name for name in ("flow", "whitening") if name in row["encoder"]] == [kind] * bool(kind)
        stated = {"": {}, **row["encoder"]}[kind]
        assert not stated or len(stated["sha256"]) == 64


class Scaled:
    """An encoder that scales its vectors, as that of a sentence-transformers folder with Normalize."""

    def encode(self, sentences: list[str], batch_size: int = 32) -> np.ndarray:
        return ROWS[: len(sentences)] / np.linalg.norm(ROWS[: len(sentences)], axis=1, keepdims=True)

    def describe(self) -> dict[str, Any]:
        return {"normalized": True}


def test_the_flow_of_an_encoder_that_scales_its_vectors_is_scaled(tmp_path: Path) -> None:
    save_flow(tmp_path / "flow.npz", fit_flow(ROWS[:200]), {})
    flags = EncoderFlags(encoder=("tests.evaluation.test_flow:Scaled",), flow=tmp_path / "flow.npz")
    (encoder,) = flags.encoders()
    np.testing.assert_allclose(np.linalg.norm(encoder.encode(["a", "b", "c"]), axis=1), 1, atol=1e-6)


def test_embed_uses_the_flow(checkpoint, data_bin, tmp_path, capsys) -> None:
    (tmp_path / "text.txt").write_text("\n".join(line for line in sentences(60, seed=3) if line) + "\n")
    model = ("--data-bin", str(data_bin), "--tokenizer", "whitespace", "--pooling", "cls")
    text, flow, out = (str(tmp_path / name) for name in ("text.txt", "flow.npz", "out.npy"))
    assert main(["flow", text, "--encoder", str(checkpoint), *model, "--output", flow]) == 0
    embed = ["embed", text, "--checkpoint", str(checkpoint), *model, "--output", out]
    assert main(embed) == 0
    plain = np.load(out)
    assert main([*embed, "--overwrite", "--flow", flow]) == 0
    mapped = np.load(out)
    expected = load_flow(flow).transform(plain)
    np.testing.assert_allclose(mapped, expected, atol=1e-5)
    assert np.abs(mapped - plain).max() > 0.1
    assert main([*embed, "--overwrite", "--flow", flow, "--normalize"]) == 0
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(np.load(out), expected / lengths, atol=1e-5)
    options = {"tokenizer": WhitespaceTokenizer(), "pooling": "cls", "flow": flow}
    encoder = SentenceEncoder.from_pretrained(checkpoint, data_bin, **options)
    encoder.normalized = True  # as the encoder of a sentence-transformers folder that scales its vectors
    np.testing.assert_allclose(np.linalg.norm(encoder.encode(["a"]), axis=-1), 1, atol=1e-6)
    before = Path(out).read_bytes()
    embed += ["--overwrite", "--flow"]
    rejected(capsys, [*embed, flow, "--pooling", "mean"], "of pooling cls, these have pooling mean")
    for name in ("updates", "architecture", "vocabulary_hash"):
        loaded, other = load_flow(flow), tmp_path / f"{name}.npz"
        loaded.origin["encoder"][name] = "other"
        save_flow(other, loaded, loaded.origin)
        rejected(capsys, [*embed, other], f"fitted on vectors of {name} other, these have")
    assert Path(out).read_bytes() == before


# Whitening

FEW = 3 * ROWS[:200].astype(np.float64) + 5


def test_whitened_vectors_have_mean_0_and_covariance_1() -> None:
    whitened = Whitening.fit(FEW)(FEW)
    np.testing.assert_allclose(whitened.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(np.cov(whitened, rowvar=False), np.eye(WIDTH), atol=1e-4)
    assert np.abs(np.cov(FEW, rowvar=False) - np.eye(WIDTH)).max() > 1


def test_fewer_dimensions_are_those_of_most_variance() -> None:
    full, reduced = Whitening.fit(FEW), Whitening.fit(FEW, 2)
    np.testing.assert_allclose(reduced(FEW), full(FEW)[:, :2], atol=1e-5)
    centred = FEW - FEW.mean(axis=0)
    variance = np.linalg.svd(centred, compute_uv=False)[0] ** 2 / (len(FEW) - 1)
    first = full.kernel[:, 0] * np.sqrt(variance)
    assert np.linalg.norm(first) == pytest.approx(1)
    assert (centred @ first).var(ddof=1) == pytest.approx(variance)


def test_directions_without_variance_are_left_out() -> None:
    flat = np.concatenate([FEW, FEW[:, :1] * 2, np.ones((200, 1))], axis=1)
    assert Whitening.fit(flat)(flat).shape == (200, WIDTH)
    for rows, dimensions, said in (
        (flat, 6, "variance in 5"),
        (FEW[:1], None, "two or more"),
        (np.ones((5, 3)), None, "variance in 0"),
    ):
        with pytest.raises(UserError, match=said):
            Whitening.fit(rows, dimensions)
