"""GLUE's pairs with an imported BERT: segments are kept on request, and a note says when they are dropped."""

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import options

for library in ("transformers", "tokenizers", "safetensors"):
    pytest.importorskip(library, reason="optional, extra hf")

from fairseq_clear.errors import UserError  # noqa: E402
from fairseq_clear.evaluation.checkpoints import load_model  # noqa: E402
from fairseq_clear.evaluation.glue.glue_predicting import Classifier  # noqa: E402
from fairseq_clear.evaluation.glue.glue_recipes import RECIPES  # noqa: E402
from fairseq_clear.evaluation.glue.glue_running import Restart, Start  # noqa: E402
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS  # noqa: E402
from fairseq_clear.interop.importing import import_hf  # noqa: E402
from tests.interop.folders import make_folder  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("glue")
    for kind in ("bert", "roberta"):
        make_folder(parent / kind, kind)
        import_hf(parent / kind, parent / f"{kind}1")
    import_hf(parent / "bert", parent / "bert2", segments=2)
    return parent


def start(folder: Path) -> Start:
    return Start(folder / "model.pt", "hash", load_model(folder / "model.pt", folder))


@pytest.mark.parametrize(("name", "tasks", "is_noted"), [
    ("bert1", ["RTE", "CoLA"], True),
    ("bert1", ["CoLA"], False),
    ("bert2", ["RTE"], False),
    ("roberta1", ["RTE"], False),
])  # fmt: skip
def test_dropped_segments_are_noted(folders: Path, name: str, tasks: list[str], is_noted: bool) -> None:
    note = start(folders / name).pair_note([GLUE_TASKS[task] for task in tasks])
    assert (note is not None) == is_noted
    if note:
        assert "(RTE)" in note and "--segments 2" in note


def test_the_command_keeps_epsilon_and_segments(folders: Path, tmp_path: Path) -> None:
    for name, segments in (("bert1", 1), ("bert2", 2)):
        args = parsed(start(folders / name), tmp_path)
        assert (args.layer_norm_eps, args.segments) == (1e-12, segments)
        assert (args.separator_token is not None) == (segments == 1)


def parsed(model: Start, folder: Path) -> Namespace:
    """The settings that fairseq-train makes of the command."""
    settings = RECIPES["clear"]["RTE"]
    data = SimpleNamespace(task=GLUE_TASKS["RTE"], rows={"train": 100})
    command = Restart(data, 1, settings, folder).command(folder, model)
    return options.parse_args_and_arch(options.get_training_parser(), command[3:])


def test_pairs_are_joined_as_bert_joins_them(folders: Path) -> None:
    texts = [np.array([10, 11, 2]), np.array([12, 2])]
    for name, expected in (("bert1", [0, 10, 11, 2, 2, 12, 2]), ("bert2", [0, 10, 11, 2, 12, 2])):
        classifier = Classifier.__new__(Classifier)
        loaded = start(folders / name).loaded
        classifier.model, classifier.dictionary = loaded.model, loaded.dictionary
        assert classifier._row(texts, 40).tolist() == expected


def test_a_model_with_other_segments_is_rejected(folders: Path) -> None:
    one, two = (start(folders / name).loaded.model for name in ("bert1", "bert2"))
    with pytest.raises(UserError, match="has 2 segments and the model 1: give --segments 2"):
        one.load_state_dict(dict(two.state_dict()))
    with pytest.raises(UserError, match="has 1 segments and the model 2: give --segments 1"):
        two.load_state_dict(dict(one.state_dict()))
    states = {name: value.clone() for name, value in two.state_dict().items()}
    two.load_state_dict(states)
    assert torch.equal(two.state_dict()["encoder.sentence_encoder.embed_positions.segments.weight"],
                       states["encoder.sentence_encoder.embed_positions.segments.weight"])  # fmt: skip
