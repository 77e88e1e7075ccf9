"""Merges two encoders of one architecture, such as one before and after refining: the mean of their weights.

Wortsman et al. 2022 (arXiv:2109.01903) mean the weights of a model before and after fine-tuning: it keeps most of what
fine-tuning gained on its own task, and loses less on other data.
"""

import logging
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.files import hash_files, read_json, versions, write_json
from fairseq_clear.interop.hf_format import check_folder
from fairseq_clear.libraries import log_level
from fairseq_clear.models.hf_source import CONFIG, LOCAL, HfSource, read_source, transformers_for
from fairseq_clear.models.state_dicts import fit_state_dict
from fairseq_clear.output_folder import EXPORT, check_outside, output_folder
from fairseq_clear.patches.checkpoint_files import read_checkpoint, save
from fairseq_clear.text.sentence_folders import read_modules

MERGED = "merge.json"
# What a configuration says besides the architecture; versions of transformers and models of one encoder differ in it.
IGNORED = re.compile(
    r"_name_or_path|transformers_version|architectures|(torch_)?dtype|use_cache|gradient_checkpointing|initializer_range|"
    r"\w+_token_id|\w*dropout\w*|\w*attn_implementation\w*|output_\w+|id2label|label2id|problem_type"
)
# Files that are not copied: weights in any format, what save writes, unfinished folders, and git's files.
WEIGHTS = re.compile(
    r".*\.(safetensors|bin|index\.json|h5|msgpack|onnx|ot|pt)|config\.json|onnx|openvino|\.git.*|\..*\.(partial|lock)"
)
# Of a folder of export or refine, what belongs to the weights of START.
DESCRIBED = {"checkpoint", "README.md", "report.json", "report.md", "report.png", *EXPORT}
# Settings of config.json that come from the merged weights; all others come from START.
AS_SAVED = {"architectures", "dtype", "torch_dtype"}
# Weights that may be left out: BERT's prediction of the next sentence, and what is computed.
SPARE = re.compile(r"cls\.seq_relationship\..*|.*position_ids|.*\.decoder\.bias")


