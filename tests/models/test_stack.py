"""The stack of blocks against fairseq's own, bit for bit."""

from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
import torch
from fairseq.models.transformer import TransformerEncoder
from fairseq.modules.gelu import gelu
from fairseq.modules.learned_positional_embedding import LearnedPositionalEmbedding
from torch import nn

from fairseq_clear.models.encoder_stack import EncoderStack, SegmentedPositions
from tests.training import build

FLAGS = (
    *("--arch", "clear_roberta_tiny", "--criterion", "clear_nt_xent", "--optimizer", "adam", "--lr", "1e-4"),
    *("--max-positions", "64", "--tokens-per-sample", "64", "--sample-break-mode", "eos"),
)


@pytest.mark.parametrize("flags", [(), ("--encoder-normalize-before",), ("--encoder-layerdrop", "0.5")], ids=str)
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("is_told", [False, True])
def test_equals_the_hosts(flags: tuple[str, ...], padding: int, is_told: bool, even_bin: Path) -> None:
    trainer, _ = build(even_bin, *FLAGS, *flags)
    stack = trainer.get_model().encoder.sentence_encoder.train()
    assert type(stack) is EncoderStack
    tokens = torch.randint(4, 90, (3, 11), generator=torch.Generator().manual_seed(1))
    tokens[1, 11 - padding :] = stack.padding_idx
    lengths = torch.tensor([11, 11 - padding, 11]) if is_told else None
    found = []
    for forward in (TransformerEncoder.forward_scriptable, EncoderStack.forward_scriptable):
        stack.zero_grad()
        torch.manual_seed(2)
        with mock.patch.object(EncoderStack, "forward_scriptable", forward):
            out = stack(tokens, src_lengths=lengths, return_all_hiddens=True)
        states = out["encoder_out"][0]
        (states * torch.arange(states.numel()).view_as(states)).sum().backward()
        gradients = [None if p.grad is None else p.grad.clone() for p in stack.parameters()]
        found.append((states, out["encoder_states"], out["encoder_padding_mask"], gradients))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_attention_of_padded_batches_is_not_cudnns(even_bin: Path) -> None:
    stack = build(even_bin, *FLAGS)[0].get_model().encoder.sentence_encoder
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    seen: list[bool] = []
    stack.layers[1].register_forward_hook(lambda *_: seen.append(enabled()))
    tokens = torch.full((2, 5), 7)
    stack(tokens)
    tokens[1, 4] = stack.padding_idx
    stack(tokens)
    assert seen == [True, False]
    stack.layers[1].register_forward_hook(mock.Mock(side_effect=RuntimeError))
    with pytest.raises(RuntimeError):
        stack(tokens)
    assert enabled(), "it is on again, also after an error"


def test_later_sentences_have_the_last_segment() -> None:
    positions = LearnedPositionalEmbedding(20, 4, 1)
    both = SegmentedPositions(positions, 2, 2)
    nn.init.normal_(both.segments.weight)
    tokens = torch.tensor([[0, 5, 2, 6, 2, 7, 2]])
    expected = positions(tokens) + both.segments.weight[torch.tensor([[0, 0, 0, 1, 1, 1, 1]])]
    assert torch.equal(both(tokens), expected)


def test_gelu_is_fairseqs_without_its_float32_copy(even_bin: Path) -> None:
    trainer, _ = build(even_bin, *FLAGS, "--bf16")
    stack = trainer.get_model().encoder.sentence_encoder.eval()
    tokens = torch.randint(4, 90, (3, 11), generator=torch.Generator().manual_seed(1))
    width, found = stack.layers[0].fc1.out_features, []
    for function in (gelu, nn.functional.gelu):
        kept: list[torch.dtype] = []
        with ExitStack() as patches:
            for block in stack.layers:
                assert block.activation_fn is nn.functional.gelu
                patches.enter_context(mock.patch.object(block, "activation_fn", function))
            note = lambda tensor, kept=kept: kept.extend([tensor.dtype] * (tensor.shape[-1] == width)) or tensor  # noqa: E731
            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                states = stack(tokens)["encoder_out"][0]
        found.append((states, torch.autograd.grad(states.float().square().sum(), list(stack.layers.parameters()))))
        assert (torch.float32 in kept) == (function is gelu)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    trainer, _ = build(even_bin, *FLAGS, "--activation-fn", "gelu_accurate")
    assert trainer.get_model().encoder.sentence_encoder.layers[0].activation_fn.__name__ == "gelu_accurate"
