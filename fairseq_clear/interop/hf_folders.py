"""Reads configuration, weights and modules of Hugging Face and sentence-transformers folders, without running their code."""

import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.files import read_json, write_json
from fairseq_clear.libraries import import_library
from fairseq_clear.patches.checkpoint_files import unloadable

CONFIG = "config.json"
# Repositories on the hub of models whose usual name has no owner; None: an example for any other name.
HUB = {
    None: "google-bert/bert-base-uncased",
    "bert-base-uncased": "google-bert/bert-base-uncased",
    "roberta-base": "FacebookAI/roberta-base",
    "distilroberta-base": "distilbert/distilroberta-base",
}
SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"


def read_hf_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read configuration and weights, from safetensors or else from pickles, in one file or in shards.

    Returns:
        The configuration; and the weights by their names in the folder, in float32.

    Raises:
        UserError: the folder does not exist, a part is missing or damaged, or a pickle holds more than weights.
    """
    if not folder.is_dir():
        repository = str(folder) if re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder)) else HUB.get(str(folder), HUB[None])
        name = repository.partition("/")[2]
        raise UserError(
            f"{folder}: no such folder; give a local Hugging Face folder, which is not downloaded here: on a machine with "
            f"network run `hf download {repository} --local-dir {name}`, copy the folder {name} and give its path"
        )
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder}: has no {CONFIG}, and no model.pt of fairseq either; give a folder of a model")
    weights: dict[str, Tensor] = {}
    for path in weight_files(folder):
        weights |= _read_safetensors(path) if path.suffix == ".safetensors" else read_pickle(path)
    if not all(isinstance(value, Tensor) for value in weights.values()):
        raise UserError(f"{folder}: its weights are not a plain table of tensors; save it with save_pretrained")
    floats = {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
    return read_json(folder / CONFIG, kind=dict), floats


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a file of weights by ``torch.load`` with ``weights_only``.

    Raises:
        UserError: the file is damaged, or holds other classes, which could run code.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        remedy = "if you trust the file, save its weights as safetensors"
        raise unloadable(path, error, "file of weights", "not a weight", remedy) from None
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror or error})") from None
    except (RuntimeError, EOFError, KeyError, ValueError) as error:
        raise UserError(f"{path}: not a complete file of weights ({type(error).__name__})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds a {type(content).__name__}, not a table of weights")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The files of weights of a folder: safetensors or else pickles, in one file or in shards; UserError if there are none."""
    for name in (SAFETENSORS, PICKLE):
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            files = read_json(index, kind=dict).get("weight_map", {}).values()
            paths = sorted({folder / Path(str(file)).name for file in files})
            missing = [path for path in paths if not path.is_file()]
            if missing or not paths:
                raise UserError(f"{index}: names {missing[0].name if missing else 'no file'}, which is not there")
            return paths
    raise UserError(f"{folder}: has neither {SAFETENSORS} nor {PICKLE}; other formats (tf, flax, onnx) are not read")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    library = import_library("safetensors.torch")
    try:
        loaded: dict[str, Tensor] = library.load_file(str(path))
    except Exception as error:  # safetensors raises its own exception type
        raise UserError(f"{path}: not a complete safetensors file ({error})") from None
    return loaded


# Our name -> the switch in 1_Pooling/config.json, in the form that every release of sentence-transformers reads.
EXPORTED = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}
_OTHERS = ("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken")
_TYPE = "sentence_transformers.models."
_FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
LIMITS = tuple(f"sentence_{family}_config.json" for family in _FAMILIES)  # the first that exists is read
PROMPTS = "config_sentence_transformers.json"


@dataclass(frozen=True)
class SentenceSettings:
    """What a folder says of its vectors besides the encoder. A checkpoint keeps it for inference and for its export.

    Attributes:
        normalized: whether vectors are scaled to length 1.
        max_length: tokens to which texts are cut; None for the positions of the encoder.
        include_prompt: whether the tokens of a prompt are pooled.
        config: content of config_sentence_transformers.json: prompts, similarity function.
    """

    normalized: bool = False
    max_length: int | None = None
    include_prompt: bool = True
    config: dict[str, Any] = field(default_factory=dict)


