"""Imports a Hugging Face folder, or an archive of fairseq, as a checkpoint with its vocabulary and tokenizer."""

import json
import shlex
import shutil
import sys
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary

from fairseq_clear import register
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import load_model
from fairseq_clear.files import hash_file, read_json, versions, write_json
from fairseq_clear.interop.hf_format import HEAD_WEIGHT, check_folder, check_kind, from_hf, model_flags
from fairseq_clear.interop.parity import Parity, compare_hf, hf_ids
from fairseq_clear.interop.stock import CHECKPOINT, build_model, compare_stock, settings_of, write_checkpoint
from fairseq_clear.models.clear_hf import ClearHfModel
from fairseq_clear.models.hf_source import CONFIG, read_source
from fairseq_clear.models.pretrained_encoder import STOCK_POOLING
from fairseq_clear.models.state_dicts import EMBEDDING, OFFSET, POSITIONS
from fairseq_clear.modules.pooling import parse_pooling
from fairseq_clear.output_folder import check_outside, output_folder, scratch_folder
from fairseq_clear.text.data_folders import CLEAR_FORMAT, CLEAR_JSON, DICTIONARY, TOKENIZERS, read_clear_json
from fairseq_clear.text.sentence_folders import SentenceSettings, read_modules
from fairseq_clear.text.tokenizers import HF_NAMES, HfTokenizer
from fairseq_clear.text.vocabulary import GPT2_NAMES, SPM_NAME, build_dictionary, install_hf_tokenizer, load_dictionary

register()

ARCH = "clear_roberta"
GPT2_FILES = "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe/{encoder.json,vocab.bpe}"


def import_hf(
    source: Path, dest: Path, *, arch: str = ARCH, pooling: str | None = None, overwrite: bool = False
) -> list[str]:
    """Make a checkpoint of a Hugging Face folder: ``model.pt``, ``dict.txt``, the tokenizer's files and ``clear.json``.

    Returns lines to print; ``dest`` is not written if an error occurs.

    Args:
        arch: ``clear_roberta``, to which the weights are converted, or ``clear_hf``, which takes the encoder as it is.
        pooling, overwrite: as the flags of ``fairseq-clear import``.

    Raises:
        UserError: transformers cannot load the folder, or the encoder cannot be imported exactly.
    """
    check_outside(dest, [source])
    check_folder(source)
    if pooling is not None:
        parse_pooling(pooling)
    if arch == ARCH:
        check_kind(read_json(source / CONFIG, kind=dict), source / CONFIG)
    _check_made_by_import(dest)
    stated, settings = read_modules(source, ignore_mode=pooling is not None)
    chosen = pooling or stated or STOCK_POOLING
    with output_folder(dest, overwrite, (CHECKPOINT,)) as temporary:
        tokenizer, dictionary = write_vocabulary(source, temporary)
        task = SimpleNamespace(source_dictionary=dictionary, folder=temporary)
        if arch == ARCH:
            model, cfg, notes = _convert(source, dest, task, tokenizer, chosen, settings)
        else:
            flags = {"encoder-from": str(source), "projection-layers": 0, "pooling": chosen}
            cfg = settings_of(dest, "clear_lm", arch, flags)
            write_manifest(temporary, "hf", list(HF_NAMES), {"model_type": arch, "flags": {}})
            model = ClearHfModel.build_model(cfg.model, task)
            model.encoder.check()
            cfg.model.encoder_from = None
            left = _parts(model.encoder.left_out)
            notes = [f"left out, as the encoder has no such part: {', '.join(left)}"] if left else []
        if pooling is None and stated is None:
            notes.append(f"the folder has no pooling; {chosen} is used unless --pooling gives another")
        if name := next((name for name, one in model.named_parameters() if not one.isfinite().all()), None):
            raise UserError(f"{source}: {name} is NaN or infinite; give a folder whose weights are whole")
        kept = SentenceSettings(**cfg.model.sentence_settings)
        parts = ["vectors of length 1"] if kept.normalized else []
        longest = int(model.max_positions())
        if kept.max_length and kept.max_length > longest and arch != ARCH:
            notes.append(f"max_seq_length {kept.max_length}: texts are cut to {longest} tokens, as config.json says")
        parts += [f"texts of at most {min(kept.max_length, longest)} tokens"] if kept.max_length else []
        special = [one["content"] for one in json.loads(tokenizer.content)["added_tokens"] if one["special"]]
        if prompts := {name: prompt for name, prompt in (kept.config.get("prompts") or {}).items() if prompt}:
            parts.append(f"prompts {', '.join(prompts)}")
        for name in (name for name, prompt in prompts.items() if any(token in prompt for token in special)):
            raise UserError(f"{source}: its prompt {name} has a special token, which would be read as text; remove it")
        if width := kept.config.get("truncate_dim"):
            notes.append(
                f"truncate_dim {width} of the folder is only exported; give embed and evaluations --dimension {width}"
            )
        notes += [f"as in the folder: {'; '.join(parts)}"] if parts else []
        write_checkpoint(temporary / CHECKPOINT, cfg, model.state_dict(), hash_file(temporary / DICTIONARY))
        parity = compare_hf(load_model(temporary / CHECKPOINT, temporary), tokenizer, source, chosen)
        parity.check()
    return _report(dest, parity, notes, arch)


