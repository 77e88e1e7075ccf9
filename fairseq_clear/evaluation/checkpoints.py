"""Loading a fairseq checkpoint for inference, without the data folder or the task of its training."""

import argparse
import logging
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_clear import patches
from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import hash_file
from fairseq_clear.models.architectures import set_defaults
from fairseq_clear.models.clear_hf import ClearHfModel
from fairseq_clear.models.clear_roberta import ClearRobertaModel
from fairseq_clear.models.pretrained_encoder import STOCK_POOLING
from fairseq_clear.models.state_dicts import COLUMNS, EMBEDDING, HF_PARTS, POSITIONS
from fairseq_clear.models.text_model import TextModel
from fairseq_clear.patches.checkpoint_files import read_checkpoint, save
from fairseq_clear.text.data_folders import DICTIONARY
from fairseq_clear.text.vocabulary import load_dictionary

patches.apply()

logger = logging.getLogger(__name__)

# Raised when the settings in a checkpoint do not describe a model.
_DAMAGE = (KeyError, AttributeError, TypeError, ValueError, IndexError, OmegaConfBaseException)


@dataclass(frozen=True)
class LoadedModel:
    """A model in float32 on the CPU, in evaluation mode."""

    model: TextModel  # the model, with the checkpoint's weights
    dictionary: Dictionary  # the checkpoint's vocabulary, including ``<mask>`` and, if the checkpoint has it, ``<del>``
    vocabulary_hash: str  # SHA-256 of the ``dict.txt``
    architecture: str  # the checkpoint's ``--arch``
    updates: int | None  # number of updates that it was trained for; None if the checkpoint does not say


def load_model(checkpoint: str | Path, folder: Path) -> LoadedModel:
    """Load a ``clear_*`` checkpoint, or a stock ``roberta`` checkpoint, which gets no projection head.

    The task is not set up, and the other files of the training run (data, synonyms) are not needed.

    Args:
        folder: folder with the ``dict.txt`` of the training run.

    Raises:
        UserError: a missing or damaged file, another architecture or vocabulary.
    """
    path = Path(checkpoint)
    state, weights, args = _read(path)
    is_hf = COLUMNS in weights
    architecture = str(getattr(args, "_name", None) or getattr(args, "arch", None))
    kind: Any = ARCH_MODEL_REGISTRY.get(architecture) or MODEL_REGISTRY.get(architecture)
    if kind is None or not issubclass(kind, RobertaModel | ClearHfModel):
        raise UserError(
            f"{path}: its architecture {architecture} is not a RoBERTa or clear_hf; give a checkpoint of clear_* or roberta"
        )
    if not issubclass(kind, TextModel):
        args.pooling, args.projection_layers = STOCK_POOLING, 0
        logger.info("%s: a stock RoBERTa checkpoint has no pooling; using %s", path, STOCK_POOLING)
        kind = ClearRobertaModel
    args.encoder_from = args.encoder_config = None  # of clear_hf; the weights are in the checkpoint
    if architecture in ARCH_CONFIG_REGISTRY:
        ARCH_CONFIG_REGISTRY[architecture](args)
    if not is_hf:
        set_defaults(args, args.encoder_layers, args.encoder_embed_dim)
    vocabulary_hash = hash_file(folder / DICTIONARY)
    trained_with = (state.get("task_state") or {}).get("vocabulary_hash", vocabulary_hash)
    if trained_with != vocabulary_hash:
        raise _other_vocabulary(path, folder)
    dictionary = _dictionary(folder, len(weights[HF_PARTS[0] + "ids" if is_hf else EMBEDDING]), path)
    if POSITIONS in weights:
        # Under hydra max_positions may be unset. fairseq numbers positions from pad + 1, so the first rows are unused.
        args.max_positions = weights[POSITIONS].shape[0] - dictionary.pad() - 1
    try:
        model = kind.build_model(args, SimpleNamespace(source_dictionary=dictionary))
        model.load_state_dict(weights, strict=True)
    except UserError:
        raise
    except (RuntimeError, *_DAMAGE) as error:
        raise UserError(f"{path}: its weights do not fit its own settings ({one_line(error)})") from None
    history = state.get("optimizer_history") or [{}]
    return LoadedModel(model.float().eval(), dictionary, vocabulary_hash, architecture, history[-1].get("num_updates"))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any], argparse.Namespace]:
    """Read the checkpoint; return its content, and the weights and settings of its model."""
    if not path.is_file():
        what = "is a folder, name the .pt file in it" if path.is_dir() else "no such checkpoint"
        raise UserError(f"{path}: {what}; fairseq-train writes them to --save-dir")
    state = read_checkpoint(str(path))
    try:
        model = state["cfg"].model
        if OmegaConf.is_config(model):
            settings: Any = OmegaConf.to_container(model, resolve=True)
            model = argparse.Namespace(**settings)
    except _DAMAGE as error:
        raise UserError(f"{path}: not a complete checkpoint of fairseq-train ({one_line(error)})") from None
    weights = state["model"]
    for key in [key for key in weights if key.startswith("decoder.")]:  # RoBERTa's encoder in fairseq before 0.10
        weights["encoder." + key.removeprefix("decoder.")] = weights.pop(key)
    if EMBEDDING not in weights and COLUMNS not in weights:
        raise UserError(f"{path}: not a RoBERTa model (no {EMBEDDING}); give a checkpoint of clear_* or roberta")
    return state, weights, model


def _dictionary(folder: Path, rows: int, path: Path) -> Dictionary:
    """The dictionary of the checkpoint's task: masked_lm adds ``<mask>``, and clear_lm then ``<del>``."""
    dictionary = load_dictionary(folder / DICTIONARY)
    for symbol in ("<mask>", "<del>"):
        if len(dictionary) < rows and symbol not in dictionary:
            dictionary.add_symbol(symbol)
    if len(dictionary) != rows or "<mask>" not in dictionary:
        raise _other_vocabulary(path, folder)
    return dictionary


def _other_vocabulary(path: Path, folder: Path) -> UserError:
    what = f"its vocabulary differs from {folder / DICTIONARY}"
    return UserError(f"{path}: {what}; give the data folder it was trained on, or one made with its dict.txt")


def strip_checkpoint(source: Path, target: Path) -> int:
    """Copy a checkpoint without its optimizer state, which is two thirds of the file; return its number of updates."""
    # torch.load, because fairseq's reader converts the settings to a class that it cannot load again
    state = torch.load(source, map_location="cpu", weights_only=True)
    state["last_optimizer_state"] = None
    save(state, target)
    return int(state["optimizer_history"][-1]["num_updates"])
