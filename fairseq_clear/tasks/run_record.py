"""The record of a run: its settings, data, vocabulary and initial weights. Checkpoints store it; resuming compares it."""

import argparse
import ast
import hashlib
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from omegaconf import OmegaConf

from fairseq_clear.augmentations.chain import Chain
from fairseq_clear.errors import UserError
from fairseq_clear.files import hash_file
from fairseq_clear.models.pretrained_encoder import SHAPELESS, checkpoint_in
from fairseq_clear.patches.startup import flags_of, nearest
from fairseq_clear.spec import setting_names
from fairseq_clear.tasks.corpus_mix import parse_mix
from fairseq_clear.text.data_folders import DICTIONARY, data_folders, epoch_folders, read_dictionary
from fairseq_clear.text.synonym_files import SYNONYMS_NPZ
from fairseq_clear.views.paraphrase_views import ORIGINAL, PARAPHRASES, aligned_folder
from fairseq_clear.views.view_table import find_view_source

# Settings of fairseq's own sections that determine the result of a run, by what they determine. All others of these sections
# may differ when the run resumes.
DETERMINING = {
    "common": {
        "random numbers": "seed",
        "precision": "fp16 bf16 amp memory_efficient_fp16 memory_efficient_bf16 fp16_no_flatten_grads",
    },
    "dataset": {
        "which texts": "train_subset",
        "the batches": "batch_size max_tokens required_batch_size_multiple",
        "the order": "curriculum grouped_shuffling update_epoch_batch_itr update_ordered_indices_seed",
    },
    "optimization": {"the updates": "lr update_freq clip_norm sentence_avg skip_remainder_batch"},
    "distributed_training": {"the order": "fix_batches_to_gpus"},
}
# Settings of the other sections that may differ: they name files, whose content is compared, or affect memory and speed.
FREE = {
    "task": "data mix synonyms eval_sts eval_retrieval persistent_workers allow_change",
    "model": "encoder_from encoder_config attn_implementation encode_chunk_size compile "
    "offload_activations min_params_to_wrap",
}
HASHED = {
    "data": "the data of",
    "mix": "--mix",
    "vocabulary": "the vocabulary of",
    "synonyms": "--synonyms",
    "start": "--finetune-from-model",
    "guide": "--guide",
    "aligned": "the aligned texts of",
}
CLASSES = ("task", "criterion", "optimizer", "lr_scheduler")  # sections of which the record also names the class
SIZES = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim")
WHOLE = 1 << 26  # bytes of a file that are hashed in full; of a larger one, 64 pieces of 1 MiB
PIECES, PIECE = 64, 1 << 20
SHOWN = 6


def run_record(cfg: Any, model: Any, chain: Chain) -> dict[str, Any]:
    """Return the settings that determine a run, by name; equal for ``fairseq-train`` and ``fairseq-hydra-train``.

    ``chain`` also says whether the synonym table determines the run.
    """
    record: dict[str, Any] = {}
    for section in CLASSES:
        record |= _section(section, cfg[section])
    for section, determined in DETERMINING.items():
        record |= {name: _plain(cfg[section][name]) for names in determined.values() for name in names.split()}
    record |= _model(model) | _files(cfg, chain)
    return record | {"augment": chain.spec, "workers": cfg.distributed_training.distributed_world_size}


def check_same_run(saved: Mapping[str, Any], current: Mapping[str, Any], path: str, allowed: str) -> list[str]:
    """Compare a checkpoint's record with the record of the resuming run, and describe the differences that are allowed.

    The number of workers, the way in which views are drawn, and settings of ``allowed``, joined by commas, may differ. A
    setting that only one of the records has is not compared.

    Raises:
        UserError: another setting differs.
    """
    names = setting_names(allowed)
    common = [name for name in current if name in saved and name not in ("workers", "draws")]
    differing = [name for name in common if _value(saved[name]) != _value(current[name])]
    forbidden = [name for name in differing if name not in names]
    if forbidden:
        shown = "; ".join(_difference(name, saved[name], current[name]) for name in forbidden[:SHOWN])
        more = f"; and {len(forbidden) - SHOWN} more" if len(forbidden) > SHOWN else ""
        flags = ",".join(name.replace("_", "-") for name in differing)
        raise UserError(
            f"{path} belongs to another run: {shown}{more}. Give another --save-dir for a new run, with --finetune-from-model "
            f"{path} to start from these weights; or continue this run anyway with --allow-change {flags}"
        )
    described = [_difference(name, saved[name], current[name]) for name in differing]
    old, new = saved.get("workers"), current["workers"]
    if old not in (None, new):
        per_worker = "--batch-size, --max-tokens and --update-freq are per worker"
        rest = "if a step reads other texts than before, this epoch repeats some and leaves out others"
        described += [f"{old} workers, now {new}; {per_worker}; {rest}"]
    if "draws" in current and saved.get("draws", 1) != current["draws"]:
        described += ["another version made the checkpoint: batches, views and masks of this epoch may be drawn anew"]
    return described


