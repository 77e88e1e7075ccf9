"""Which files a model is made of, and their hashes, by which a run is known again."""

import re
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.files import hash_file
from fairseq_clear.preparation.back_translation.settings import BackTranslateSettings, ModelSource

__all__ = ["checkpoint_files", "find_codes", "identity"]

MODEL_NAME = re.compile(r"model\d*\.pt")
TRAINED_NAMES = ("checkpoint_best.pt", "checkpoint_last.pt")
# by the names that fairseq's archives and its examples give them, in this order
CODE_NAMES = ("bpecodes", "code", "codes", "bpe.codes", "bpe_codes")
SENTENCEPIECE_NAMES = ("sentencepiece.bpe.model", "spm.model", "sentencepiece.model")


def checkpoint_files(source: ModelSource, which: str) -> list[Path]:
    """The checkpoints that ``--forward`` or ``--backward`` names: all ``model*.pt`` of a folder, or its best or last.

    Raises:
        UserError: there is none.
    """
    folder = Path(source.path)
    if folder.is_dir():
        found = sorted(path for path in folder.glob("*.pt") if MODEL_NAME.fullmatch(path.name))
        found = found or [folder / name for name in TRAINED_NAMES if (folder / name).is_file()][:1]
        if not found:
            raise UserError(
                f"--{which} {folder}: holds neither model*.pt nor {' nor '.join(TRAINED_NAMES)}; unpack the archive, "
                "or name the checkpoint itself"
            )
        return found
    files = [Path(part) for part in source.path.split(":")]
    for file in files:
        if not file.is_file():
            raise UserError(f"--{which} {file}: no such file or folder")
    return files


def identity(settings: BackTranslateSettings, which: str) -> dict[str, str]:
    """SHA-256 of the checkpoints, dictionaries and codes of a model, by file name.

    Raises:
        UserError: one of them is missing.
    """
    source: ModelSource = getattr(settings, which)
    files = checkpoint_files(source, which)
    folder = source.dictionaries or files[0].parent
    dictionaries = sorted(folder.glob("dict.*.txt"))
    if not dictionaries:
        raise UserError(f"--{which} {source.path}: no dict.LANGUAGE.txt in {folder}; add --{which}-data DIR")
    codes = source.codes or (find_codes(files[0].parent, settings.bpe) if settings.bpe != "none" else None)
    if codes is not None and not codes.is_file():
        raise UserError(f"--{which}-codes {codes}: no such file")
    everything = [*files, *dictionaries, *([codes] if codes is not None else [])]
    try:
        return {path.name: hash_file(path) for path in everything}
    except OSError as error:
        raise UserError(f"{error.filename}: cannot read it ({error.strerror or error})") from None


def find_codes(folder: Path, bpe: str) -> Path | None:
    """The file of codes beside a checkpoint."""
    names = (CODE_NAMES if bpe in ("auto", "bpe") else ()) + (
        SENTENCEPIECE_NAMES if bpe in ("auto", "sentencepiece") else ()
    )
    return next((folder / name for name in names if (folder / name).is_file()), None)