def is_imported(folder: Path) -> bool:
    """Whether this is a folder of ``import``."""
    return (folder / CLEAR_JSON).is_file() and "imported" in read_clear_json(folder)


def _check_made_by_import(dest: Path) -> None:
    """Raise UserError for a folder with another ``model.pt``: an archive of fairseq, or the checkpoint of ``refine``."""
    if (dest / CHECKPOINT).is_file() and not is_imported(dest):
        raise UserError(f"{dest}: has a {CHECKPOINT}, but was not made by this command; choose another --dest")


def _report(dest: Path, parity: Parity, notes: list[str], arch: str = ARCH) -> list[str]:
    """Lines to print: what was left out or initialised, the comparison with the imported model, and what to do next."""
    return [
        *notes,
        parity.summary(),
        f"wrote {dest}",
        f"to start from it: --arch {arch} --encoder-from {shlex.quote(str(dest))}",
    ]


def _convert(
    source: Path, dest: Path, task: Any, tokenizer: HfTokenizer, pooling: str, settings: SentenceSettings
) -> tuple[Any, Any, list[str]]:
    """Return a clear_roberta with the weights of ``source``, its configuration, and notes on what differs; write clear.json."""
    theirs = read_source(source, {})
    config = theirs.base.config
    weights = from_hf(theirs, torch.tensor(hf_ids(task.source_dictionary, tokenizer)), source)
    flags = model_flags(config, len(weights[POSITIONS]) - OFFSET, pooling)
    write_manifest(task.folder, "hf", list(HF_NAMES), {"model_type": config.model_type, "flags": flags})
    has_own_output = not torch.equal(weights.get(HEAD_WEIGHT, weights[EMBEDDING]), weights[EMBEDDING])
    untied = {"untie-weights-roberta": True} if has_own_output else {}
    cfg = settings_of(dest, "clear_lm", ARCH, {**flags, "projection-layers": 0, **untied})
    if (settings.max_length or sys.maxsize) >= flags["max-positions"]:
        settings = replace(settings, max_length=None)
    cfg.model.sentence_settings = asdict(settings)
    model = build_model(cfg, task.source_dictionary)
    model.load_state_dict(model.state_dict() | weights)
    left = _parts(theirs.unused) + (["pooler"] if theirs.pooler else [])
    notes = {
        f"left out, as clear_roberta has no such part: {', '.join(left)}": bool(left),
        "segment 0 is added to the positions: exact for single texts": config.type_vocab_size > 1,
        "the folder has no head for masked language modelling; it is freshly initialised": theirs.head is None,
    }
    return model, cfg, [note for note, applies in notes.items() if applies]


def _parts(weights: Iterable[str]) -> list[str]:
    """The parts of a model that have these weights."""
    return sorted({".".join(name.split(".")[:2]) for name in weights})


def write_manifest(folder: Path, kind: str, files: list[str], imported: dict[str, Any]) -> None:
    """Write ``clear.json`` for a folder with a tokenizer and a vocabulary but no text; ``imported`` describes the model."""
    content = {
        "format": CLEAR_FORMAT,
        "tokenizer": {"kind": kind, "files": files},
        "vocabulary_hash": hash_file(folder / DICTIONARY),
        "imported": imported,
        "versions": versions(),
    }
    write_json(folder / CLEAR_JSON, content)


