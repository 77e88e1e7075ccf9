"""A plugin of the user's adds an augmentation, a view source, an objective and a pooling, and trains with all four."""

import sys
from pathlib import Path

import pytest

from tests.conftest import run

PLUGIN = """
from pathlib import Path

import numpy as np
import torch

from fairseq_clear import register
from fairseq_clear.augmentations import AUGMENTATIONS, Augmentation
from fairseq_clear.text.documents import content_hash
from fairseq_clear.modules.pooling import POOLINGS
from fairseq_clear.objectives import OBJECTIVES, Objective
from fairseq_clear.spec import Knob
from fairseq_clear.views.view_source import RawInstance, ViewSource
from fairseq_clear.views.view_table import VIEWS, ViewSourceKind

register()
CALLS = Path(__file__).parent / "calls"
CALLS.mkdir()


def reverse(tokens, rng, *, symbols, share=1.0):
    (CALLS / "augmentation").touch()
    order = np.arange(len(tokens))
    order[: int(share * len(tokens))] = order[: int(share * len(tokens))][::-1]
    return tokens[order], order


class Halves(ViewSource):
    def __init__(self, texts):
        self.mlm_input = texts
        self.text_lengths = np.stack([texts.sizes, texts.sizes], axis=1)

    def __call__(self, index, rng):
        (CALLS / "view source").touch()
        tokens = self.mlm_input[index].numpy()
        middle = 1 + (len(tokens) - 2) // 2
        first, second = np.append(tokens[:middle], tokens[-1]), np.append(tokens[:1], tokens[middle:])
        return [RawInstance(first, [second], content_hash(tokens))]


def alignment(queries, keys, positive, *, temperature, excluded=None):
    (CALLS / "objective").touch()
    queries, keys = (torch.nn.functional.normalize(rows.float(), dim=-1) for rows in (queries, keys))
    losses = (queries - keys[positive]).square().sum(dim=1) / temperature
    return losses.sum(), torch.tensor(float(len(queries))), {}


def last_token(layers, is_token):
    (CALLS / "pooling").touch()
    last = is_token.sum(dim=1) - 1
    return layers[-1][torch.arange(len(last)), last]


AUGMENTATIONS["reverse"] = Augmentation(reverse, "Reverses tokens.", "none", {"share": Knob(1.0, float, 0, 1)})
VIEWS["halves"] = ViewSourceKind(Halves, {}, "the two halves of a text")
OBJECTIVES["alignment"] = Objective(alignment, "batch", "Squared distance.", "arXiv:2005.10242")
POOLINGS["last"] = last_token
"""

CHOSEN = {
    "augmentation": ("--augment", "reverse:share=0.5"),
    "view source": ("--views", "halves"),
    "objective": ("--objective", "alignment"),
    "pooling": ("--pooling", "last"),
}


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [list(CHOSEN), []], ids=["all", "none"])
def test_a_plugin_trains_with_its_own_parts(chosen: list[str], data_bin: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "my_plugin"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(PLUGIN)
    flags = [flag for name in chosen for flag in CHOSEN[name]]
    run(
        *(sys.executable, "-c", "from fairseq_cli.train import cli_main; cli_main()", data_bin),
        *("--user-dir", plugin, "--task", "clear_lm", "--arch", "clear_roberta_tiny", "--criterion", "clear_nt_xent"),
        *("--sample-break-mode", "eos", "--tokens-per-sample", "32", "--batch-size", "8", "--max-update", "2", "--cpu"),
        *("--optimizer", "adam", "--lr", "1e-3", "--save-dir", tmp_path / "run", "--disable-validation", *flags),
        *("--encoder-embed-dim", "32", "--encoder-attention-heads", "2", "--encoder-ffn-embed-dim", "64"),
    )
    assert sorted(path.name for path in (plugin / "calls").iterdir()) == sorted(chosen)
    assert (tmp_path / "run" / "checkpoint_last.pt").is_file()
