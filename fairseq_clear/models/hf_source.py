"""Loads, builds and saves models of transformers, without running code of a folder."""

import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.libraries import quiet_transformers
from fairseq_clear.patches.checkpoint_files import unloadable

CONFIG = "config.json"
LOCAL = {"local_files_only": True, "trust_remote_code": False}


class HfSource:
    """The parts of a model that transformers loaded from a folder, or built from a configuration.

    Attributes:
        base: the encoder, without pooler.
        head: the model with an MLM head around ``base``; None without one.
        pooler: BERT's pooler, which sentence vectors do not use; None without one.
        unused: names of weights in the folder that belong to none of these.
    """

    def __init__(self, base: Any, head: Any, pooler: nn.Module | None, unused: Sequence[str] = ()) -> None:
        self.base, self.head, self.pooler, self.unused = base, head, pooler, unused

    def describe(self) -> str:
        """Return as JSON what ``build_source`` needs: the configuration, and which parts there are.

        It contains the whole configuration, because defaults differ between versions of transformers.
        """
        config = json.loads(self.base.config.to_json_string(use_diff=False))
        config["model_type"] = self.base.config.model_type
        return json.dumps({"config": config, "head": self.head is not None, "pooler": self.pooler is not None})

    def save(self, folder: Path) -> None:
        """Write config.json and model.safetensors by ``save_pretrained``.

        Raises:
            UserError: the weights cannot be written, such as on a full disk.
        """
        model, prefix = (self.base, "") if self.head is None else (self.head, f"{name_of(self.head, self.base)}.")
        weights = model.state_dict()
        for name, value in {} if self.pooler is None else self.pooler.state_dict().items():
            weights[f"{prefix}pooler.{name}"] = value
        try:
            with quiet_transformers():
                model.save_pretrained(str(folder), state_dict=weights, max_shard_size="1TB")  # one file
        except OSError:
            raise
        except Exception as error:  # safetensors has its own type for errors of the file system
            raise UserError(f"{folder}: cannot write the weights ({one_line(error)}); nothing was written") from None
        for path in folder.glob("*.safetensors"):  # safetensors makes files that only their owner can read
            path.chmod((folder / CONFIG).stat().st_mode)


@contextmanager
def transformers_for(what: object) -> Iterator[Any]:
    """Yield transformers; its errors become one line that begins with ``what``."""
    with quiet_transformers() as transformers:
        try:
            yield transformers
        except UserError:
            raise
        except pickle.UnpicklingError as error:
            remedy = "if you trust it, save its weights as safetensors"
            raise unloadable(what, error, "folder of weights", "not a weight", remedy) from None
        except Exception as error:  # of several libraries
            raise UserError(f"{what}: transformers cannot load it ({one_line(error)})") from None


def read_source(folder: Path, settings: dict[str, Any]) -> HfSource:
    """Load a local Hugging Face or sentence-transformers folder in float32, without running its code (``_configure``).

    Raises:
        UserError: the folder is incomplete or damaged, needs code of its own, or holds no encoder.
    """
    with transformers_for(folder) as transformers:
        config = _configure(transformers.AutoConfig.from_pretrained(str(folder), **LOCAL), settings, folder)
        options = {**LOCAL, "config": config, "dtype": torch.float32, "output_loading_info": True}
        options |= {"ignore_mismatched_sizes": True}  # they are reported below, in one line
        options |= _attention(settings)
        head, unread, wrong = None, [], list[str]()
        if type(config) in transformers.AutoModelForMaskedLM._model_mapping:
            head, info = transformers.AutoModelForMaskedLM.from_pretrained(str(folder), **options)
            unread.append(set(info["unexpected_keys"]))
            wrong += _mismatched(info)
            prefix = f"{head.base_model_prefix}."
            if any(not name.startswith(prefix) for name in info["missing_keys"]):
                head = None  # the folder has none, so it was initialised at random
        base, info = transformers.AutoModel.from_pretrained(str(folder), **options)
        unread.append(set(info["unexpected_keys"]))
        missing = [name for name in info["missing_keys"] if "pooler" not in name.split(".")]
        wrong += [*missing, *_mismatched(info)]
        if any(name.startswith("decoder.") for name in missing):  # the encoder of a T5, saved alone
            raise UserError(f"{folder}: holds half of a {config.model_type} that decodes; an encoder is needed")
        unused = sorted(set.intersection(*unread))
        wrong += [
            name for name in unused if "distance_embedding" in name
        ]  # of relative positions, until transformers 4
        if wrong:
            raise UserError(f"{folder}: its weights do not fit its config.json ({wrong[0]})")
        has_pooler = getattr(base, "pooler", None) is not None and len(missing) == len(info["missing_keys"])
        return _join(base, head, base.pooler if has_pooler else None, unused)


