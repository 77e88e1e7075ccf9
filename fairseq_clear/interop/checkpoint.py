"""Checkpoints as fairseq-train writes them, of weights that it did not train."""

import logging
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_clear import register
from fairseq_clear.models.clear_roberta import ClearRobertaModel
from fairseq_clear.patches.checkpoints import save

register()

__all__ = ["build_model", "settings_of", "write_checkpoint"]


def settings_of(data: Path, task: str, arch: str, flags: dict[str, Any]) -> Any:
    """The configuration of a training run with these model flags, everything else at its default."""
    positions = str(flags["max-positions"])
    command = [str(data), "--task", task, "--arch", arch, "--criterion", "masked_lm", "--optimizer", "adam"]
    command += ["--tokens-per-sample", positions, "--sample-break-mode", "eos"]
    for name, value in flags.items():
        command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    args = options.parse_args_and_arch(options.get_training_parser(), command)
    logging.getLogger("hydra").setLevel(logging.WARNING)  # it would write of its own set-up on the screen
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # fairseq speaks to hydra 1.0, hydra 1.3 answers
        return convert_namespace_to_omegaconf(args)


def build_model(cfg: Any, dictionary: Dictionary, seed: int = 1) -> ClearRobertaModel:
    """The model of a configuration, with initial weights that depend on nothing but the seed; no global state changes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: ClearRobertaModel = ClearRobertaModel.build_model(
            cfg.model, SimpleNamespace(source_dictionary=dictionary)
        )
    return model.eval()


def write_checkpoint(path: Path, cfg: Any, weights: dict[str, Tensor], vocabulary_hash: str) -> None:
    """Save what fairseq-train saves before its first update, less the optimizer's state."""
    state = {
        "args": None,
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": weights,
        "criterion": None,
        "optimizer_history": [
            {
                "criterion_name": "MaskedLmLoss",
                "optimizer_name": "FairseqAdam",
                "lr_scheduler_state": {"best": None},
                "num_updates": 0,
            }
        ],
        "last_optimizer_state": None,
        "task_state": {"vocabulary_hash": vocabulary_hash},
        "extra_state": {
            "train_iterator": {"epoch": 1, "iterations_in_epoch": 0},
            "metrics": {},
            "previous_training_time": 0.0,
        },
    }
    save(state, path)
