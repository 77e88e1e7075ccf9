"""A checkpoint with a window is Hugging Face's Longformer: same states, beyond the window too; and back in again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import load_model
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.interop import exporting
from fairseq_clear.interop.exporting import export
from fairseq_clear.interop.importing import import_hf
from fairseq_clear.models.hf_source import HfSource
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import WORDS
from tests.interop.folders import NEEDS_HF, make_folder, their_states

pytestmark = [pytest.mark.slow, NEEDS_HF]

TEXTS = [" ".join(WORDS), "A man plays, isn't he?", "", "Caf\u00e9 and more of it " * 9]


def windowed(checkpoint: Path, target: Path, window: int) -> Path:
    """The checkpoint with another --attention-window, which no weight tells."""
    state = torch.load(checkpoint, weights_only=False)
    state["cfg"]["model"].attention_window = window
    torch.save(state, target)
    return target


@pytest.fixture(scope="module", params=["bert", "roberta", "xlm-roberta"])
def long(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with an imported model.pt of 100 positions and window.pt, the same with a window of 6."""
    parent = tmp_path_factory.mktemp(request.param)
    source = make_folder(parent / "hf", request.param, max_position_embeddings=100)
    import_hf(source, parent / "ours")
    windowed(parent / "ours" / "model.pt", parent / "ours" / "window.pt", 6)
    return parent / "ours"


def test_longformer_computes_the_same(long: Path, tmp_path: Path) -> None:
    import transformers

    parities = export(long / "window.pt", long, tmp_path / "hf", "hf", load_tokenizer(long))
    assert parities[0].hidden_states < 2e-5
    states = their_states(tmp_path / "hf", TEXTS, 100, marked=True)
    assert max(len(state) for state in states) > 60
    encoders = (SentenceEncoder.from_pretrained(long / name, long) for name in ("window.pt", "model.pt"))
    vectors, full = (encoder.encode(TEXTS, pooling="mean") for encoder in encoders)
    np.testing.assert_allclose(vectors, torch.stack([state.mean(0) for state in states]), atol=2e-5)
    others = [full]
    for changes in ({"marked": False}, {"attention_window": 8}, {"attention_window": 4}):
        wrong = their_states(tmp_path / "hf", TEXTS, 100, **{"marked": True, **changes})
        others.append(torch.stack([state.mean(0) for state in wrong]).numpy())
    assert all(np.abs(vectors - other)[0].max() > 1e-3 for other in others)
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "attention window 6" in card and 'inputs["global_attention_mask"] = ' in card
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["model_type"], config["attention_window"]) == ("longformer", [6, 6, 6])
    assert config["max_position_embeddings"] == 100 + config["pad_token_id"] + 1
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(str(tmp_path / "hf")).eval()
    loaded, ids = load_model(long / "window.pt", long), load_tokenizer(long).ids()
    rows = torch.tensor([ids[symbol] for symbol in loaded.dictionary.symbols if symbol != "<del>"])
    tokens = torch.randint(5, len(rows) - 1, (1, 50))
    tokens[0, 0] = 0
    is_start = (torch.arange(50) == 0).long()[None]
    with torch.no_grad():
        logits, _ = loaded.model(tokens)
        expected = theirs(input_ids=rows[tokens], global_attention_mask=is_start).logits
    torch.testing.assert_close(logits[..., : len(rows)], expected[..., rows], atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("spoil", ["second projections", "window"])
def test_a_wrong_export_is_noticed(spoil: str, long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_hf = exporting.to_hf

    def spoiled(*args: Any, **kwargs: Any) -> HfSource:
        made = to_hf(*args, **kwargs)
        if spoil == "window":
            made.base.config.attention_window = [12, 12, 12]
        else:
            made.base.encoder.layer[0].attention.self.key_global.weight.data *= 2
        return made

    monkeypatch.setattr(exporting, "to_hf", spoiled)
    with pytest.raises(UserError, match="nothing was written"):
        export(long / "window.pt", long, tmp_path / "hf", "hf", load_tokenizer(long))
    assert list(tmp_path.iterdir()) == []


def test_formats_without_a_window_refuse_one(long: Path, tmp_path: Path) -> None:
    for form, message in (("fairseq", "attends to all"), ("sentence-transformers", "global attention")):
        with pytest.raises(UserError, match=message):
            export(long / "window.pt", long, tmp_path / form, form, load_tokenizer(long))
    assert list(tmp_path.iterdir()) == []


def test_a_window_over_all_positions_is_none(checkpoint: Path, data_bin: Path, tmp_path: Path) -> None:
    wide = windowed(checkpoint, tmp_path / "wide.pt", 48)
    export(wide, data_bin, tmp_path / "fairseq", "fairseq", WhitespaceTokenizer())
    export(wide, data_bin, tmp_path / "hf", "hf", WhitespaceTokenizer())
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["model_type"] == "roberta"
    narrow = windowed(checkpoint, tmp_path / "narrow.pt", 42)
    export(narrow, data_bin, tmp_path / "narrow", "hf", WhitespaceTokenizer())
    assert json.loads((tmp_path / "narrow" / "config.json").read_text())["model_type"] == "longformer"
