"""Merges two encoders of one architecture, such as one before and after refining: the mean of their weights.

Wortsman et al. 2022 (arXiv:2109.01903) mean the weights of a model before and after fine-tuning: it keeps most of what
fine-tuning gained on its own task, and loses less on other data.
"""

import logging
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import hash_file, read_json, versions, write_json
from fairseq_clear.interop.hf_folders import CONFIG, SAFETENSORS, read_hf_folder, weight_files
from fairseq_clear.libraries import import_library, log_level, quiet_transformers
from fairseq_clear.models.state_dicts import fit_state_dict
from fairseq_clear.output_folder import output_folder
from fairseq_clear.patches.checkpoint_files import read_checkpoint, save

__all__ = ["merge_checkpoints", "merge_folders", "merge_weights"]

# What a configuration says besides the architecture; versions of transformers and models of one encoder differ in it.
IGNORED = re.compile(
    r"_name_or_path|transformers_version|architectures|(torch_)?dtype|use_cache|gradient_checkpointing|initializer_range|"
    r"\w+_token_id|\w*dropout\w*|\w*attn_implementation\w*|output_\w+|id2label|label2id|problem_type"
)
WEIGHTS = (".safetensors", ".bin", ".index.json", ".h5", ".msgpack", ".onnx", ".ot", ".pt")
OTHER_FORMATS = ("onnx", "openvino")
RECORD = "merge.json"


def merge_weights(start: dict[str, Tensor], refined: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return (1 - share) * start + share * refined for the tensors of numbers that both have, and the others of ``start``.

    Floating-point tensors become float32.

    Raises:
        ValueError: a tensor has another shape in ``refined``; the message is its name.
    """
    merged = {}
    for name, before in start.items():
        after = refined.get(name)
        if after is not None and after.shape != before.shape:
            raise ValueError(name)
        mixes = after is not None and before.is_floating_point()
        merged[name] = torch.lerp(before.float(), after.float(), share) if mixes and after is not None else before
    return merged


def merge_folders(start: Path, refined: Path, dest: Path, share: float, *, overwrite: bool = False) -> int:
    """Merge two Hugging Face or sentence-transformers folders; return the number of tensors that were merged.

    ``dest`` gets the merged weights in float32 in one model.safetensors, every other file of ``start``, and merge.json, which
    names both folders.

    Args:
        start, refined: local folders, from which no code is run.
        share: of ``refined``, from 0 to 1.

    Raises:
        UserError: the folders have another architecture, tokenizer or set of weights, or one cannot be read.
    """
    library = import_library("safetensors.torch")
    before, after = read_hf_folder(start)[1], read_hf_folder(refined)[1]
    _check_same(start, refined)
    names = _matched(before, after)
    needed = {name for name, tensor in before.items() if tensor.is_floating_point() and "pooler." not in name}
    if missing := sorted(needed - names.keys()):  # sentence vectors do not use BERT's pooler
        raise UserError(
            f"{refined}: has no weights named {missing[0]}, which {start} has; merge folders of the same kind"
        )
    try:
        merged = merge_weights(before, {name: after[theirs] for name, theirs in names.items()}, share)
    except ValueError as error:
        raise UserError(f"{refined}: {error} has another shape than in {start}; merge folders of one encoder") from None
    with output_folder(dest, overwrite) as folder:
        shutil.copytree(start, folder, ignore=partial(_weights_of, start), dirs_exist_ok=True)
        config = read_json(start / CONFIG)
        write_json(folder / CONFIG, config | {name: "float32" for name in ("dtype", "torch_dtype") if name in config})
        content = {name: tensor.clone() for name, tensor in merged.items()}  # safetensors refuses shared memory
        library.save_file(content, str(folder / SAFETENSORS), metadata={"format": "pt"})
        sources = {
            name: {"folder": str(path), "weights": _hashes(path)}
            for name, path in (("start", start), ("refined", refined))
        }
        write_json(folder / RECORD, {"alpha": share, **sources, "versions": versions()})
    return len(names)


def merge_checkpoints(start: Path, refined: Path, dest: Path, share: float) -> None:
    """Write the checkpoint ``refined`` with the mean of its weights and those of ``start``; parts of its own stay as they are.

    Raises:
        UserError: ``start`` has another vocabulary or number of positions.
        ValueError: another encoder.
    """
    before = read_checkpoint(str(start))["model"]
    # torch.load, because fairseq's reader converts the settings to a class that it cannot load again
    state: dict[str, Any] = torch.load(refined, map_location="cpu", weights_only=True)
    with log_level(
        logging.ERROR, "fairseq_clear.models.state_dicts"
    ):  # parts that only one of the two has are expected
        fit_state_dict(before, state["model"])
    state["model"] = merge_weights(before, state["model"], share)
    save(state, dest)


def _weights_of(start: Path, folder: str, names: list[str]) -> list[str]:
    """The names in a folder of ``start`` that are weights of the encoder in some format, or files of git."""
    if Path(folder) != start:
        return []
    return [name for name in names if name.endswith(WEIGHTS) or name in OTHER_FORMATS or name.startswith(".git")]


def _hashes(folder: Path) -> dict[str, str]:
    return {path.name: hash_file(path) for path in weight_files(folder)}


def _matched(before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, str]:
    """The name in ``after`` of each tensor of ``before`` that it has, whether or not either names the base model first."""

    def plain(weights: dict[str, Tensor]) -> dict[str, str]:
        firsts = [name.partition(".")[0] for name in weights if ".embeddings." in name]
        return {name.removeprefix(f"{firsts[0]}.") if firsts else name: name for name in weights}

    theirs = plain(after)
    return {name: theirs[short] for short, name in plain(before).items() if short in theirs}


def _check_same(start: Path, refined: Path) -> None:
    """Raise UserError if two folders differ in architecture or tokenizer, as transformers reads them."""
    options = {"local_files_only": True, "trust_remote_code": False}
    found = []
    with quiet_transformers() as transformers:
        for folder in (start, refined):
            try:
                config = transformers.AutoConfig.from_pretrained(str(folder), **options).to_dict()
                tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **options)
            except Exception as error:  # of several libraries
                raise UserError(f"{folder}: transformers cannot read it ({one_line(error)})") from None
            found.append(({k: v for k, v in config.items() if not IGNORED.fullmatch(k)}, tokenizer.get_vocab()))
    (one, ours), (other, theirs) = found
    if differing := sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name)):
        name = differing[0]
        values = f"{name} is {one.get(name)!r} in {start} and {other.get(name)!r} in it"
        raise UserError(f"{refined / CONFIG}: another architecture: {values}; merge folders of one encoder")
    if ours != theirs:
        raise UserError(f"{refined}: has another vocabulary than {start}; merge folders of one encoder")
