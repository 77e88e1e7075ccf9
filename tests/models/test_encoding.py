"""Texts to vectors with a model in memory: the same whatever the batches, and nothing of the model is changed."""

from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from fairseq_clear.errors import UserError
from fairseq_clear.models.architectures import set_defaults
from fairseq_clear.models.clear_roberta import ClearRobertaModel
from fairseq_clear.models.encoding import EncodingCounts, _batches, encode_texts, evaluating, read_tokens, text_length
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import WORDS, sentences

LAYERS, WIDTH, POSITIONS = 3, 16, 20
POOLINGS = ("cls", "mean", "max", "first-last", "last2", "layer:0", "layer:2")
TEXTS = ["", *sentences(40, seed=5), WORDS[0], ""]
TOKENIZER = WhitespaceTokenizer()


@pytest.fixture(scope="module")
def dictionary():
    known = Dictionary()
    for symbol in (*WORDS, "<mask>", "<del>"):
        known.add_symbol(symbol)
    return known


@pytest.fixture
def model(dictionary):
    torch.manual_seed(3)
    sizes = {"encoder_layers": LAYERS, "encoder_embed_dim": WIDTH, "encoder_attention_heads": 2}
    args = Namespace(pooling="mean", max_positions=POSITIONS, **sizes)
    set_defaults(args, LAYERS, WIDTH)
    made = ClearRobertaModel.build_model(args, SimpleNamespace(source_dictionary=dictionary))
    with torch.no_grad():
        for parameter in made.parameters():  # larger than at the start, so that attention matters
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made.train()


def alone(model, dictionary, text, pooling):
    """The oracle: one text at a time, without padding, pooled by hand from fairseq's hidden states."""
    tokens = torch.tensor([[0, *(dictionary.index(word) for word in text.split()), 2]])
    _, extra = model(tokens, features_only=True, return_all_hiddens=True)
    layers = [state[:, 0].numpy().astype(np.float64) for state in extra["inner_states"]]
    by_hand = {
        "cls": lambda: layers[-1][0],
        "mean": lambda: layers[-1].mean(0),
        "max": lambda: layers[-1].max(0),
        "first-last": lambda: (layers[1].mean(0) + layers[-1].mean(0)) / 2,
        "last2": lambda: (layers[-2].mean(0) + layers[-1].mean(0)) / 2,
    }
    return by_hand[pooling]() if pooling in by_hand else layers[int(pooling[-1])].mean(0)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_those_of_each_text_alone(model, dictionary, pooling):
    with evaluating(model):
        expected = np.array([alone(model, dictionary, text, pooling) for text in TEXTS])
    vectors, counts = encode_texts(model, dictionary, TOKENIZER, TEXTS, pooling=pooling)
    assert vectors.dtype == np.float32 and vectors.shape == (len(TEXTS), WIDTH)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert counts.padding_share > 0, "no batch had padding: the comparison would prove little"
    other = POOLINGS[POOLINGS.index(pooling) - 1]
    assert not np.allclose(encode_texts(model, dictionary, TOKENIZER, TEXTS, pooling=other)[0], expected, atol=1e-2)


@pytest.mark.parametrize("batch_size", [1, 2, 7, 1000])
def test_results_do_not_depend_on_batches_or_order(model, dictionary, batch_size):
    expected, _ = encode_texts(model, dictionary, TOKENIZER, TEXTS)
    order = np.random.default_rng(batch_size).permutation(len(TEXTS))
    shuffled = [TEXTS[index] for index in order]
    vectors, counts = encode_texts(model, dictionary, TOKENIZER, shuffled, batch_size=batch_size)
    np.testing.assert_allclose(vectors, expected[order], atol=1e-5)
    assert not np.allclose(vectors, expected, atol=1e-2), "in the wrong order they should differ"
    assert counts.sentences == len(TEXTS)
    assert counts.tokens == sum(len(text.split()) + 2 for text in TEXTS)


def test_encoding_is_repeatable_and_leaves_the_model_as_it_was(model, dictionary):
    model.encoder.sentence_encoder.layers[0].eval()  # as a frozen part would be
    modes = [module.training for module in model.modules()]
    assert True in modes and False in modes
    seen = []
    block = model.encoder.sentence_encoder.layers[1]
    block.register_forward_hook(lambda module, *_: seen.append(module.training or torch.is_grad_enabled()))
    before = torch.get_rng_state()
    first, second = (encode_texts(model, dictionary, TOKENIZER, TEXTS, pooling="max")[0] for _ in range(2))
    assert (first == second).all() and (torch.get_rng_state() == before).all()
    assert seen and not any(seen)
    with pytest.raises(ZeroDivisionError), evaluating(model):
        1 / 0
    assert [module.training for module in model.modules()] == modes
    rows = torch.tensor([read_tokens(dictionary, TOKENIZER, TEXTS[1])])
    assert model.embed(rows).requires_grad
    assert not torch.equal(model.embed(rows), model.embed(rows)), "the model's own mode has dropout"


