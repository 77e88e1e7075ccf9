"""Reads and writes how a sentence-transformers folder makes its vectors: pooling, normalization, prompts, maximal length."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.files import read_json, write_json

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
# Names of the prompts of queries and of passages, as in sentence-transformers.
QUERY, DOCUMENT = ("query",), ("document", "passage", "corpus")


def find_prompt(prompts: Mapping[str, str], names: Iterable[str | None]) -> str | None:
    """Return the first of these names whose prompt is not empty; None if there is no such name.

    sentence-transformers adds an empty prompt ``document`` to every folder, which therefore says nothing about a ``passage``.
    """
    return next((name for name in names if name and prompts.get(name)), None)


def prompt_for(encoder: Any, names: Sequence[str], given: str | None = None) -> str | None:
    """Return the prompt of queries or of passages: the given one, or else the encoder's, see ``find_prompt``.

    None if the encoder has neither such a prompt nor a default one, which would be used instead.
    """
    prompts = getattr(encoder, "prompts", None) or {}
    name = find_prompt(prompts, names)
    none = "" if getattr(encoder, "default_prompt_name", None) else None
    return given if given is not None else none if name is None else prompts[name]


@dataclass(frozen=True)
class SentenceSettings:
    """Settings of a folder's vectors besides the encoder. A checkpoint keeps them for inference and export.

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
        package, _, name = str(module.get("type", "")).rpartition(".")
        name = name if package.startswith("sentence_transformers.") else f"{package}.{name}"
        if name == "Pooling":
            config = folder / str(module.get("path", "")) / "config.json"
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
    if (kind := config.get("model_type") or "SentenceTransformer") != "SentenceTransformer":
        raise UserError(f"{folder / PROMPTS}: is a {kind}, which does not encode single texts; give another folder")
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or (default and default not in prompts):
        raise UserError(
            f"{folder / PROMPTS}: prompts are not names and texts, or lack {default!r}, the default; correct it"
        )
    return pooling, SentenceSettings(normalized, _read_length(folder), include_prompt, config)


def lower_cases(folder: Path) -> bool:
    """Whether sentence-transformers puts texts into lower case before the tokenizer reads them."""
    return _read_limits(folder).get("do_lower_case") is True


def _read_limits(folder: Path) -> dict[str, Any]:
    paths = (folder / name for name in LIMITS if (folder / name).is_file())
    return read_json(path, kind=dict) if (path := next(paths, None)) else {}


def _read_length(folder: Path) -> int | None:
    """The limit of sentence-transformers, or else the tokenizer's, which is above 1e20 if there is none."""
    length, tokenizer = _read_limits(folder).get("max_seq_length"), folder / "tokenizer_config.json"
    if length is None and tokenizer.is_file():
        length = read_json(tokenizer, kind=dict).get("model_max_length")
    return int(length) if isinstance(length, int | float) and 2 <= length < 1e20 else None


def _read_mode(path: Path) -> str:
    config: dict[str, Any] = read_json(path, kind=dict)
    modes = config.get("pooling_mode")
    if modes is None:
        short = {switch: name for name, switch in EXPORTED.items()}
        switches = [key for key, is_on in config.items() if key.startswith("pooling_mode_") and is_on is True]
        modes = [short.get(key, key) for key in switches]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) != 1 or modes[0] not in EXPORTED:
        raise UserError(
            f"{path}: pooling {' + '.join(map(str, modes)) or 'none'} is not one of {', '.join(EXPORTED)}; choose one with "
            "--pooling"
        )
    return str(modes[0])


def write_modules(
    folder: Path, pooling: str, width: int, length: int, settings: SentenceSettings, *, dimension: int | None = None
) -> None:
    """Add the files that make a Hugging Face folder a sentence-transformers folder.

    Args:
        pooling: one of EXPORTED.
        length: tokens to which texts are cut.
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
    config = settings.config
    prompts = config.get("prompts") or {}
    if name := find_prompt(prompts, DOCUMENT):  # encode_document looks for document first, which may be empty
        config = config | {"prompts": prompts | {"document": prompts[name]}}
    if config := config | ({} if dimension is None else {"truncate_dim": dimension}):
        write_json(folder / PROMPTS, config)
    write_json(folder / LIMITS[0], {"max_seq_length": length, "do_lower_case": False})
