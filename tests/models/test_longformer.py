"""The model with a window: weights and recipes of full attention, copies, chunks, precisions, fine-tuning, inference."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training import build

pytestmark = pytest.mark.slow

LONG = ("--tokens-per-sample", "100", "--sample-break-mode", "complete", "--max-positions", "100")
WINDOW = ("--attention-window", "4")


def model_of(data: Path, *flags: str) -> Any:
    return build(data, *LONG, *flags)[0].get_model().eval()


def tokens_of(rows: int = 3, length: int = 90) -> Tensor:
    """(B, T) rows of different lengths, which begin with <s>."""
    torch.manual_seed(2)
    tokens = torch.randint(4, 60, (rows, length))
    tokens[:, 0] = 0
    for row in range(rows):
        tokens[row, length - 20 * row :] = 1
    return tokens


def reached(model: Any, length: int = 90) -> Tensor:
    """(T, T) bool: whether the states of the first block at i depend on the embedding at j, by gradient."""
    stack = model.encoder.sentence_encoder
    tokens = tokens_of(1, length)
    embedded = stack.embed_tokens(tokens).detach().requires_grad_()
    states = stack(tokens, token_embeddings=embedded, return_all_hiddens=True)["encoder_states"][1][:, 0]  # (T, D)
    rows = [torch.autograd.grad(state.square().sum(), embedded, retain_graph=True)[0][0] for state in states]
    return torch.stack([row.abs().sum(-1) > 0 for row in rows])


@pytest.mark.parametrize("norm", [(), ("--encoder-normalize-before",)])
@pytest.mark.parametrize("training", [False, True])
def test_a_block_reaches_the_window_and_the_first_token(norm: tuple[str, ...], training: bool, data_bin: Path) -> None:
    model = model_of(data_bin, *WINDOW, *norm).train(training)
    at = torch.arange(90)
    expected = ((at[:, None] - at).abs() <= 2) | (at == 0) | (at[:, None] == 0)
    assert torch.equal(reached(model), expected)
    with torch.no_grad():  # PyTorch may use its fast path here
        tokens = tokens_of(1)
        changed = tokens.clone()
        changed[0, 50] = 5 if tokens[0, 50] != 5 else 6
        shift = model.hidden_states(tokens)[1] - model.hidden_states(changed)[1]
    assert torch.equal(shift[0].abs().sum(-1) > 1e-6, expected[:, 50])
    assert reached(model_of(data_bin, *norm).train(training)).all()


def test_the_weights_are_those_of_full_attention(data_bin: Path) -> None:
    full, window, wide = (model_of(data_bin, *flags) for flags in ((), WINDOW, ("--attention-window", "200")))
    assert list(full.state_dict()) == list(window.state_dict())
    assert [name for name, _ in full.named_parameters()] == [name for name, _ in window.named_parameters()]
    assert all(torch.equal(value, window.state_dict()[name]) for name, value in full.state_dict().items())
    other = {name: value + 0.01 * torch.randn_like(value) for name, value in full.state_dict().items()}
    other["encoder.lm_head.weight"] = other["encoder.sentence_encoder.embed_tokens.weight"]
    for model in (full, window, wide):
        model.load_state_dict(dict(other))
    tokens = tokens_of()
    is_token = tokens.ne(1)
    states = [model.hidden_states(tokens)[-1][is_token] for model in (full, window, wide)]
    torch.testing.assert_close(states[0], states[2], atol=1e-5, rtol=1e-4)
    assert (states[0] - states[1]).abs().max() > 1e-2
    short = tokens[:, :4]
    torch.testing.assert_close(full.hidden_states(short)[-1], window.hidden_states(short)[-1], atol=1e-5, rtol=1e-4)


def test_old_checkpoints_with_one_projection_for_query_key_and_value_load(data_bin: Path) -> None:
    model = model_of(data_bin, *WINDOW)
    own = model.state_dict()
    weights = {name: value if "version" in name else torch.randn_like(value) for name, value in own.items()}
    weights["encoder.lm_head.weight"] = weights["encoder.sentence_encoder.embed_tokens.weight"]
    old = dict(weights)
    for layer in range(2):
        prefix = f"encoder.sentence_encoder.layers.{layer}.self_attn."
        for part in ("weight", "bias"):
            old[f"{prefix}in_proj_{part}"] = torch.cat([old.pop(f"{prefix}{name}_proj.{part}") for name in "qkv"])
    model.load_state_dict(old)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_copies_share_no_masks_and_a_classifier_has_the_window(data_bin: Path) -> None:
    model = model_of(data_bin, *WINDOW)
    encoder = model.encoder.sentence_encoder
    other = copy.deepcopy(encoder)
    masks = [[layer.self_attn.masks for layer in stack.layers] for stack in (encoder, other)]
    assert masks[0][0] is masks[0][1] and masks[1][0] is masks[1][1] and masks[0][0] is not masks[1][0]
    tokens = tokens_of()
    torch.testing.assert_close(encoder(tokens)["encoder_out"][0], other(tokens)["encoder_out"][0])
    model.register_classification_head("head", 2)
    logits, _ = model(tokens_of(1), features_only=True, classification_head_name="head")
    logits.sum().backward()
    assert logits.shape == (1, 2) and encoder.layers[1].self_attn.v_proj.weight.grad.abs().max() > 0
