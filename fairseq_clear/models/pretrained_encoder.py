"""``--encoder-from``: takes a model's architecture from an imported folder or a checkpoint, and starts from its weights."""

import argparse
import os
from pathlib import Path
from typing import Any

from fairseq.models import ARCH_CONFIG_REGISTRY
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.models.encoder_stack import FAIRSEQ_EPS
from fairseq_clear.models.state_dicts import OFFSET, POSITIONS
from fairseq_clear.patches.checkpoint_files import read_checkpoint
from fairseq_clear.spec import setting_names

HF_ARCH = "clear_hf"
MODEL_FILE = "model.pt"  # in a folder that fairseq-clear import made

# Stock RoBERTa checkpoints have no pooling. Their [CLS] vector was not trained, so the mean is the better default.
STOCK_POOLING = "mean"
# Settings of stock RoBERTa, which its checkpoints do not record.
STOCK = {"layer_norm_eps": FAIRSEQ_EPS, "segments": 1}
SIZES = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "max_positions", "segments")
# Settings that do not change the shape of any weight.
SHAPELESS = ("encoder_attention_heads", "activation_fn", "layer_norm_eps")
# Only taken if the checkpoint has them: stock RoBERTa has no pooling, and a window fits any weights.
OPTIONAL = ("pooling", "attention_window", "encoder_normalize_before", "untie_weights_roberta", "sentence_settings")


def start_from_encoder(model: Any, checkpoint: Any, allowed: str = "") -> None:
    """Resolve ``--encoder-from``: set the architecture in ``model`` and ``--finetune-from-model`` in ``checkpoint``, in place.

    Afterwards the settings are the same as with the flags given one by one, and ``encoder_from`` is None.

    Args:
        model: settings of the model that the user gave, without defaults; a Namespace or a DictConfig.
        checkpoint: settings with ``finetune_from_model``; the same Namespace as ``model`` on a command line.
        allowed: value of ``--allow-change``.

    Raises:
        UserError: the checkpoint cannot be read, a setting contradicts it, or ``--finetune-from-model`` names another file.
    """
    source = getattr(model, "encoder_from", None)
    if not source:
        return
    path = checkpoint_in(str(source))
    flag = f"--encoder-from {source}"
    is_missing = OmegaConf.is_config(checkpoint) and OmegaConf.is_missing(checkpoint, "finetune_from_model")  # ???
    other = None if is_missing else checkpoint.finetune_from_model
    if other and os.path.abspath(other) != os.path.abspath(path):
        raise UserError(f"--finetune-from-model {other}: {flag} loads weights too; leave one of the two out")
    permitted = setting_names(allowed)
    chosen: dict[str, Any] = {"pooling": getattr(model, "pooling", None) or STOCK_POOLING}
    found = encoder_settings(path)
    arch = str(getattr(model, "_name", None) or getattr(model, "arch", None))
    if (arch == HF_ARCH) != ("hf_encoder" in found):
        right = HF_ARCH if "hf_encoder" in found else "clear_roberta"
        raise UserError(
            f"--arch {arch}: {flag} is a checkpoint of {right}; give --arch {right}, if this command can train it"
        )
    for name, theirs in found.items():
        given = getattr(model, name, None)
        is_switch = isinstance(theirs, bool)  # a switch that is not given is False on a command line
        if given is None or is_switch or given == theirs:
            chosen[name] = theirs
        elif name not in permitted or name not in (*SHAPELESS, *OPTIONAL):
            typed = name.replace("_", "-")
            remedy = f", or keep it with --allow-change {typed}" if name in (*SHAPELESS, *OPTIONAL) else ""
            raise UserError(f"--{typed} {given}: contradicts {flag}, which has {theirs}; leave it out{remedy}")
    for settings, values in ((model, {**chosen, "encoder_from": None}), (checkpoint, {"finetune_from_model": path})):
        assign(settings, values)


def encoder_settings(path: str, flag: str = "--encoder-from") -> dict[str, Any]:
    """Return the settings that describe the encoder of a checkpoint of ``clear_*`` or stock ``roberta``, by name.

    Stock RoBERTa has no pooling. Parts that the encoder does not have, such as an attention window, are left out. Messages
    name the flag.

    Raises:
        UserError: the file is damaged or holds another model.
    """
    state = read_checkpoint(path)
    try:
        model = state["cfg"].model
        values = OmegaConf.to_container(model, resolve=True) if OmegaConf.is_config(model) else vars(model)
        args = argparse.Namespace(**{**values, "encoder_from": None})  # type: ignore[dict-item]
        architecture = getattr(args, "_name", None) or getattr(args, "arch", None)
        if architecture == HF_ARCH:
            return {"hf_encoder": args.hf_encoder} | _stated(args)
        if architecture in ARCH_CONFIG_REGISTRY:
            ARCH_CONFIG_REGISTRY[architecture](args)
        if not hasattr(args, "pooling"):
            vars(args).update(STOCK)
        # fairseq before 0.10 called the encoder a decoder
        names = (POSITIONS, POSITIONS.replace("encoder.", "decoder.", 1))
        rows = next(state["model"][name] for name in names if name in state["model"])
        args.max_positions = len(rows) - OFFSET
        found = {name: getattr(args, name) for name in (*SIZES, *SHAPELESS)}
    except (AttributeError, LookupError, TypeError, ValueError, StopIteration, OmegaConfBaseException) as error:
        raise UserError(
            f"{flag} {path}: not a RoBERTa model ({one_line(error)}); give a checkpoint of clear_roberta or roberta"
        ) from None
    return found | _stated(args)


def _stated(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in OPTIONAL if getattr(args, name, None)}


def read_stated(path: str | Path) -> tuple[str, dict[str, str]]:
    """Return the model of a checkpoint, ``clear_hf`` or ``clear_roberta`` (also for stock RoBERTa), and its prompts by name."""
    model = read_checkpoint(str(path))["cfg"].model
    settings = getattr(model, "sentence_settings", None) or {}
    arch = HF_ARCH if getattr(model, "hf_encoder", None) else "clear_roberta"
    return arch, dict((settings.get("config") or {}).get("prompts") or {})


def checkpoint_in(source: str, flag: str = "--encoder-from") -> str:
    """Return the path of a checkpoint: ``source`` itself, or the ``model.pt`` of a folder of ``fairseq-clear import``.

    Raises:
        UserError: there is none; the message names the flag.
    """
    path = os.path.join(source, MODEL_FILE) if os.path.isdir(source) else source
    if not os.path.isfile(path):
        what = f"has no {MODEL_FILE}" if path != source else "no such file or folder"
        raise UserError(f"{flag} {source}: {what}; give a folder of fairseq-clear import, or a checkpoint (.pt)")
    return path


def assign(settings: Any, values: dict[str, Any]) -> None:
    """Set values in a Namespace or a DictConfig."""
    if OmegaConf.is_config(settings):
        with open_dict(settings):
            settings.update(values)
    else:
        vars(settings).update(values)