def read_modules(folder: Path, *, ignore_mode: bool = False) -> tuple[str | None, SentenceSettings]:
    """Read pooling and settings of a sentence-transformers folder; of a plain Hugging Face folder, the length of its texts.

    Returns:
        The pooling, one of EXPORTED, or None without one, also with ``ignore_mode``; and the settings.

    Raises:
        UserError: clear_roberta does not have the pooling, or a module after it.
    """
    pooling, normalized, include_prompt = None, False, True
    modules = folder / "modules.json"
    for module in read_json(modules, kind=list) if modules.is_file() else ():
        if not isinstance(module, dict):
            raise UserError(f"{modules}: {module!r} is not a module; copy the file again")
        name = str(module.get("type", "")).rpartition(".")[2]
        if name == "Pooling":
            config = folder / str(module["path"]) / "config.json"
            pooling = None if ignore_mode else _read_mode(config)
            include_prompt = read_json(config, kind=dict).get("include_prompt", True) is not False
        elif name == "Normalize":
            normalized = True
        elif name != "Transformer":
            raise UserError(
                f"{modules}: has a module {name} after the encoder, which would be lost; remove it from the "
                "file to import only the encoder"
            )
    config = read_json(folder / PROMPTS, kind=dict) if (folder / PROMPTS).is_file() else {}
    return pooling, SentenceSettings(normalized, _read_length(folder), include_prompt, config)


def lower_cases(folder: Path) -> bool:
    """Whether sentence-transformers puts texts into lower case before the tokenizer reads them."""
    return _read_limits(folder).get("do_lower_case") is True


def _read_limits(folder: Path) -> dict[str, Any]:
    paths = (folder / name for name in LIMITS if (folder / name).is_file())
    limits: dict[str, Any] = read_json(path, kind=dict) if (path := next(paths, None)) else {}
    return limits


def _read_length(folder: Path) -> int | None:
    """The limit of sentence-transformers, or else the tokenizer's, which is a huge number if there is none."""
    length, tokenizer = _read_limits(folder).get("max_seq_length"), folder / "tokenizer_config.json"
    if length is None and tokenizer.is_file():
        length = read_json(tokenizer, kind=dict).get("model_max_length")
    return int(length) if isinstance(length, int | float) and length >= 2 else None


def _read_mode(path: Path) -> str:
    config: dict[str, Any] = read_json(path, kind=dict)
    modes = config.get("pooling_mode")
    if modes is None:
        short = {switch: name for name, switch in EXPORTED.items()}
        modes = [
            short.get(key, key) for key, is_on in config.items() if key.startswith("pooling_mode_") and is_on is True
        ]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) != 1 or modes[0] not in EXPORTED:
        raise UserError(
            f"{path}: pooling {' + '.join(map(str, modes))} is not one of {', '.join(EXPORTED)}; choose one with --pooling"
        )
    return str(modes[0])


def write_modules(
    folder: Path, pooling: str, width: int, length: int, settings: SentenceSettings, *, dimension: int | None = None
) -> None:
    """Add the files that make a Hugging Face folder a sentence-transformers folder.

    Args:
        pooling: one of EXPORTED.
        width: dimension of the encoder's vectors.
        length: tokens to which texts are cut.
        settings: the other settings.
        dimension: number of dimensions to keep; None for all, or as ``settings`` say.
    """
    parts = [("", "Transformer"), ("1_Pooling", "Pooling")]
    parts += [("2_Normalize", "Normalize")] if settings.normalized else []
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": _TYPE + name}
        for index, (path, name) in enumerate(parts)
    ]
    switches = {switch: switch == EXPORTED[pooling] for switch in (*EXPORTED.values(), *_OTHERS)}
    for path, _ in parts[1:]:
        (folder / path).mkdir()
    write_json(folder / "modules.json", modules)
    switches |= {} if settings.include_prompt else {"include_prompt": False}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **switches})
    if config := settings.config | ({} if dimension is None else {"truncate_dim": dimension}):
        write_json(folder / PROMPTS, config)
    write_json(folder / LIMITS[0], {"max_seq_length": length, "do_lower_case": False})
