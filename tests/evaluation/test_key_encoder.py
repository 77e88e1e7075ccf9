"""MoCo's two encoders in one checkpoint: either can be taken."""

from pathlib import Path

import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import load_model
from tests.training import build


def test_either_encoder_is_taken(data_bin: Path, tmp_path: Path) -> None:
    trainer, dataset = build(data_bin, "--criterion", "clear_moco", "--queue-size", "20", "--pooling", "mean")
    for number in range(3):
        trainer.train_step([dataset.collater([dataset[4 * number + k] for k in range(4)])])
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(tmp_path / "moco.pt"), {})
    model = trainer.get_model()
    for key_encoder, expected in ((False, model.encoder.sentence_encoder), (True, model.key_encoder.encoder)):
        loaded = load_model(tmp_path / "moco.pt", data_bin, key_encoder=key_encoder).model.encoder.sentence_encoder
        pairs = list(zip(loaded.parameters(), expected.parameters(), strict=True))
        assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    assert not torch.equal(
        model.encoder.sentence_encoder.layers[0].fc1.weight, model.key_encoder.encoder.layers[0].fc1.weight
    )


def test_a_checkpoint_without_one_says_so(checkpoint: Path, data_bin: Path) -> None:
    with pytest.raises(UserError, match="holds no key encoder, which only --criterion clear_moco"):
        load_model(checkpoint, data_bin, key_encoder=True)
