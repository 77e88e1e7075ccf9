"""The cache in front of an encoder, what it rejects, encoders by their names, and word vectors against means by hand."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import BATCHES_PER_BLOCK, CachedEncoder, WordVectors, load_encoders, to_vectors
from fairseq_clear.evaluation.postprocessing import first_dimensions
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import sentences
from tests.evaluation.toys import INSTANCE, Letters, Words

TOYS = "tests.evaluation.toys"


def test_every_sentence_is_embedded_once():
    letters = Letters()
    cached = CachedEncoder(letters)
    texts = ["abc", "b", "abc", "longer text", ""]
    np.testing.assert_array_equal(cached.encode(texts), Letters().encode(texts))
    np.testing.assert_array_equal(cached.encode(["zz", "b"]), Letters().encode(["zz", "b"]))
    assert letters.asked == [["longer text", "abc", "b", ""], ["zz"]]
    assert cached.sentences == 5 and cached.seconds > 0
    assert cached.encode(["b"]).dtype == np.float32


def test_blocks_hold_whole_batches():
    letters = Letters()
    texts = [f"t{number}" for number in range(3 * BATCHES_PER_BLOCK)]
    CachedEncoder(letters, batch_size=2).embed(texts)
    assert [len(block) for block in letters.asked] == [2 * BATCHES_PER_BLOCK, BATCHES_PER_BLOCK]
    np.testing.assert_array_equal(CachedEncoder(Letters(), batch_size=1).encode(texts), Letters().encode(texts))


def test_arrays_of_any_kind_become_a_matrix():
    for returned in (torch.ones(2, 3), [torch.ones(3)] * 2, [[1, 1, 1]] * 2, np.ones((2, 3), np.float16)):
        vectors = to_vectors(returned, 2, "x")
        assert vectors.dtype == np.float32 and vectors.tolist() == [[1.0] * 3] * 2
    for returned, message in (
        (np.ones((3, 2)), r"returned an array of shape \(3, 2\) for 2 sentences"),
        (np.ones(2), r"returned an array of shape \(2,\)"),
        (np.ones((2, 0)), r"returned an array of shape \(2, 0\)"),
        ([[1.0], [1.0, 2.0]], "returned list, not vectors of equal length"),
        (None, r"returned an array of shape \(\)"),
        ([[1.0], [float("nan")]], "1 of 2 vectors contain NaN"),
    ):
        with pytest.raises(UserError, match=f"encoder x: {message}"):
            to_vectors(returned, 2, "x")


def test_an_encoder_that_changes_its_dimension():
    changing = Words(4)
    cached = CachedEncoder(changing, name="x")
    cached.encode(["a"])
    changing.size = 5
    with pytest.raises(UserError, match="encoder x: vectors have dimension 5, earlier ones 4"):
        cached.encode(["b"])


def test_factories_classes_and_objects():
    ((label, encoder),) = load_encoders(f"{TOYS}:Letters", [None])
    assert label == f"{TOYS}:Letters" and isinstance(encoder, Letters)
    assert load_encoders(f"{TOYS}:INSTANCE", [None])[0][1] is INSTANCE
    loaded = load_encoders(f"{TOYS}:pooled", ["mean", "max"])
    assert [label for label, _ in loaded] == [f"{TOYS}:pooled mean", f"{TOYS}:pooled max"]
    assert [type(encoder) for _, encoder in loaded] == [Letters, Words]


def test_poolings_of_a_checkpoint_share_its_model(checkpoint, data_bin):
    options = {"data_bin": str(data_bin), "tokenizer": WhitespaceTokenizer, "device": "cpu"}
    loaded = load_encoders(str(checkpoint), [None, "cls", "layer:1"], **options)
    assert [label for label, _ in loaded] == [f"{checkpoint} {name}" for name in ("mean", "cls", "layer:1")]
    first, second, third = (encoder for _, encoder in loaded)
    assert first.model is second.model is third.model
    texts = sentences(5, seed=3)
    np.testing.assert_allclose(second.encode(texts), first.encode(texts, pooling="cls"), atol=1e-6)
    assert second.describe()["pooling"] == "cls" and second.describe()["checkpoint"] == str(checkpoint)


def test_names_that_are_wrong(tmp_path, monkeypatch):
    (tmp_path / "unparsable.py").write_text("def make(:")
    (tmp_path / "failing.py").write_text("def make():\n    raise RuntimeError('no\\nGPU')")
    monkeypatch.chdir(tmp_path)
    for name, pooling, message in (
        ("nowhere.pt", None, "--encoder nowhere.pt: neither a checkpoint file nor package.module:factory"),
        (str(tmp_path), None, "of a folder, give checkpoint/model.pt in it, or import it first"),
        (f"{TOYS}:missing", None, "cannot import it .*missing"),
        ("no_such_package.x:y", None, "cannot import it .ModuleNotFoundError: No module named 'no_such_package'"),
        (f"{TOYS}:NUMBER", None, "calling it failed .TypeError: 'int'"),
        (f"{TOYS}:Letters", "cls", "calling it with pooling='cls' failed .TypeError"),
        (__file__, None, "a checkpoint needs --data-bin"),
        ("unparsable:make", None, r"cannot import it \(SyntaxError: .*; install it"),
        ("failing:make", None, r"calling it failed \(RuntimeError: no\)"),
    ):
        with pytest.raises(UserError, match=message):
            load_encoders(name, [pooling])


def test_texts_are_means_of_their_words(tmp_path: Path) -> None:
    for name, pack in (("small.vec.gz", gzip.compress), ("small.vec", bytes)):
        (tmp_path / name).write_bytes(pack(b"3 2\nfilm 1 0\ngood 0 1\nNew York 5 5\n"))
        encoder = WordVectors(tmp_path / name)
        found = encoder.encode(["Good film, film!", "unheard of", ""])
        np.testing.assert_allclose(found, [[2 / 3, 1 / 3], [0, 0], [0, 0]], rtol=1e-6)
        assert encoder.describe()["words"] == 3
    for text, message in (
        ("film 1 0\ngood 1\n", ":2: not a word and 2 numbers"),
        ("film 1 x\n", ":1: malformed number"),
        ("", "no word vector"),
    ):
        (tmp_path / "bad.vec").write_text(text)
        with pytest.raises(UserError, match=message):
            WordVectors(tmp_path / "bad.vec")
    with pytest.raises(UserError, match="cannot read it"):
        WordVectors(tmp_path / "none.vec")


def test_a_vector_shorter_than_in_training_becomes_zero() -> None:
    vectors = np.array([[1e-9, 0, 1], [1e-7, 0, 1]], np.float32)
    assert first_dimensions(vectors, 2, "encoder").tolist() == [[0, 0], [1, 0]]