def _mismatched(info: dict[str, Any]) -> list[str]:
    """Names of the weights of another shape; transformers 4 gives names alone, 5 also the shapes."""
    return [found if isinstance(found, str) else found[0] for found in info.get("mismatched_keys") or ()]


def build_source(described: str, settings: dict[str, Any]) -> HfSource:
    """Build a model with random weights as ``HfSource.describe`` describes it."""
    content = json.loads(described)
    with transformers_for("--encoder-config") as transformers:
        values = dict(content["config"])
        kind = values.pop("model_type", None)
        if kind is None:
            raise UserError("--encoder-config: has no model_type, such as modernbert")
        config = _configure(transformers.AutoConfig.for_model(kind, **values), settings, "--encoder-config")
        options = {"dtype": torch.float32, **_attention(settings)}
        head = transformers.AutoModelForMaskedLM.from_config(config, **options) if content["head"] else None
        needs_base = content["pooler"] or head is None
        base: Any = transformers.AutoModel.from_config(config, **options) if needs_base else None
        return _join(base, head, base.pooler if content["pooler"] else None)


def _join(base: Any, head: Any, pooler: nn.Module | None, unused: Sequence[str] = ()) -> HfSource:
    """Use the encoder of the model with the MLM head, because both may share an embedding."""
    encoder = base if head is None else head.base_model
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # every family checks for this
    return HfSource(encoder, head, pooler, unused)


def _attention(settings: dict[str, Any]) -> dict[str, str]:
    chosen = settings.get("attn_implementation")
    return {"attn_implementation": chosen} if chosen else {}


def _configure(config: Any, settings: dict[str, Any], what: object) -> Any:
    """Check a configuration, and set the dropout that the user gave, and the ids of special tokens.

    Args:
        settings: ``dropout`` and ``attention_dropout``, None to keep the configuration's; ``attn_implementation``; ``ids``, a
            table from names such as ``pad_token_id`` to ids, for a configuration without weights.
    """
    if getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{what}: holds a {config.model_type} that decodes; an encoder is needed")
    if getattr(config, "attention_type", None) == "block_sparse":  # BigBird; a short text switches it off for good
        raise UserError(f"{what}: attention_type block_sparse depends on earlier texts; set it to original_full")
    if getattr(config, "rope_parameters", None) and int(version("transformers").partition(".")[0]) < 5:
        raise UserError(f"{what}: transformers 5 wrote its rotary positions, which 4 ignores; install transformers 5")
    if hasattr(config, "auto_map"):  # the export would name code that does not fit its weights
        del config.auto_map
    for name in [name for name in vars(config) if "dropout" in name]:
        value = settings.get("attention_dropout" if "att" in name else "dropout")
        if value is not None and isinstance(getattr(config, name), int | float) and "classifier" not in name:
            setattr(config, name, float(value))
    for name, value in settings.get("ids", {}).items():
        setattr(config, name, value)
    return config


def name_of(model: nn.Module, base: nn.Module) -> str:
    """The name of the base model in a model."""
    return next(name for name, child in model.named_children() if child is base)
