"""BERT-flow against the Jacobian of autograd and the density of a known Gaussian; its file; its command and flags."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.postprocessing import Flow, fit_flow, load_flow, save_flow
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import sentences

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
    grid = torch.linspace(-60, 60, 1201, dtype=torch.float64)
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
    train, held_out = ROWS[:3000], torch.from_numpy(ROWS[3000:])
    best = gaussian_log_likelihood(ROWS[3000:])
    likelihoods, distances = [], []
    for epochs in (0, 1, 8):
        flow = fit_flow(train, steps=6, epochs=epochs, seed=3)
        likelihoods.append(flow.log_likelihood(held_out).mean().item())
        distances.append(distance_to_normal(flow.transform(ROWS[3000:])))
    assert likelihoods[0] < likelihoods[1] < likelihoods[2] < best + 0.02
    assert likelihoods[2] > best - 0.1
    assert distance_to_normal((ROWS[3000:] - ROWS.mean(axis=0)) / ROWS.std(axis=0)) > distances[1] > distances[2]
    assert distances[2] < 0.35, "a thousand vectors of N(0, I) have about 0.2"


def test_a_new_flow_has_vectors_of_unit_variance() -> None:
    flow = Flow(WIDTH, steps=1)
    flow.initialise(torch.from_numpy(ROWS), seed=1)
    normed = flow.norms[0](torch.from_numpy(ROWS))[0]
    torch.testing.assert_close(normed.mean(dim=0), torch.zeros(WIDTH), atol=1e-5, rtol=0)
    torch.testing.assert_close(normed.var(dim=0, correction=0), torch.ones(WIDTH), atol=1e-3, rtol=0)


def test_the_seed_determines_the_flow() -> None:
    one, same, other = (fit_flow(ROWS[:200], seed=seed).transform(ROWS) for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("rows", "said"), [(ROWS[:1], "two or more sentences"), (ROWS[:, :1], "two or more dimensions")]
)
def test_too_little_to_fit(rows: np.ndarray, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fit_flow(rows)


def test_a_likelihood_that_is_nan_is_an_error() -> None:
    with pytest.raises(UserError, match="smaller --lr"):
        fit_flow(ROWS, learning_rate=1e4)


@pytest.mark.slow
def test_a_dimension_without_variance() -> None:
    flat = np.concatenate([ROWS, np.ones((len(ROWS), 1), np.float32)], axis=1)
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


def damaged(content: bytes) -> dict[str, bytes]:
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0xFF
    return {"empty": b"", "cut": content[: len(content) // 2], "flipped": bytes(flipped), "text": b"not a flow"}


@pytest.mark.parametrize("name", ["empty", "cut", "flipped", "text"])
def test_a_damaged_file_is_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "flow.npz"
    save_flow(path, Flow(4, 2), {})
    path.write_bytes(damaged(path.read_bytes())[name])
    with pytest.raises(UserError, match=r"--flow .*: not a complete flow \(\w+.*\); fit it again$") as error:
        load_flow(path)
    assert "\n" not in str(error.value)


def test_another_format_and_a_missing_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", description=np.array(json.dumps({"format": 2})))
    with pytest.raises(UserError, match="format 2 instead of 1"):
        load_flow(tmp_path / "new.npz")
    with pytest.raises(UserError, match="no such file; make it with fairseq-clear flow"):
        load_flow(tmp_path / "none.npz")


# The command, and the flags that take its file


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with word vectors, a text and scored pairs."""
    folder = tmp_path_factory.mktemp("words")
    names = [f"w{number}" for number in range(30)]
    lines = [f"{name} {' '.join(f'{x:.3f}' for x in row)}" for name, row in zip(names, ROWS, strict=False)]
    (folder / "words.vec").write_text("\n".join(lines) + "\n")
    (folder / "text.txt").write_text("\n\n".join(names) + "\n")
    pairs = (f"{a} {b}\t{b} w3\t{n % 5}\n" for n, (a, b) in enumerate(pairwise(names)))
    (folder / "pairs.tsv").write_text("".join(pairs))
    return folder


