"""How a sentence-transformers folder states its pooling, and how one is stated there."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.interop.reading import read_json

__all__ = ["EXPORTED", "StatedPooling", "read_pooling", "write_modules"]

# Our name -> the switch in 1_Pooling/config.json, in the form that every release of sentence-transformers reads.
EXPORTED = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}
_OTHERS = ("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken")
_TYPE = "sentence_transformers.models."


@dataclass(frozen=True)
class StatedPooling:
    """What a folder says: one of EXPORTED, or None where it says nothing; whether its vectors are scaled to length 1."""

    pooling: str | None = None
    normalized: bool = False


def read_pooling(folder: Path, *, ignore_mode: bool = False) -> StatedPooling:
    """The pooling of a sentence-transformers folder; nothing for a plain Hugging Face one.

    Args:
        folder: of either kind.
        ignore_mode: leave the pooling unread, as the user chose another.

    Raises:
        UserError: a pooling or a module after it that clear_roberta does not have.
    """
    if not (folder / "modules.json").is_file():
        return StatedPooling()
    pooling, normalized = None, False
    for module in read_json(folder / "modules.json"):
        name = str(module.get("type", "")).rpartition(".")[2]
        if name == "Pooling":
            pooling = None if ignore_mode else _read_mode(folder / str(module["path"]) / "config.json")
        elif name == "Normalize":
            normalized = True
        elif name != "Transformer":
            raise UserError(
                f"{folder / 'modules.json'}: has a module {name} after the encoder, which would be lost; remove it from the "
                "file to import the encoder alone"
            )
    return StatedPooling(pooling, normalized)


def _read_mode(path: Path) -> str:
    config: dict[str, Any] = read_json(path)
    modes = config.get("pooling_mode")
    if modes is None:
        short = {switch: name for name, switch in EXPORTED.items()}
        modes = [
            short.get(key, key) for key, is_on in config.items() if key.startswith("pooling_mode_") and is_on is True
        ]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) != 1 or modes[0] not in EXPORTED:
        raise UserError(
            f"{path}: pooling {' + '.join(map(str, modes))} is none of {', '.join(EXPORTED)}; choose with --pooling"
        )
    return str(modes[0])


def write_modules(folder: Path, pooling: str, dimension: int, positions: int, *, normalized: bool) -> None:
    """Make a Hugging Face folder one of sentence-transformers."""
    parts = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalized else [])]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": _TYPE + name}
        for index, (path, name) in enumerate(parts)
    ]
    switches = {switch: switch == EXPORTED[pooling] for switch in (*EXPORTED.values(), *_OTHERS)}
    for path, _ in parts[1:]:
        (folder / path).mkdir()
    _write(folder / "modules.json", modules)
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": dimension, **switches})
    _write(folder / "sentence_bert_config.json", {"max_seq_length": positions, "do_lower_case": False})


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
