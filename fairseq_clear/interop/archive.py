"""Imports fairseq's own archives, such as ``roberta.base.tar.gz``: the checkpoint unchanged, tokenizer and vocabulary."""

import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import load_model
from fairseq_clear.interop.importing import (
    CHECKPOINT,
    ImportReport,
    repeat_positions,
    training_flags,
    write_manifest,
)
from fairseq_clear.interop.stock import compare_stock
from fairseq_clear.models.state_dicts import POSITIONS
from fairseq_clear.output_folder import output_folder
from fairseq_clear.patches.checkpoint_files import save
from fairseq_clear.text.data_folders import DICTIONARY, TOKENIZERS
from fairseq_clear.text.vocabulary import GPT2_NAMES, SPM_NAME

__all__ = ["import_archive", "is_archive"]

WHERE = "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe/{encoder.json,vocab.bpe}"


def is_archive(source: Path) -> bool:
    """Whether this is a ``.tar.gz``, or a folder with ``model.pt`` and ``dict.txt`` but no ``config.json``."""
    if source.name.endswith((".tar.gz", ".tgz", ".tar")):
        return True
    return (
        (source / CHECKPOINT).is_file() and (source / DICTIONARY).is_file() and not (source / "config.json").is_file()
    )


def import_archive(
    source: Path,
    dest: Path,
    gpt2: tuple[Path, Path] | None = None,
    *,
    extend_positions: int | None = None,
    overwrite: bool = False,
) -> ImportReport:
    """Convert an archive, packed or unpacked, to the folder ``dest``.

    Args:
        source: the archive: ``model.pt``, ``dict.txt`` and, for XLM-R, ``sentencepiece.bpe.model``.
        dest: folder to create.
        gpt2: ``encoder.json`` and ``vocab.bpe``, which roberta.base's archive does not hold; None if they are in the archive.
        extend_positions: number of positions to have; those of the checkpoint are repeated.
        overwrite: replace ``dest``.

    Raises:
        UserError: a part is missing or damaged.
    """
    with _unpacked(source) as folder, output_folder(dest, overwrite) as temporary:
        for name in (CHECKPOINT, DICTIONARY):
            _copy(folder / name, temporary / name, f"{source}: has no {name}; is it an archive of fairseq's roberta?")
        kind, names = _copy_tokenizer(folder, gpt2, temporary, source)
        TOKENIZERS[kind]([str(temporary / name) for name in names])
        loaded = load_model(temporary / CHECKPOINT, temporary)
        if extend_positions is not None:
            _extend(temporary / CHECKPOINT, extend_positions)
            loaded = load_model(temporary / CHECKPOINT, temporary)
        args = loaded.model.args
        write_manifest(temporary, kind, names, {"model_type": "fairseq roberta", "flags": {}, "normalized": False})
        parity = compare_stock(loaded, folder / CHECKPOINT, temporary)
        parity.check()
    names = ["encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads", "activation_fn"]
    flags = {name.replace("_", "-"): getattr(args, name) for name in names}
    flags |= {"max-positions": int(loaded.model.max_positions()), "pooling": args.pooling}
    notes = [f"a stock RoBERTa checkpoint has no pooling; {args.pooling} is used unless --pooling gives another"]
    return ImportReport(dest, parity, training_flags(flags), notes)


def _extend(checkpoint: Path, wanted: int) -> None:
    """Rewrite a checkpoint with its positions repeated; fairseq before 0.10 called the encoder a decoder."""
    # torch.load, because fairseq's reader converts the settings to a class that it cannot load again
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    name = next(name for name in state["model"] if name.endswith(f".{POSITIONS.partition('.')[2]}"))
    state["model"][name] = repeat_positions(state["model"][name], wanted)
    settings = state.get("args") or state["cfg"]["model"]
    settings = settings if isinstance(settings, dict) else vars(settings)
    settings["max_positions"] = wanted
    state["last_optimizer_state"] = None  # it has the shape of the old positions
    save(state, checkpoint)


def _copy_tokenizer(
    folder: Path, gpt2: tuple[Path, Path] | None, temporary: Path, source: Path
) -> tuple[str, list[str]]:
    if gpt2 is None and (folder / SPM_NAME).is_file():
        shutil.copyfile(folder / SPM_NAME, temporary / SPM_NAME)
        return "sentencepiece", [SPM_NAME]
    files = gpt2 or (folder / GPT2_NAMES[0], folder / GPT2_NAMES[1])
    for path, name in zip(files, GPT2_NAMES, strict=True):
        hint = f"{source}: needs GPT-2's byte-level BPE, which is not in the archive ({WHERE})"
        _copy(path, temporary / name, f"{hint}; give --gpt2-encoder-json and --gpt2-vocab-bpe")
    return "gpt2", list(GPT2_NAMES)


def _copy(path: Path, target: Path, missing: str) -> None:
    if not path.is_file():
        raise UserError(missing)
    shutil.copyfile(path, target)


@contextmanager
def _unpacked(source: Path) -> Iterator[Path]:
    """Yield the folder that holds ``model.pt``. An archive is unpacked to a temporary folder, which its paths cannot leave."""
    if source.is_dir():
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="fairseq-clear-") as made:
        try:
            with tarfile.open(source) as archive:
                archive.extractall(made, filter="data")
        except (OSError, tarfile.TarError, EOFError) as error:
            raise UserError(f"{source}: cannot unpack it ({getattr(error, 'strerror', None) or error})") from None
        found = sorted(Path(made).rglob(CHECKPOINT))
        if not found:
            raise UserError(f"{source}: has no {CHECKPOINT} in it; is it an archive of fairseq's roberta?")
        yield found[0].parent
