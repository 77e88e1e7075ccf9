"""SentenceEncoder on checkpoints that fairseq-train wrote: ours, stock RoBERTa's, and what is none."""

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_clear import register
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import load_model
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.models.encoding import evaluating
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import WORDS, run, sentences, tool
from tests.training import build

TEXTS = ["", *sentences(30, seed=9)]
TOKENIZER = WhitespaceTokenizer()


@pytest.fixture(scope="module")
def stock(data_bin, tmp_path_factory):
    """A checkpoint of stock fairseq, which knows nothing of the plugin."""
    folder = tmp_path_factory.mktemp("stock")
    run(
        *(*tool("train"), data_bin, "--save-dir", folder, "--cpu", "--task", "masked_lm", "--criterion", "masked_lm"),
        *"--arch roberta_base --encoder-layers 2 --encoder-embed-dim 16 --encoder-ffn-embed-dim 32".split(),
        *("--encoder-attention-heads", "2", "--tokens-per-sample", "30", "--max-positions", "40", "--max-update", "2"),
        *("--batch-size", "8", "--optimizer", "adam", "--lr", "0.01", "--disable-validation"),
    )
    return folder / "checkpoint_last.pt"


def by_fairseq(path, texts, embed):
    """The oracle: the model as fairseq itself loads it, one text at a time."""
    register()
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    known = task.source_dictionary
    with evaluating(model):
        rows = [torch.tensor([[0, *(known.index(word) for word in text.split()), 2]]) for text in texts]
        return np.array([embed(model, row)[0].numpy() for row in rows])


def changed(path, target, change):
    state = torch.load(path)
    change(state)
    torch.save(state, target)
    return target


def test_vectors_are_those_of_the_trained_model(encoder, checkpoint):
    expected = by_fairseq(checkpoint, TEXTS, lambda model, row: model.embed(row))
    vectors = encoder.encode(TEXTS)
    assert vectors.dtype == np.float32 and vectors.shape == (len(TEXTS), 32)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert not np.allclose(encoder.encode(TEXTS, pooling="cls"), expected, atol=1e-2)


