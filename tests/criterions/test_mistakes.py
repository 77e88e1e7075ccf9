"""Settings that a criterion does not accept: exit status 2 and one line."""

from pathlib import Path

import pytest

from tests.training import refuses

NT_XENT, MOCO = "--criterion clear_nt_xent ", "--criterion clear_moco --queue-size 20 "
GUIDED = "--criterion clear_self_guided --augment none "
MATRYOSHKA = "--augment none --mlm-weight 0 --projection-layers 0 --matryoshka "

MISTAKES = {
    NT_XENT + "--objective opt3": "valid are nt-xent",
    NT_XENT + "--contrastive-weight 0 --mlm-weight 0": "leave nothing to learn",
    NT_XENT + "--pooling layer:9": "layers 0 (embeddings) to 2",
    NT_XENT + "--false-negatives teacher": "--false-negatives: there is no 'teacher'; choose from guide, none",
    NT_XENT + "--anchor-mlm joint": "--anchor-mlm joint: only works with --views span, whose anchors it masks",
    MATRYOSHKA + "64,32": "--matryoshka 64,32: give ascending whole numbers above 0",
    MATRYOSHKA + "64,129": "--matryoshka 64,129: the vectors have 128 dimensions; give none above 128",
    MATRYOSHKA + "64 --projection-dim 16 --projection-layers 1": "the vectors have 16 dimensions",
    MATRYOSHKA + "64 --contrastive-weight 0 --mlm-weight 1": "needs the contrastive term, which --contrastive-weight 0",
    MOCO + "--objective nt-xent": "valid are info-nce",
    MOCO + "--key-encoder shared": "this criterion's is momentum",
    GUIDED + "--key-encoder momentum": "this criterion's is frozen",
    GUIDED + "--guide-layers 3": "layers from 0 (embeddings) to 2",
    GUIDED + "--guide-layers 2-1": "--guide-layers 2-1: give all",
    GUIDED + "--guide-layers upper": "--guide-layers upper: give all",
    GUIDED + "--frozen-layers 4": "give 0 to 3",
    GUIDED + "--views paraphrase:original": "give two or more",
    GUIDED + "--views paraphrase:original,de": "paraphrase/de/train does not exist",
    GUIDED + "--hard-negatives x": "only --criterion clear_nt_xent",
}


@pytest.mark.parametrize("flags", MISTAKES)
def test_mistakes_are_one_line(flags: str, data_bin: Path, caplog: pytest.LogCaptureFixture) -> None:
    refuses(caplog, MISTAKES[flags], data_bin, *flags.split())
