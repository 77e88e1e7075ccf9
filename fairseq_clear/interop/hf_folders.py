"""Reads configuration, weights and modules of Hugging Face and sentence-transformers folders, without running their code."""

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.files import read_json
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
