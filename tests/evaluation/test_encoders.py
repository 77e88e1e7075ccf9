"""The cache in front of an encoder, and what it refuses."""

import numpy as np
import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import BATCHES_PER_BLOCK, CachedEncoder, to_vectors
from tests.evaluation.toys import Letters, Words


def test_every_sentence_is_embedded_once():
    letters = Letters()
    cached = CachedEncoder(letters)
    texts = ["abc", "b", "abc", "longer text", ""]
    np.testing.assert_array_equal(cached.encode(texts), Letters().encode(texts))
    np.testing.assert_array_equal(cached.encode(["zz", "b"]), Letters().encode(["zz", "b"]))
    assert letters.asked == [["longer text", "abc", "b", ""], ["zz"]]
    assert cached.sentences == 5 and cached.seconds > 0 and cached.padding_share is None
    assert cached.encode(["b"]).dtype == np.float32


def test_blocks_hold_whole_batches():
    letters = Letters()
    texts = [f"t{number}" for number in range(3 * BATCHES_PER_BLOCK)]
    CachedEncoder(letters, batch_size=2).embed(texts)
    assert [len(block) for block in letters.asked] == [2 * BATCHES_PER_BLOCK, BATCHES_PER_BLOCK]
    np.testing.assert_array_equal(CachedEncoder(Letters(), batch_size=1).encode(texts), Letters().encode(texts))


def test_transform_comes_after_the_cache():
    cached = CachedEncoder(Letters())
    cached.transform = lambda vectors: vectors[:, :1] * 2
    assert cached.encode(["aa", "b"]).tolist() == [[4.0], [0.0]]


def test_it_describes_its_encoder():
    assert CachedEncoder(Words(8)).describe() == {"class": "hashed words", "dimension": 8}
    cached = CachedEncoder(Letters())
    assert cached.describe() == {"class": "tests.evaluation.toys.Letters"}
    cached.notes["whitening"] = {"file": "x"}
    assert cached.describe()["whitening"] == {"file": "x"}


@pytest.mark.parametrize(
    "returned", [torch.ones(2, 3), [torch.ones(3)] * 2, [[1, 1, 1]] * 2, np.ones((2, 3), np.float16)]
)
def test_arrays_of_any_kind(returned):
    vectors = to_vectors(returned, 2, "x")
    assert vectors.dtype == np.float32 and vectors.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (np.ones((3, 2)), r"encoder x: returned an array of shape \(3, 2\) for 2 sentences"),
        (np.ones(2), r"encoder x: returned an array of shape \(2,\)"),
        (np.ones((2, 0)), r"encoder x: returned an array of shape \(2, 0\)"),
        ([[1.0], [1.0, 2.0]], "encoder x: returned list, not vectors of equal length"),
        (None, r"encoder x: returned an array of shape \(\)"),
        ([[1.0], [float("nan")]], "encoder x: 1 of 2 vectors contain NaN"),
    ],
)
def test_what_is_no_matrix_is_refused(returned, message):
    with pytest.raises(UserError, match=message):
        to_vectors(returned, 2, "x")


def test_other_mistakes():
    with pytest.raises(UserError, match="encoder x: has no method encode"):
        CachedEncoder(object(), name="x")
    with pytest.raises(UserError, match="batch size 0"):
        CachedEncoder(Letters(), batch_size=0)
    with pytest.raises(UserError, match="the list of sentences is empty"):
        CachedEncoder(Letters()).encode([])
    changing = Words(4)
    cached = CachedEncoder(changing, name="x")
    cached.encode(["a"])
    changing.size = 5
    with pytest.raises(UserError, match="encoder x: vectors have dimension 5, earlier ones 4"):
        cached.encode(["b"])