def check_allowed(cfg: Any) -> None:
    """Check that ``--allow-change`` names settings; UserError if neither the configuration nor a record has one."""
    of_model = (action.dest for action in flags_of(ARCH_MODEL_REGISTRY[cfg.model._name]))  # hydra has those given alone
    known = {*HASHED, *CLASSES, "arch", *of_model}
    for section in (cfg[name] for name in cfg):
        if isinstance(section, argparse.Namespace) or OmegaConf.is_dict(section):
            known.update(vars(section) if isinstance(section, argparse.Namespace) else section)
    for name in sorted(setting_names(cfg.task.allow_change) - known):
        raise UserError(f"--allow-change {name}: there is no such setting{nearest(name, known)}")


def check_same_architecture(state: Mapping[str, Any], model: Any, path: str, allowed: str) -> None:
    """Compare sizes of the model, and settings that shapes do not show: attention heads, activation, LayerNorm's epsilon.

    The settings of ``allowed``, joined by commas, may differ if shapes do not show them.

    Raises:
        UserError: they differ, so the weights do not fit or would have another meaning.
    """
    saved = getattr(state.get("cfg"), "model", None)
    compared = [*SIZES, *(name for name in SHAPELESS if name not in setting_names(allowed))]
    pairs = {name.replace("_", "-"): (getattr(saved, name, None), getattr(model.args, name, None)) for name in compared}
    differing = {flag: pair for flag, pair in pairs.items() if None not in pair and pair[0] != pair[1]}
    if differing:
        old = " ".join(f"--{flag} {theirs}" for flag, (theirs, _) in differing.items())
        new = " ".join(str(ours) for _, ours in differing.values())
        is_shapeless = {flag.replace("-", "_") for flag in differing} <= set(SHAPELESS)
        or_allow = f", or --allow-change {','.join(differing)}" if is_shapeless else ""
        raise UserError(f"{path}: was trained with {old}, and the flags say {new}; give the former{or_allow}")


def check_same_vocabulary(state: Mapping[str, Any], path: str, data: str) -> None:
    """Compare the vocabulary that a checkpoint was trained with and the vocabulary of the data folder.

    A checkpoint that does not record it is compared with the ``dict.txt`` in its own folder, if there is one.

    Raises:
        UserError: they differ.
    """
    ours, adjacent = Path(data) / DICTIONARY, Path(path).parent / DICTIONARY
    recorded = (state.get("task_state") or {}).get("vocabulary_hash")
    if recorded is not None:
        differs = recorded != hash_file(ours)
    else:
        differs = adjacent.is_file() and read_dictionary(adjacent) != read_dictionary(ours)
    if differs:
        raise UserError(f"{path}: its vocabulary differs from {ours}; prepare the text with the checkpoint's tokenizer")


