"""Matryoshka: the mean of an objective over truncated vectors, against the papers' equations in float64."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.objectives import OBJECTIVES
from fairseq_clear.objectives.matryoshka import at_dimensions, parse_dimensions
from tests.objectives import oracles

WIDTH = 12
TAU = 0.3
Case = tuple[tuple[Tensor, ...], dict[str, Any], float]


def drawn(*shape: int, seed: int) -> Tensor:
    """Random vectors whose values grow with the dimension, so that truncation changes the cosines."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * torch.linspace(0.2, 3, shape[-1])


def numbers(vectors: Tensor) -> np.ndarray:
    return vectors.detach().double().numpy()


def nt_xent(d: int) -> Case:
    z, rows = drawn(10, WIDTH, seed=1), torch.arange(10)
    excluded = torch.eye(10, dtype=torch.bool)
    return (z, z, rows.roll(5)), {"excluded": excluded}, oracles.clear_equation_2(numbers(z)[:, :d], TAU)


def info_nce(d: int) -> Case:
    q, positives = drawn(4, WIDTH, seed=2), drawn(4, WIDTH, seed=3)
    keys = torch.nn.functional.normalize(drawn(9, WIDTH, seed=4), dim=-1)  # as a queue holds them
    excluded = torch.rand(4, 9, generator=torch.Generator().manual_seed(5)) < 0.3
    inputs = (numbers(rows)[:, :d] for rows in (q, positives, keys))
    expected, _ = oracles.cert_equation_2(*inputs, TAU, excluded.numpy())
    return (q, positives, keys), {"excluded": excluded}, expected


def guided(name: str, d: int) -> Case:
    c, h = drawn(5, WIDTH, seed=6), drawn(5, 3 if name == "opt3" else 1, WIDTH, seed=7)
    expected = oracles.SELF_GUIDED[name](numbers(c)[:, :d], numbers(h)[:, :, :d], TAU)
    return (c, h, c, h, torch.arange(5)), {}, expected


CASES = {"nt-xent": nt_xent, "info-nce": info_nce}
CASES |= {name: partial(guided, name) for name in oracles.SELF_GUIDED}


@pytest.mark.parametrize("dimensions", [(3,), (2, 5), (4, 8, WIDTH)])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_mean_of_the_equations(name: str, dimensions: tuple[int, ...]) -> None:
    arguments, options, _ = CASES[name](WIDTH)
    expected = [CASES[name](d)[2] for d in dimensions]
    loss, rows, _ = at_dimensions(OBJECTIVES[name].function, dimensions)(*arguments, temperature=TAU, **options)
    assert loss.item() == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    whole, whole_rows, _ = OBJECTIVES[name].function(*arguments, temperature=TAU, **options)
    assert rows == whole_rows
    assert abs(loss.item() - whole.item()) > 1e-3 * abs(whole.item()), "the negative control: truncating matters"


def test_the_gradient_is_the_slope_of_the_mean() -> None:
    (z, _, positive), options, _ = nt_xent(WIDTH)
    z.requires_grad_()
    loss, _, _ = at_dimensions(OBJECTIVES["nt-xent"].function, (3, 7))(z, z, positive, temperature=TAU, **options)
    (ours,) = torch.autograd.grad(loss, z)
    mean = lambda values: sum(oracles.clear_equation_2(values[:, :d], TAU) for d in (3, 7)) / 2  # noqa: E731
    assert ours.numpy() == pytest.approx(oracles.slopes(mean, numbers(z)), rel=1e-4, abs=1e-6)
    assert (ours[:, 7:] == 0).all() and (ours[:, :3].abs().sum() > 0)


def test_the_full_width_alone_is_the_objective_to_the_bit() -> None:
    for name, case in CASES.items():
        arguments, options, _ = case(WIDTH)
        one = OBJECTIVES[name].function(*arguments, temperature=TAU, **options)
        other = at_dimensions(OBJECTIVES[name].function, (WIDTH,))(*arguments, temperature=TAU, **options)
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
        assert all(torch.equal(value, other[2][key]) for key, value in one[2].items())


def test_statistics_are_those_of_the_largest() -> None:
    (z, _, positive), options, _ = nt_xent(WIDTH)
    function = OBJECTIVES["nt-xent"].function
    _, _, found = at_dimensions(function, (3, 7))(z, z, positive, temperature=TAU, **options)
    _, _, expected = function(z[:, :7], z[:, :7], positive, temperature=TAU, **options)
    assert found["positive_cosine"] == pytest.approx(expected["positive_cosine"].item(), rel=1e-6)
    assert found["correct"] == expected["correct"]


def test_dimensions_are_read() -> None:
    assert parse_dimensions("") == ()
    assert parse_dimensions(" 64, 128,256") == (64, 128, 256)
    for text in ("0,4", "4,2", "4,4", "4,", "4;8", "-4", "4.0", "all", ","):
        with pytest.raises(UserError, match="give ascending whole numbers above 0") as error:
            parse_dimensions(text)
        assert str(error.value).startswith(f"--matryoshka {text}: ")
