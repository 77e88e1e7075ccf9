"""GLUE's pairs with an imported BERT, whose segments are kept on request."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq import options

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel, load_model
from fairseq_clear.evaluation.glue.glue_running import GlueRun
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS, RECIPES
from fairseq_clear.interop.importing import import_hf
from tests.interop.folders import NEEDS_HF, make_folder

pytestmark = [pytest.mark.slow, NEEDS_HF]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("glue")
    for kind in ("bert", "roberta"):
        make_folder(parent / kind, kind)
        import_hf(parent / kind, parent / f"{kind}1")
    import_hf(parent / "bert", parent / "bert2", segments=2)
    return parent


def load(folder: Path) -> LoadedModel:
    return load_model(folder / "model.pt", folder)


def test_the_command_keeps_epsilon_and_segments(folders: Path, tmp_path: Path) -> None:
    for name, segments in (("bert1", 1), ("bert2", 2)):
        args = parsed(folders / name, tmp_path)
        assert (args.layer_norm_eps, args.segments) == (1e-12, segments)
        assert (args.separator_token is not None) == (segments == 1)


def parsed(encoder: Path, folder: Path) -> Namespace:
    """The settings that fairseq-train makes of the command."""
    record, settings = {"splits": {"train": {"rows": 100}}}, RECIPES["clear"]["RTE"]
    run = GlueRun(GLUE_TASKS["RTE"], folder, record, 1, settings, folder, encoder / "model.pt", "hash", load(encoder))
    return options.parse_args_and_arch(options.get_training_parser(), run.command()[3:])


def test_a_model_with_other_segments_is_rejected(folders: Path) -> None:
    one, two = (load(folders / name).model for name in ("bert1", "bert2"))
    with pytest.raises(UserError, match="has 2 segments and the model 1: give --segments 2"):
        one.load_state_dict(dict(two.state_dict()))
    with pytest.raises(UserError, match="has 1 segments and the model 2: give --segments 1"):
        two.load_state_dict(dict(one.state_dict()))
    states = {name: value.clone() for name, value in two.state_dict().items()}
    two.load_state_dict(states)
    assert torch.equal(two.state_dict()["encoder.sentence_encoder.embed_positions.segments.weight"],
                       states["encoder.sentence_encoder.embed_positions.segments.weight"])  # fmt: skip