def merge_weights(start: dict[str, Tensor], refined: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return (1 - share) * start + share * refined of the floats in both, as float32, and the other tensors of ``start``."""
    both = {name for name, tensor in start.items() if tensor.is_floating_point() and name in refined}
    return start | {name: torch.lerp(start[name].float(), refined[name].float(), share) for name in both}


def merge_folders(start: Path, refined: Path, dest: Path, share: float, *, overwrite: bool = False) -> int:
    """Merge two Hugging Face or sentence-transformers folders; return the number of tensors that were merged.

    ``dest`` gets the merged weights of the encoder, its MLM head and its pooler in float32, every other file of ``start``
    except the card, report and checkpoint of export and refine, and merge.json, which names both folders.

    Args:
        start, refined: local folders, from which no code is run.
        share: of ``refined``, from 0 to 1.

    Raises:
        UserError: the folders have another architecture, tokenizer or set of weights, one cannot be read or has a NaN.
    """
    check_outside(dest, (start, refined))
    for folder in (start, refined):
        check_folder(folder)
    if start.resolve() in dest.resolve().parent.parents:  # only a folder directly in START is left out of the copy
        raise UserError(f"--dest {dest}: is in a folder of {start}, which is copied; give a folder outside it")
    ours, theirs = read_source(start, {}), read_source(refined, {})
    _check_same(start, ours, refined, theirs)
    if left := [name for name in ours.unused if not SPARE.fullmatch(name)]:
        raise UserError(f"{start}: holds more than an encoder ({left[0]}), which cannot be merged; save that alone")
    if ours.head is not None and theirs.head is None:
        raise UserError(
            f"{refined}: has no whole head for masked language modelling, as {start} has; merge folders of the same kind"
        )
    both = [(ours.base, theirs.base)] if ours.head is None else [(ours.head, theirs.head)]
    if ours.pooler is not None and theirs.pooler is not None:
        both.append((ours.pooler, theirs.pooler))
    for before, after in both:
        merged = merge_weights(before.state_dict(), after.state_dict(), share)
        if name := next((name for name, one in merged.items() if not one.isfinite().all()), None):
            raise UserError(
                f"{start}, {refined}: {name} is NaN or infinite in one of them; give folders that encode text"
            )
        before.load_state_dict(merged)
    with output_folder(dest, overwrite, (MERGED, *EXPORT)) as folder:

        def weights(inside: str, names: list[str]) -> list[str]:
            if Path(inside) != start:  # all files in the folders of other modules are copied
                return []
            described = DESCRIBED if EXPORT[0] in names else set()
            return [name for name in names if WEIGHTS.fullmatch(name) or name in described]

        # copyfile: START may be read-only
        shutil.copytree(start, folder, ignore=weights, dirs_exist_ok=True, copy_function=shutil.copyfile)
        folder.chmod(folder.stat().st_mode | 0o700)
        ours.save(folder)
        saved, config = (read_json(path / CONFIG, kind=dict) for path in (folder, start))
        config.pop("torch_dtype", None)  # of the weights of START
        write_json(folder / CONFIG, config | {name: saved[name] for name in AS_SAVED & saved.keys()})
        sources = {
            name: {"folder": str(path), "weights": hash_files([*path.glob("*.safetensors"), *path.glob("*.bin")])}
            for name, path in (("start", start), ("refined", refined))
        }
        write_json(folder / MERGED, {"alpha": share, **sources, "versions": versions()})
    return sum(1 for model, _ in both for _ in model.parameters())


def merge_checkpoints(start: Path, refined: Path, dest: Path, share: float) -> None:
    """Write the checkpoint ``refined`` with the mean of both weights; parts that ``start`` lacks stay unchanged.

    Raises:
        UserError: ``start`` has another vocabulary or number of positions.
        RuntimeError: another encoder.
    """
    before = read_checkpoint(str(start))["model"]
    # torch.load, because fairseq's reader converts the settings to a class that it cannot load again
    state: dict[str, Any] = torch.load(refined, map_location="cpu", weights_only=True)
    # parts that only one of the two has are expected
    with log_level(logging.ERROR, "fairseq_clear.models.state_dicts"):
        fit_state_dict(before, state["model"])
    state["model"] = merge_weights(before, state["model"], share)
    save(state, dest)


def _check_same(start: Path, ours: HfSource, refined: Path, theirs: HfSource) -> None:
    """Raise UserError if two folders differ in architecture or tokenizer, as transformers reads them."""
    one, other = (
        {name: value for name, value in source.base.config.to_dict().items() if not IGNORED.fullmatch(name)}
        for source in (ours, theirs)
    )
    # what only one of them has, this version of transformers does not know, or another one did not write
    if differing := sorted(name for name in one.keys() & other.keys() if one[name] != other[name]):
        name = differing[0]
        values = f"{name} is {one[name]!r} in {start} and {other[name]!r} in it"
        raise UserError(f"{refined / CONFIG}: another architecture: {values}; merge folders of one encoder")
    ours_made, theirs_made = map(_made, (start, refined))
    if ours_made and theirs_made and ours_made != theirs_made:
        pooled = " and ".join(f"{pooling}{', normalized' * scaled}" for pooling, scaled in (ours_made, theirs_made))
        raise UserError(f"{refined}: its vectors are made in another way than those of {start} (pooling {pooled})")
    if _vocabulary(start) != _vocabulary(refined):
        raise UserError(f"{refined}: has another vocabulary than {start}; merge folders of one encoder")


def _made(folder: Path) -> tuple[str, bool] | None:
    """Pooling, and whether vectors are normalized; None of a plain folder, or one with further modules, which START keeps."""
    try:
        pooling, settings = read_modules(folder)
    except UserError:
        return None
    return (pooling, settings.normalized) if pooling else None


def _vocabulary(folder: Path) -> dict[str, int]:
    with transformers_for(folder) as transformers:
        return transformers.AutoTokenizer.from_pretrained(str(folder), **LOCAL).get_vocab()