def test_sts_uses_the_flow(words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = ("--encoder", str(words / "words.vec"))
    flow = str(tmp_path / "flow.npz")
    assert main(["flow", str(words / "text.txt"), *encoder, "--output", flow, "--steps", "4", "--epochs", "3"]) == 0
    assert f"30 sentences, dimension {WIDTH}, 4 steps; wrote {flow}" in capsys.readouterr().out
    scores = []
    for number, extra in enumerate(((), ("--flow", flow))):
        report = tmp_path / f"report{number}.json"
        assert main(["sts", "--sts-file", str(words / "pairs.tsv"), *encoder, "--output", str(report), *extra]) == 0
        scores.append(json.loads(report.read_text())["rows"][0])
    assert "words.vec flow" in capsys.readouterr().out
    assert scores[0]["scores"] != scores[1]["scores"] and "flow" not in scores[0]["encoder"]
    stated = scores[1]["encoder"]["flow"]
    assert stated["fitted on"]["text"]["sentences"] == 30 and len(stated["sha256"]) == 64
    # by hand: the cosine of what the flow of the file makes of the mean of two words
    rows, loaded = ROWS[:30].round(3), load_flow(flow)
    first, second = (np.stack([rows[i : i + 2].mean(axis=0) for i in range(29)]), (rows[1:] + rows[3]) / 2)
    z = [loaded.transform(side.astype(np.float32)) for side in (first, second)]
    cosines = (z[0] * z[1]).sum(axis=1) / np.linalg.norm(z[0], axis=1) / np.linalg.norm(z[1], axis=1)
    expected = 100 * spearmanr(cosines, [n % 5 for n in range(29)]).statistic
    assert next(iter(scores[1]["scores"].values())) == pytest.approx(expected, abs=1e-3)


def test_mistakes_of_the_command(words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flow.npz").touch()
    (tmp_path / "empty.txt").write_text("\n\n")
    command = ["--encoder", str(words / "words.vec"), "--output"]
    for text, output, message in (
        (words / "text.txt", "flow.npz", "flow.npz: exists already; add --overwrite"),
        (words / "text.txt", "flow.pt", "flow.pt: unknown suffix; give a name that ends in .npz"),
        (tmp_path / "empty.txt", "new.npz", "empty.txt: holds no sentence"),
    ):
        assert main(["flow", str(text), *command, str(tmp_path / output)]) == 2
        error = capsys.readouterr().err.strip()
        assert message in error and "\n" not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.txt", "flow.npz"]


def test_flows_of_other_vectors(words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_flow(tmp_path / "wide.npz", Flow(7, 2), {})
    sts = ["sts", "--sts-file", str(words / "pairs.tsv"), "--encoder", str(words / "words.vec")]
    assert main([*sts, "--flow", str(tmp_path / "wide.npz")]) == 2
    said = f"wide.npz: was fitted on vectors of dimension 7, these have dimension {WIDTH}; fit another with"
    assert said in capsys.readouterr().err
    assert main([*sts, "--flow", str(tmp_path / "none.npz")]) == 2
    assert "none.npz: no such file; make it with fairseq-clear flow" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*sts, "--flow", str(tmp_path / "wide.npz"), "--dimension", "3"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_embed_uses_the_flow(
    checkpoint: Path, data_bin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    before = Path(out).read_bytes()
    assert main([*embed, "--overwrite", "--flow", flow, "--pooling", "mean"]) == 2
    assert "was fitted on vectors of pooling cls, these have pooling mean" in capsys.readouterr().err
    assert Path(out).read_bytes() == before


def test_from_python(checkpoint: Path, data_bin: Path, tmp_path: Path) -> None:
    save_flow(tmp_path / "flow.npz", Flow(32, 2), {})
    load = {"tokenizer": WhitespaceTokenizer(), "flow": tmp_path / "flow.npz"}
    encoder = SentenceEncoder.from_pretrained(checkpoint, data_bin, **load)
    assert encoder.encode("ba da").shape == (32,) and "flow" in encoder.describe()
    with pytest.raises(UserError, match="a flow maps whole vectors"):
        SentenceEncoder.from_pretrained(checkpoint, data_bin, dimension=4, **load)
