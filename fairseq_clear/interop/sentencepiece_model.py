"""What a sentencepiece ``.model`` file says beyond its pieces, read from its protobuf without the protobuf package.

Field numbers are those of sentencepiece_model.proto, which never change.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fairseq_clear.errors import UserError

__all__ = ["BPE", "UNIGRAM", "SentencePieceModel", "read_sentencepiece_model"]

UNIGRAM, BPE = 1, 2
TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_USER_DEFINED, _BYTE = 4, 6
_TRAINER, _NORMALIZER, _PIECE = 2, 3, 1


@dataclass(frozen=True)
class SentencePieceModel:
    """Attributes:
    pieces: (piece, score) in the order of their ids.
    kind: UNIGRAM or BPE.
    charsmap: of the normaliser; empty for none.
    byte_fallback: whether unknown characters become bytes.
    dummy_prefix, squeeze_spaces: whether a space is put before the text; whether runs of spaces become one.
    """

    pieces: list[tuple[str, float]]
    kind: int
    charsmap: bytes
    byte_fallback: bool
    dummy_prefix: bool
    squeeze_spaces: bool


def read_sentencepiece_model(path: Path) -> SentencePieceModel:
    """Read a ``.model`` file that sentencepiece itself accepts.

    Raises:
        UserError: a kind or a setting that Hugging Face's tokenizers have no counterpart of.
    """
    pieces: list[tuple[str, float]] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    kinds = set()
    for number, value in _fields(path.read_bytes()):
        if number == _PIECE:
            piece = dict(_fields(_bytes(value)))
            pieces.append((_bytes(piece.get(1, b"")).decode("utf-8"), _float(piece.get(2, b"\0\0\0\0"))))
            kinds.add(piece.get(3, 1))
        elif number == _TRAINER:
            trainer = dict(_fields(_bytes(value)))
        elif number == _NORMALIZER:
            normalizer = dict(_fields(_bytes(value)))
    kind = int(trainer.get(3, UNIGRAM))
    if kind not in (UNIGRAM, BPE):
        raise UserError(f"{path}: is a {TYPES.get(kind, kind)} model; unigram and bpe can be exported")
    if _USER_DEFINED in kinds or trainer.get(24):
        raise UserError(f"{path}: has user-defined symbols or word-final space marks, which cannot be exported exactly")
    return SentencePieceModel(
        pieces,
        kind,
        _bytes(normalizer.get(2, b"")),
        byte_fallback=bool(trainer.get(35, 0)) and _BYTE in kinds,
        dummy_prefix=bool(normalizer.get(3, 1)),
        squeeze_spaces=bool(normalizer.get(4, 1)),
    )


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protobuf message: a varint as int, everything else as bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        length = {1: 8, 5: 4}.get(wire)
        if length is None:
            length, at = _varint(message, at)
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value


def _float(value: int | bytes) -> float:
    import struct

    return float(struct.unpack("<f", _bytes(value))[0])
