"""STS by layer against the encoder's own poolings; the pairs of the map."""

import math

import numpy as np
import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.evaluation.sts import cosine, spearman
from fairseq_clear.evaluation.sts_data import Pairs, StsData
from fairseq_clear.evaluation.sts_plots import choose_pairs, draw_embedding, draw_layers, map_pairs, score_layers
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import sentences
from tests.evaluation.toys import Words

TEXTS = [text for text in sentences(80, seed=6) if text]
RNG = np.random.default_rng(2)
HALF = len(TEXTS) // 2
SCORES = RNG.permutation(np.repeat([0.0, 1.0, 2.5, 4.0, 5.0], HALF // 5 + 1)[:HALF])
DATA = StsData(
    "made",
    {
        "one": Pairs(tuple(TEXTS[:20]), tuple(TEXTS[HALF : HALF + 20]), SCORES[:20]),
        "two": Pairs(tuple(TEXTS[20:HALF]), tuple(TEXTS[HALF + 20 : 2 * HALF]), SCORES[20:]),
    },
    {},
)


@pytest.fixture(scope="module")
def encoder(checkpoint, data_bin):
    return SentenceEncoder.from_pretrained(checkpoint, data_bin, tokenizer=WhitespaceTokenizer(), device="cpu")


def test_each_point_is_what_that_pooling_scores(encoder):
    result = score_layers(encoder, DATA, batch_size=7)
    assert list(result) == ["cls", "mean", "max"]
    assert math.isnan(result["cls"][0])  # <s> alone: the same for all texts
    first, second = TEXTS[:HALF], TEXTS[HALF : 2 * HALF]

    def expected(pooling):
        vectors = [encoder.encode(texts, pooling=pooling) for texts in (first, second)]
        return 100 * spearman(cosine(*vectors), SCORES)

    for layer in range(3):
        assert result["mean"][layer] == pytest.approx(expected(f"layer:{layer}"), abs=0.05)
    for pooling in ("cls", "max"):
        assert result[pooling][-1] == pytest.approx(expected(pooling), abs=0.05)
    assert abs(result["mean"][0] - result["max"][0]) > 0.5
    figure = draw_layers({"x": result}, "made")
    drawn = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    np.testing.assert_array_equal(drawn["mean"], result["mean"])


def test_rounding_of_the_first_token_is_not_taken_for_a_score(encoder, monkeypatch):
    exact = encoder.model.hidden_states
    rng = np.random.default_rng(4)

    def rounded(tokens):
        return [state * (1 + 1e-3 * torch.from_numpy(rng.random(state.shape))) for state in exact(tokens)]

    monkeypatch.setattr(encoder.model, "hidden_states", rounded)
    result = score_layers(encoder, DATA, ["mean", "cls"])
    assert math.isnan(result["cls"][0]) and np.isfinite(result["mean"]).all()


def test_pairs_are_the_highest_and_the_lowest_without_doubles():
    pairs, scores = choose_pairs(DATA, 4)
    gold = {
        (first, second): score
        for part in DATA.subsets.values()
        for first, second, score in zip(part.first, part.second, part.scores, strict=True)
    }
    assert [gold[pair] for pair in pairs] == [5.0] * 4 + [0.0] * 4 and scores == (5.0, 0.0)
    assert choose_pairs(DATA, 4)[0] == pairs != choose_pairs(DATA, 4, seed=2)[0]
    doubles = StsData("d", {"x": Pairs(("a", "a", "b", "c", "d"), ("a", "b", "b", "d", "e"), np.arange(5.0))}, {})
    with pytest.raises(UserError, match="--pairs 2: d has 3 different pairs"):
        choose_pairs(doubles, 2)


def test_the_map_has_near_texts_near_and_is_the_same_each_time():
    same = [(text, text + " ") for text in TEXTS[:12]]
    apart = list(zip(TEXTS[12:24], TEXTS[24:36], strict=True))
    one = map_pairs(CachedEncoder(Words(), name="words"), [*same, *apart])
    assert one.shape == (24, 2, 2) and np.isfinite(one).all()
    length = np.linalg.norm(one[:, 0] - one[:, 1], axis=1)
    assert length[:12].mean() < length[12:].mean() / 2
    again = map_pairs(CachedEncoder(Words(), name="words"), [*same, *apart])
    np.testing.assert_array_equal(one, again)
    figure = draw_embedding({"words": one, "other": again}, (5.0, 0.0))
    assert [axis.get_title() for axis in figure.axes] == ["words", "other"]
    assert [text.get_text() for text in figure.legends[0].get_texts()][0] == "pairs scored 5 or more"
    with pytest.raises(UserError, match="5 encoders are too many"):
        draw_embedding(dict.fromkeys("abcde", one), (5.0, 0.0))
