"""Sliding-window attention is full attention under a mask that is written out here, at a linear price."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairseq_clear.modules import window_attention as module
from fairseq_clear.modules.window_attention import MaskCache, is_covered, window_attention, window_mask
from tests.objectives.test_negatives import peak


def seen(length: int, window: int) -> Tensor:
    """(T, T), entry by entry as the paper has it."""
    rows = [[i == 0 or j == 0 or abs(i - j) <= window / 2 for j in range(length)] for i in range(length)]
    return torch.tensor(rows)


def oracle_weights(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """Softmax of every score that the mask leaves, in float64 (B, H, T, T); query and key (B, T, H, d), mask (B, T, T)."""
    scores = torch.einsum("bihd,bjhd->bhij", query.double(), key.double()) / query.shape[-1] ** 0.5
    return scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)


def oracle(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return torch.einsum("bhij,bjhd->bihd", oracle_weights(query, key, mask), value.double())


def draw(batch: int, length: int, heads: int = 2, width: int = 8, seed: int = 1, **kwargs) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(batch, length, heads, width, **kwargs).requires_grad_() for _ in range(3)]


def padding_of(lengths: list[int], longest: int) -> Tensor:
    return torch.arange(longest) >= torch.tensor(lengths)[:, None]


def differences(parts: list[Tensor], window: int, mask: Tensor, padding: Tensor | None) -> tuple[float, float]:
    """Largest difference of outputs and of gradients to the oracle under ``mask``, on what is not padding."""
    is_token = torch.ones(parts[0].shape[:2], dtype=torch.bool) if padding is None else ~padding
    mask = mask & is_token[:, None] | torch.eye(mask.shape[-1], dtype=torch.bool) & ~is_token[:, :, None]
    output, expected = window_attention(*parts, window, padding), oracle(*parts, mask)
    assert output.isfinite().all()
    assert output.shape == parts[0].shape
    weights = torch.randn_like(output) * is_token[..., None, None]
    own = torch.autograd.grad((output * weights).sum(), parts)
    theirs = torch.autograd.grad((expected * weights).sum(), parts)
    gradients = max((one - two).abs().max().item() for one, two in zip(own, theirs, strict=True))
    return (output - expected)[is_token].abs().max().item(), gradients


@pytest.mark.slow
@given(data=st.data())
def test_it_is_full_attention_under_the_mask(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 70), label="T")
    window = 2 * data.draw(st.integers(1, 40), label="W/2")
    batch, heads = data.draw(st.integers(1, 3), label="B"), data.draw(st.integers(1, 3), label="H")
    lengths = data.draw(st.none() | st.lists(st.integers(1, length), min_size=batch, max_size=batch), label="lengths")
    smallest = data.draw(st.sampled_from([1, 5, 32]), label="smallest block")
    padding = None if lengths is None else padding_of(lengths, length)
    parts = draw(batch, length, heads, data.draw(st.sampled_from([1, 4, 8])), seed=length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMALLEST_BLOCK", smallest)
        outputs, gradients = differences(parts, window, seen(length, window)[None], padding)
    assert outputs < 1e-5
    assert gradients < 1e-5


@pytest.mark.parametrize("length", [4, 100, 129, 300])
@pytest.mark.parametrize("window", [2, 16, 64])
def test_another_window_or_no_global_token_differs(length: int, window: int) -> None:
    parts = draw(2, length)
    mask = seen(length, window)[None]
    assert max(differences(parts, window, mask, None)) < 1e-5
    if window < 2 * (length - 2):
        wider, narrower = seen(length, window + 2)[None], seen(length, window - 2)[None]
        assert min(differences(parts, window, wider, None)) > 1e-3
        assert min(differences(parts, window, narrower, None)) > 1e-3
        local = (torch.arange(length)[:, None] - torch.arange(length)).abs() <= window // 2
        row, column = mask.clone(), mask.clone()
        row[0, 0], column[0, :, 0] = local[0], local[:, 0]
        assert min(differences(parts, window, row, None)) > 1e-3
        assert min(differences(parts, window, column, None)) > 1e-3
    padded = padding_of([length, length - 1], length)
    assert max(differences(parts, window, mask, padded)) < 1e-5
    output = window_attention(*parts, window)
    assert (window_attention(*parts, window, padded)[1, 0] - output[1, 0]).abs().max() > 1e-3


def test_the_mask_is_the_one_meant() -> None:
    for length, window in ((1, 2), (7, 2), (30, 8), (30, 60)):
        assert torch.equal(window_mask(length, window), seen(length, window))
    assert seen(30, 8)[15].sum() == 8 + 1 + 1  # W, itself, <s>
    assert is_covered(6, 8) and seen(6, 8).all()
    assert not is_covered(7, 8) and not seen(7, 8).all()


def test_a_row_of_nothing_but_padding_is_finite() -> None:
    for length in (5, 100):
        parts = draw(2, length)
        output = window_attention(*parts, 8, padding_of([length, 0], length))
        output.sum().backward()
        assert output.isfinite().all()
        assert all(part.grad.isfinite().all() for part in parts)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
@pytest.mark.parametrize("length", [20, 200])
@pytest.mark.parametrize("dropout", [0.0, 1e-9])  # on a CPU PyTorch has another kernel where there is dropout
def test_half_precisions(dtype: torch.dtype, tolerance: float, length: int, dropout: float) -> None:
    parts = [part.detach().to(dtype).requires_grad_() for part in draw(2, length)]
    padding = padding_of([length, length // 2], length)
    output = window_attention(*parts, 16, padding, dropout=dropout)
    assert output.dtype == dtype
    expected = oracle(*parts, seen(length, 16)[None] & ~padding[:, None])
    assert (output.double() - expected)[~padding].abs().max() < tolerance
    output.float()[~padding].sum().backward()
    assert all(part.grad.isfinite().all() and part.grad.abs().max() > 0 for part in parts)


@pytest.mark.parametrize("length", [30, 400])
def test_dropout_drops_weights_and_keeps_their_mean(length: int) -> None:
    """With values of 1 the output is the sum of the kept weights, divided by the share that is kept."""
    query, key, _ = draw(4, length, 4)
    torch.manual_seed(3)
    sums = torch.cat([window_attention(query, key, torch.ones_like(key), 16, dropout=0.25) for _ in range(30)])[..., 0]
    assert sums.mean().item() == pytest.approx(1, abs=5e-3)
    # each weight p is dropped by itself: the variance of the sum is (0.25 / 0.75) times the sum of p^2
    weights = oracle_weights(query, key, seen(length, 16)[None])
    expected = weights.square().sum(-1).mean().item() / 3
    assert sums.var().item() == pytest.approx(expected, rel=0.1)
    assert sums[:, 0].var() > 0
    torch.manual_seed(3)
    again = window_attention(query, key, torch.ones_like(key), 16, dropout=0.25)[..., 0]
    assert torch.equal(again, sums[:4])


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True])
def test_memory_is_linear_in_the_length(padded: bool) -> None:
    def peak_bytes(length: int, window: int, dropout: float) -> float:
        parts, padding = draw(2, length), padding_of([length, length // 2], length) if padded else None
        return peak(lambda: window_attention(*parts, window, padding, dropout=dropout).sum().backward())

    # the control: a window over everything is full attention, whose scores with dropout are held whole
    whole = [peak_bytes(length, 2 * length, 0.1) for length in (512, 1024)]
    assert whole[1] > 3.5 * whole[0]
    for dropout in (0.0, 0.1):
        sizes = [peak_bytes(length, 32, dropout) for length in (256, 512, 1024)]
        assert all(after < 2.1 * before for before, after in zip(sizes, sizes[1:], strict=False)), sizes
        assert whole[1] > 8 * sizes[2]


def test_layers_share_a_mask_and_batches_do_not() -> None:
    masks, made = MaskCache(), []

    def build(query: Tensor, window: int, padding: Tensor | None) -> Tensor:
        made.append(query.shape[1])
        return module._block_mask(query, window, padding)

    (query, _, _), padding = draw(2, 100), padding_of([100, 40], 100)
    first = masks.get(build, query, 8, padding)
    assert masks.get(build, query, 8, padding) is first
    assert len(made) == 1
    own, plain = (query, 8, padding), (query, 8, None)
    changes = [(own, (query, 8, padding.clone())), (own, (query, 10, padding)), (own, plain)]
    for arguments in [*changes, (plain, (query[:, :90], 8, None)), (plain, (query.bfloat16(), 8, None))]:
        before, after = (masks.get(build, *some) for some in arguments)
        assert after is not before and after.dtype == arguments[1][0].dtype  # a GPU rejects one of another precision
        assert after.stride(-2) % 8 == 0 and after.stride(-1) == 1  # a GPU copies others in each layer
    assert len(made) == 9
    kept = masks.get(build, query, 8, padding)
    padding[1, 30:] = True
    assert not torch.equal(masks.get(build, query, 8, padding), kept)
    assert copy.deepcopy(masks)._made == pickle.loads(pickle.dumps(masks))._made == {}
    del padding, own, changes, arguments
    assert masks._made == {}


def test_masks_of_inference_are_not_those_of_training() -> None:
    for padding in (None, padding_of([100, 40], 100)):
        masks, parts = MaskCache(), draw(2, 100)
        with torch.inference_mode():
            window_attention(*parts, 8, None if padding is None else padding.clone(), masks=masks)
            window_attention(*parts, 8, padding, masks=masks)
        window_attention(*parts, 8, padding, masks=masks).sum().backward()
        assert parts[0].grad is not None