def content_hash(path: Path) -> str:
    """The SHA-256 of a file; if it is larger than 64 MiB, of its size and of 64 pieces of 1 MiB at equal distances."""
    size = path.stat().st_size
    if size <= WHOLE:
        return hash_file(path)
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as stream:
        for number in range(PIECES):
            stream.seek(number * (size - PIECE) // (PIECES - 1))
            digest.update(stream.read(PIECE))
    return digest.hexdigest()


def _section(name: str, settings: Any) -> dict[str, Any]:
    """The settings of a section, without those interpolated from another section."""
    kind = getattr(settings, "_name", None)
    registry = REGISTRIES.get(name, {"registry": {}, "dataclass_registry": {}})
    fields = getattr(registry["dataclass_registry"].get(kind), "__dataclass_fields__", {})
    own = {}
    stored: Any = OmegaConf.to_container(settings) if OmegaConf.is_config(settings) else vars(settings)
    if kind in registry["registry"] and isinstance(settings, argparse.Namespace):  # holds all flags of the run
        stored = [flag.dest for flag in flags_of(registry["registry"][kind])]
    for key in stored:
        default = getattr(fields.get(key), "default", None)
        is_copy = isinstance(default, str) and default.startswith("${") and (name != "lr_scheduler" or key == "lr")
        if key not in FREE.get(name, "").split() and not is_copy and not key.startswith("_"):
            own[key] = _plain(settings[key] if OmegaConf.is_config(settings) else getattr(settings, key))
    return own | {name: kind}


def _model(model: Any) -> dict[str, Any]:
    name = getattr(model.args, "_name", None) or getattr(model.args, "arch", None)
    values = {}
    for action in flags_of(type(model)):
        if action.dest not in FREE["model"].split():
            default = None if action.default == argparse.SUPPRESS else action.default
            values[action.dest] = _plain(getattr(model.args, action.dest, default))
    return values | {"arch": name}


def _files(cfg: Any, chain: Chain) -> dict[str, Any]:
    task, guide = cfg.task, getattr(cfg.criterion, "guide", None)
    folders, corpora = epoch_folders(task.data), parse_mix(task.mix, task.data)
    shares = [
        f"{corpus.weight / corpora[0].weight} {_hash_texts(cfg, data_folders(corpus.folder))}" for corpus in corpora
    ]
    files = {
        "data": {"path": task.data, "hash": _hash_texts(cfg, folders)},
        "mix": {"path": task.mix, "hash": hashlib.sha256(" ".join(shares).encode()).hexdigest()} if corpora else None,
        "vocabulary": _file(str(folders[0] / DICTIONARY)),
        "start": _file(cfg.checkpoint.finetune_from_model),
        "guide": _file(checkpoint_in(guide, "--guide")) if guide else None,
    }
    if paths := [Path(name) for name in _aligned(cfg) if aligned_folder(str(folders[0]), name) == name]:
        files["aligned"] = {"path": ",".join(map(str, paths)), "hash": _hash_of(cfg, paths)}
    if chain.needs_synonyms:
        files["synonyms"] = _file(str(task.synonyms or folders[0] / SYNONYMS_NPZ))
    return files


def _hash_texts(cfg: Any, folders: list[Path]) -> str:
    """Hash of the training texts of data folders, of their paraphrases and of their hard negatives."""
    return _hash_of(cfg, [f / part for f in folders for part in ("", *(f"{PARAPHRASES}/{n}" for n in _aligned(cfg)))])


def _aligned(cfg: Any) -> list[str]:
    """Names of the paraphrases and hard negatives: of folders in ``paraphrase/``, or paths."""
    names = [name for name in find_view_source(cfg.task.views)[1].values if name != ORIGINAL]
    return names + (cfg.task.hard_negatives.split(",") if cfg.task.hard_negatives else [])


def _hash_of(cfg: Any, parts: list[Path]) -> str:
    """Hash of the training texts in these folders: of train and, as fairseq reads them too, train1, train2 and so on."""
    hashes = ""
    for prefix in (part / cfg.dataset.train_subset for part in parts):
        for number in itertools.count():
            files = [path for end in (".idx", ".bin") if (path := Path(f"{prefix}{number or ''}{end}")).is_file()]
            if number and len(files) < 2:
                break
            hashes += "".join(map(content_hash, files))
    return hashlib.sha256(hashes.encode()).hexdigest()


def _file(path: str | None) -> dict[str, str] | None:
    return {"path": path, "hash": content_hash(Path(path))} if path and os.path.isfile(path) else None


def _plain(value: Any) -> Any:
    """Convert a value to strings, numbers and lists, in one form for flags and YAML."""
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value) if value[:1] in "([" else value  # --adam-betas
        except (SyntaxError, ValueError):
            return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "value") and not isinstance(value, str | int | float):  # an enum
        return str(value.value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _value(entry: Any) -> Any:
    return entry.get("hash") if isinstance(entry, dict) else entry


def _difference(name: str, old: Any, new: Any) -> str:
    if name not in HASHED:
        return f"--{name.replace('_', '-')} {_shown(old)}, now {_shown(new)}"
    old_path, new_path = (entry["path"] if entry else "none" for entry in (old, new))
    changed = " has changed" if old_path == new_path else f", now {new_path}"
    return f"{HASHED[name]} {old_path}{changed}"


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
