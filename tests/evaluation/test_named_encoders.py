"""Encoders by their names on the command line."""

import numpy as np
import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.named_encoders import load_encoders
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import sentences
from tests.evaluation.toys import INSTANCE, Letters, Words

TOYS = "tests.evaluation.toys"


def test_factories_classes_and_objects():
    ((label, encoder),) = load_encoders(f"{TOYS}:Letters", [None])
    assert label == f"{TOYS}:Letters" and isinstance(encoder, Letters)
    assert load_encoders(f"{TOYS}:INSTANCE", [None])[0][1] is INSTANCE
    loaded = load_encoders(f"{TOYS}:pooled", ["mean", "max"])
    assert [label for label, _ in loaded] == [f"{TOYS}:pooled mean", f"{TOYS}:pooled max"]
    assert [type(encoder) for _, encoder in loaded] == [Letters, Words]


def test_a_module_of_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "my_own_encoders.py").write_text(
        "class Mine:\n    def encode(self, s, batch_size=1):\n        return s\n"
    )
    monkeypatch.chdir(tmp_path)
    assert type(load_encoders("my_own_encoders:Mine", [None])[0][1]).__name__ == "Mine"


def test_poolings_of_a_checkpoint_share_its_model(checkpoint, data_bin):
    loaded = load_encoders(
        str(checkpoint), [None, "cls", "layer:1"], data_bin=str(data_bin), tokenizer=WhitespaceTokenizer, device="cpu"
    )
    assert [label for label, _ in loaded] == [f"{checkpoint} {name}" for name in ("mean", "cls", "layer:1")]
    first, second, third = (encoder for _, encoder in loaded)
    assert first.model is second.model is third.model
    texts = sentences(5, seed=3)
    np.testing.assert_allclose(second.encode(texts), first.encode(texts, pooling="cls"), atol=1e-6)
    assert second.describe()["pooling"] == "cls" and second.describe()["checkpoint"] == str(checkpoint)


@pytest.mark.parametrize(
    ("name", "pooling", "message"),
    [
        ("nowhere.pt", None, "--encoder nowhere.pt: neither a checkpoint file nor package.module:factory"),
        (f"{TOYS}:missing", None, "cannot import it .*missing"),
        ("no_such_package.x:y", None, "cannot import it .No module named 'no_such_package'"),
        (f"{TOYS}:NUMBER", None, "is a int, neither an encoder nor a function"),
        (f"{TOYS}:Letters", "cls", "takes no argument `pooling`"),
        (f"{TOYS}:INSTANCE", "cls", "is an encoder itself"),
        (__file__, None, "a checkpoint needs --data-bin"),
    ],
)
def test_mistakes(name, pooling, message):
    with pytest.raises(UserError, match=message):
        load_encoders(name, [pooling])