def test_texts_of_mixed_lengths_cost_less_padding_than_batches_of_so_many():
    lengths = np.minimum(240, np.exp(np.random.default_rng(0).normal(2.8, 0.9, 300))).astype(np.int64) + 2

    def cells(batches):
        return sum(len(batch) * lengths[batch].max() for batch in batches)

    ours = list(_batches(lengths, 32))
    assert sorted(np.concatenate(ours)) == list(range(300))
    fixed = np.array_split(np.argsort(-lengths), range(32, 300, 32))
    assert cells(ours) - lengths.sum() < 0.4 * (cells(fixed) - lengths.sum())
    assert len(list(_batches(lengths, 32, 10**9))) < len(ours), "a device that needs many cells gets larger batches"


def test_long_texts_are_cut_and_counted(model, dictionary):
    long, fits = " ".join(WORDS[:60]), " ".join(WORDS[: POSITIONS - 2])
    vectors, counts = encode_texts(model, dictionary, TOKENIZER, [long, fits, "", long])
    assert counts.truncated == 2 and counts.tokens == 3 * POSITIONS + 2
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)  # </s> stays the last token
    shorter, cut = encode_texts(model, dictionary, TOKENIZER, [fits, " ".join(WORDS[:3])], max_length=5)
    assert cut.truncated == 1
    np.testing.assert_allclose(shorter[0], shorter[1], atol=1e-6)
    assert not np.allclose(shorter[0], vectors[1], atol=1e-3)
    model.args.sentence_settings = {"max_length": 10**30}  # as of a tokenizer without a limit
    _, cut = encode_texts(model, dictionary, TOKENIZER, [long], prompt=17 * "a ")  # one token of the text is left
    assert (text_length(model), cut.tokens, cut.truncated) == (POSITIONS, POSITIONS, 1)


def test_empty_texts_and_no_texts(model, dictionary):
    vectors, counts = encode_texts(model, dictionary, TOKENIZER, ["", "  "])
    assert counts.unknown_share == 0 and encode_texts(model, dictionary, TOKENIZER, ["nowhere"])[1].unknown_share == 1
    with evaluating(model):
        expected = model.embed(torch.tensor([[dictionary.bos(), dictionary.eos()]])).numpy()
    np.testing.assert_allclose(vectors, expected.repeat(2, 0), atol=1e-6)
    nothing, counts = encode_texts(model, dictionary, TOKENIZER, [])
    assert nothing.shape == (0, WIDTH) and counts == EncodingCounts() and counts.padding_share == 0


def test_normalize_progress_and_half_precision(model, dictionary):
    done = []
    plain, _ = encode_texts(model, dictionary, TOKENIZER, TEXTS, batch_size=3)
    unit, _ = encode_texts(model, dictionary, TOKENIZER, TEXTS, batch_size=3, normalize=True, on_batch=done.append)
    np.testing.assert_allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)
    assert sum(done) == len(TEXTS) and len(done) > 1
    assert not np.allclose(plain, unit, atol=1e-2)
    half, _ = encode_texts(model.bfloat16(), dictionary, TOKENIZER, TEXTS, normalize=True)
    assert half.dtype == np.float32 and (half * unit).sum(1).min() > 0.98
    np.testing.assert_allclose(np.linalg.norm(half, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "middle"}, "pooling middle: no such pooling; valid are cls, mean"),
        ({"pooling": "layer:4"}, r"layers 0 \(embeddings\) to 3"),
        ({"batch_size": 0}, "batch size 0: must be 1 or more"),
        ({"max_length": 1}, "maximum length 1: must be 2 to 20"),
        ({"max_length": 21}, "maximum length 21: must be 2 to 20"),
        ({"prompt": 18 * "a "}, "prompt 'a a .*': has 18 tokens, and texts are cut to 20; give a shorter one"),
        ({"sentences": ["a", 7]}, "sentence 1 is of type int, not str"),
    ],
)
def test_bad_input_is_one_line(model, dictionary, options, message):
    texts = options.pop("sentences", TEXTS)
    with pytest.raises(UserError, match=message):
        encode_texts(model, dictionary, TOKENIZER, texts, **options)