def test_the_conventions_of_sentence_transformers(encoder):
    vectors = encoder.encode(TEXTS, batch_size=3, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    one = encoder.encode(TEXTS[4], normalize=True)
    assert one.shape == (32,)
    np.testing.assert_allclose(one, vectors[4], atol=1e-5)
    assert encoder.encode([TEXTS[4]]).shape == (1, 32) and encoder.encode([]).shape == (0, 32)
    np.testing.assert_allclose(encoder.encode(TEXTS[::-1], 1, "max")[::-1], encoder.encode(TEXTS, 64, "max"), atol=1e-5)
    assert not np.allclose(encoder.encode(TEXTS[::-1], 1, "max"), encoder.encode(TEXTS, 64, "max"), atol=1e-2)
    assert (encoder.encode(np.array(TEXTS)) == encoder.encode(TEXTS)).all()


def test_long_texts_are_cut_with_one_warning(checkpoint, data_bin, caplog):
    encoder = SentenceEncoder.from_pretrained(checkpoint, data_bin, tokenizer=TOKENIZER)
    long = " ".join(WORDS[:40])
    with caplog.at_level(logging.WARNING, "fairseq_clear"):
        encoder.encode([long, "", long])
        assert encoder.last.truncated == 2 and 0 < encoder.last.padding_share < 1
        encoder.max_length = 4
        encoder.encode([long, WORDS[0]])
        encoder.encode(WORDS[0])
    expected = ["2 of 3 texts are longer than 24 tokens", "1 of 2 texts are longer than 4 tokens"]
    assert caplog.messages == [f"{said} and were cut" for said in expected]
    assert encoder.last.truncated == 0


def test_a_tokenizer_of_other_text_is_noticed(encoder, caplog):
    with caplog.at_level(logging.WARNING, "fairseq_clear"):
        encoder.encode(["none of these", f"{WORDS[0]} known"])
        encoder.encode([f"{WORDS[0]} {WORDS[1]} unknown"])
    (said,) = caplog.messages
    assert said.startswith("80 % of the tokens are not in the vocabulary: is WhitespaceTokenizer the tokenizer")


def test_nothing_of_the_training_run_is_needed(encoder, checkpoint, data_bin, tmp_path):
    def forget(state):
        state["cfg"]["task"].update(data="/nowhere", synonyms="/nowhere.npz", augment="subs", seed=5)
        state["cfg"]["model"].data = "/nowhere"

    moved = changed(checkpoint, tmp_path / "moved.pt", forget)
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(data_bin / "dict.txt", folder)
    loaded = SentenceEncoder.from_pretrained(moved, folder, tokenizer=TOKENIZER)
    assert (loaded.encode(TEXTS) == encoder.encode(TEXTS)).all()
    with pytest.raises(SystemExit):  # as fairseq would load it
        checkpoint_utils.load_model_ensemble_and_task([str(moved)])


@pytest.mark.slow
def test_stock_roberta_is_pooled_by_the_mean(stock, data_bin, encoder):
    def mean(model, row):
        return model.encoder.extract_features(row)[0].mean(1)

    loaded = SentenceEncoder.from_pretrained(stock, data_bin, tokenizer=TOKENIZER)
    assert (loaded.pooling, loaded.dimension, loaded.max_length) == ("mean", 16, 40)
    assert loaded.dictionary.index("<del>") == loaded.dictionary.unk()
    assert encoder.dictionary.index("<del>") == len(encoder.dictionary) - 1
    expected = by_fairseq(stock, TEXTS, mean)
    np.testing.assert_allclose(loaded.encode(TEXTS), expected, atol=1e-5)
    assert not np.allclose(loaded.encode(TEXTS, pooling="cls"), expected, atol=1e-2)


def refuse(message, checkpoint, data_bin):
    with pytest.raises(UserError, match=message):
        SentenceEncoder.from_pretrained(checkpoint, data_bin, tokenizer=TOKENIZER)


def test_checkpoints_that_do_not_fit(checkpoint, data_bin, tmp_path):
    """Damaged and hostile ones: tests/faults."""
    refuse("absent.pt: no such checkpoint", tmp_path / "absent.pt", data_bin)
    refuse("is a folder, name the .pt file", tmp_path, data_bin)
    torch.save({"weights": torch.ones(2)}, tmp_path / "other.pt")
    refuse("other.pt: not a complete checkpoint", tmp_path / "other.pt", data_bin)
    for name, value, said in (
        ("_name", "transformer_lm_gpt", "its architecture transformer_lm_gpt is not a RoBERTa or clear_hf"),
        ("encoder_ffn_embed_dim", 128, "weights do not fit"),
    ):
        path = changed(checkpoint, tmp_path / "a.pt", lambda state: setattr(state["cfg"]["model"], name, value))  # noqa: B023
        refuse(said, path, data_bin)


@pytest.mark.slow
def test_other_vocabularies(checkpoint, stock, data_bin, tmp_path):
    lines = (data_bin / "dict.txt").read_text().splitlines()
    for name, kept in {
        "fewer": lines[:-1],
        "swapped": [lines[1], lines[0], *lines[2:]],
        "more": [*lines, "new 1", "newer 1"],
        "damaged": ["foo", *lines],
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "dict.txt").write_text("\n".join(kept) + "\n")
    # of the same size: only the hash that the task left in the checkpoint tells
    for name in ("fewer", "swapped", "more"):
        refuse("differs from .*give the data folder it was trained on", checkpoint, tmp_path / name)
    unrecorded = changed(checkpoint, tmp_path / "u.pt", lambda state: state.pop("task_state"))
    for path in (unrecorded, stock):
        refuse("its vocabulary differs from", path, tmp_path / "more")
    refuse("dict.txt: not a dict.txt of fairseq", stock, tmp_path / "damaged")
    assert SentenceEncoder.from_pretrained(unrecorded, tmp_path / "swapped", tokenizer=TOKENIZER).dimension == 32


def test_the_query_encoder_of_a_queue_is_taken(data_bin: Path, tmp_path: Path) -> None:
    trainer, dataset = build(data_bin, "--criterion", "clear_moco", "--queue-size", "20", "--pooling", "mean")
    for number in range(3):
        trainer.train_step([dataset.collater([dataset[4 * number + k] for k in range(4)])])
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(tmp_path / "moco.pt"), {})
    model = trainer.get_model()
    loaded = load_model(tmp_path / "moco.pt", data_bin).model.encoder.sentence_encoder
    pairs = list(zip(loaded.parameters(), model.encoder.sentence_encoder.parameters(), strict=True))
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    assert not torch.equal(loaded.layers[0].fc1.weight, model.key_encoder.encoder.layers[0].fc1.weight)
