"""fairseq's own archive, as roberta.base's is: a Namespace in the checkpoint, ``decoder.`` in its keys, GPT-2's tokenizer."""

import argparse
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_clear.cli.main import main
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.interop.stock import build_model, settings_of
from fairseq_clear.models.pretrained_encoder import encoder_settings
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.tokenizers import Gpt2Tokenizer
from fairseq_clear.text.vocabulary import build_dictionary
from tests.conftest import rejected
from tests.interop.folders import NEEDS_HF, their_states
from tests.preparation.corpora import gpt2_files

pytestmark = [pytest.mark.slow, NEEDS_HF]

TEXTS = ["the cat", "", "Caf\u00e9 the the"]


def write_archive(folder: Path, encoder_json: Path, vocab_bpe: Path, *, max_positions: int = 30) -> None:
    """An unpacked archive without GPT-2's files, in the form of fairseq 0.9."""
    folder.mkdir()
    dictionary = build_dictionary(Gpt2Tokenizer(encoder_json, vocab_bpe))
    dictionary.save(str(folder / "dict.txt"))
    dictionary.add_symbol("<mask>")
    flags = {"encoder-layers": 2, "encoder-embed-dim": 16, "encoder-ffn-embed-dim": 32, "encoder-attention-heads": 2}
    given = {**flags, "max-positions": max_positions, "projection-layers": 0}
    cfg = settings_of(folder, "clear_lm", "clear_roberta", given)
    weights = {
        key.replace("encoder.", "decoder.", 1): value + 0.1 * torch.randn(value.shape)
        for key, value in build_model(cfg, dictionary).state_dict().items()
        if not key.endswith("version")
    }
    weights["decoder.sentence_encoder.version"] = torch.tensor([3.0])
    weights["decoder.lm_head.weight"] = weights["decoder.sentence_encoder.embed_tokens.weight"]
    args = argparse.Namespace(
        arch="roberta_base", task="masked_lm", criterion="masked_lm", data="/nowhere", tokens_per_sample=max_positions
    )
    vars(args).update({name.replace("-", "_"): value for name, value in flags.items()}, max_positions=max_positions)
    state = {"args": args, "model": weights, "extra_state": {"epoch": 1}, "optimizer_history": [{"num_updates": 5}]}
    state["optimizer_history"][0] |= {"criterion_name": "x", "optimizer_name": "x", "lr_scheduler_state": {}}
    torch.save(state, folder / "model.pt")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive whose GPT-2 files are next to it."""
    write_archive(tmp_path / "roberta.tiny", *gpt2_files(tmp_path))
    return tmp_path / "roberta.tiny"


def gpt2_flags(folder: Path) -> list[str]:
    return ["--gpt2-encoder-json", str(folder / "encoder.json"), "--gpt2-vocab-bpe", str(folder / "vocab.bpe")]


def test_it_is_taken_as_it_is_and_exported(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "roberta.tiny.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(archive, "roberta.tiny")
    vectors = []
    for number, source in enumerate((archive, packed)):
        dest = tmp_path / f"ours{number}"
        assert main(["import", str(source), "--dest", str(dest), *gpt2_flags(tmp_path)]) == 0
        said = capsys.readouterr().out
        assert "largest difference to stock fairseq's roberta" in said
        assert said.splitlines()[-1].endswith(f"--encoder-from {dest}")
        assert encoder_settings(str(dest / "model.pt"))["max_positions"] < 75
        assert (dest / "model.pt").read_bytes() == (archive / "model.pt").read_bytes()
        assert (dest / "dict.txt").read_bytes() == (archive / "dict.txt").read_bytes()
        assert isinstance(load_tokenizer(dest), Gpt2Tokenizer)
        vectors.append(SentenceEncoder.from_pretrained(dest / "model.pt", dest).encode(TEXTS))
    np.testing.assert_array_equal(*vectors)
    command = ["export", str(dest / "model.pt"), "--data-bin", str(dest), "--format", "hf", "--dest"]
    assert main([*command, str(tmp_path / "hf")]) == 0
    expected = torch.stack([state.mean(0) for state in their_states(tmp_path / "hf", TEXTS, 30)]).numpy()
    encoder = SentenceEncoder.from_pretrained(dest / "model.pt", dest)
    np.testing.assert_allclose(encoder.encode(TEXTS, pooling="mean"), expected, atol=2e-5)


def test_what_is_missing_is_named(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["import", str(archive), "--dest", str(tmp_path / "ours")]
    for more, message in (
        ([], "needs GPT-2's byte-level BPE"),
        (gpt2_flags(tmp_path)[:2], "belong together"),
        ([*gpt2_flags(tmp_path), "--arch", "clear_hf"], "leave --pooling and --arch clear_hf out"),
    ):
        rejected(capsys, [*command, *more], message)
    (tmp_path / "broken.tar.gz").write_bytes(b"nothing")
    rejected(capsys, ["import", tmp_path / "broken.tar.gz", "--dest", tmp_path / "ours"], "cannot unpack it")
    assert not (tmp_path / "ours").exists()