def write_vocabulary(source: Path, folder: Path) -> tuple[HfTokenizer, Dictionary]:
    """Write the tokenizer's files and ``dict.txt``; return the tokenizer, and the dictionary with the ``<mask>`` of a task.

    Raises:
        UserError: there is no tokenizer, or it has tokens that a dict.txt cannot hold.
    """
    install_hf_tokenizer(source, folder)
    tokenizer = HfTokenizer.from_folder(folder)
    dictionary = build_dictionary(tokenizer)
    if len(dictionary) == dictionary.nspecial:
        raise UserError(f"{source}: has no tokenizer, or an empty one; copy its tokenizer.json or vocabulary there")
    dictionary.save(str(folder / DICTIONARY))
    if load_dictionary(folder / DICTIONARY).symbols != dictionary.symbols:
        raise UserError(f"{source}: its vocabulary has tokens that a dict.txt cannot hold")
    dictionary.add_symbol("<mask>")
    return tokenizer, dictionary


def is_archive(source: Path) -> bool:
    """Whether this is a ``.tar.gz``, or a folder with ``model.pt`` and ``dict.txt`` but no ``config.json``."""
    is_folder = all((source / name).is_file() for name in (CHECKPOINT, DICTIONARY))
    return source.name.endswith((".tar.gz", ".tgz", ".tar")) or (is_folder and not (source / CONFIG).is_file())


def import_archive(
    source: Path, dest: Path, gpt2: tuple[Path, Path] | None = None, *, overwrite: bool = False
) -> list[str]:
    """Convert an archive, packed or unpacked, to the folder ``dest``.

    The archive has ``model.pt``, ``dict.txt`` and, for XLM-R, ``sentencepiece.bpe.model``. ``gpt2`` is ``encoder.json`` and
    ``vocab.bpe``, which roberta.base's does not have. The other arguments, and what is returned, are as for ``import_hf``.

    Raises:
        UserError: a part is missing or damaged.
    """
    check_outside(dest, [source])
    _check_made_by_import(dest)
    with _unpacked(source) as folder, output_folder(dest, overwrite, (CHECKPOINT,)) as temporary:
        if not (folder / DICTIONARY).is_file():
            raise UserError(f"{source}: has no {DICTIONARY}; is it an archive of fairseq's roberta?")
        is_xlmr = gpt2 is None and (folder / SPM_NAME).is_file()
        kind, names = ("sentencepiece", [SPM_NAME]) if is_xlmr else ("gpt2", list(GPT2_NAMES))
        files = gpt2 or tuple(folder / name for name in names)
        if not all(path.is_file() for path in files):
            if is_imported(source):
                raise UserError(f"{source}: is a folder of import; give it as --data-bin or --encoder-from")
            hint = f"{source}: needs GPT-2's byte-level BPE, which is not in the archive ({GPT2_FILES})"
            raise UserError(f"{hint}; give --gpt2-encoder-json and --gpt2-vocab-bpe")
        sources = (folder / CHECKPOINT, folder / DICTIONARY, *files)
        for path, name in zip(sources, (CHECKPOINT, DICTIONARY, *names), strict=True):
            shutil.copyfile(path, temporary / name)
        TOKENIZERS[kind](*(temporary / name for name in names))
        loaded = load_model(temporary / CHECKPOINT, temporary)
        write_manifest(temporary, kind, names, {"model_type": "fairseq roberta", "flags": {}})
        parity = compare_stock(loaded, folder / CHECKPOINT, temporary)
        parity.check()
    pooling = loaded.model.args.pooling
    notes = [f"a stock RoBERTa checkpoint has no pooling; {pooling} is used unless --pooling gives another"]
    return _report(dest, parity, notes)


@contextmanager
def _unpacked(source: Path) -> Iterator[Path]:
    """Yield the folder that holds ``model.pt``. An archive is unpacked to a temporary folder, which its paths cannot leave."""
    if source.is_dir():
        yield source
        return
    with scratch_folder() as made:
        try:
            with tarfile.open(source) as archive:
                archive.extractall(made, filter="data")
        except (OSError, tarfile.TarError, EOFError) as error:
            raise UserError(f"{source}: cannot unpack it ({getattr(error, 'strerror', None) or error})") from None
        found = sorted(made.rglob(CHECKPOINT))
        if not found:
            raise UserError(f"{source}: has no {CHECKPOINT} in it; is it an archive of fairseq's roberta?")
        yield found[0].parent
