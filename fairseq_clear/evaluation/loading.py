"""Encoders as the command line names them."""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.word_vectors import WordVectors
from fairseq_clear.text.tokenizers import Tokenizer

__all__ = ["FACTORY", "import_factory", "load_encoders"]

WORD_VECTORS = re.compile(r"\.(?:vec|txt)(?:\.gz|\.xz)?$")
FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def load_encoders(
    name: str,
    poolings: Sequence[str | None],
    *,
    data_bin: str | None = None,
    tokenizer: Callable[[], Tokenizer | None] = lambda: None,
    device: str | None = None,
) -> list[tuple[str, Any]]:
    """(label, encoder) for each pooling of one encoder; the poolings of a checkpoint share one model.

    Args:
        name: path of a checkpoint or of a file of word vectors (.vec, GloVe's .txt, packed or not), or
            ``package.module:factory``.
        poolings: None for the encoder's own.
        data_bin: needed for a checkpoint.
        tokenizer: called where a checkpoint is loaded; None for the data folder's own.
        device: for a checkpoint.

    Raises:
        UserError: no such thing, or it cannot be loaded.
    """
    if FACTORY.fullmatch(name) and not Path(name).exists():
        factory = import_factory(name)
        return [(_label(name, pooling), _make(factory, name, pooling)) for pooling in poolings]
    if WORD_VECTORS.search(name):
        if list(poolings) != [None]:
            raise UserError(f"--pooling {poolings[0]}: --encoder {name} is a file of word vectors, which are averaged")
        return [(name, WordVectors(name))]
    return _load_checkpoint(name, poolings, data_bin, tokenizer, device)


def import_factory(name: str) -> Any:
    """The object that ``package.module:factory`` names; the working directory is looked at too.

    Raises:
        UserError: it cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    try:
        with _importable(os.getcwd()):
            found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UserError(f"--encoder {name}: cannot import it ({error}); is it installed, or in this folder?") from None
    return found


def _make(factory: Any, name: str, pooling: str | None) -> Any:
    """Call the factory; an object that already has ``encode`` is taken as it is."""
    if hasattr(factory, "encode") and not inspect.isclass(factory):
        if pooling is not None:
            raise UserError(
                f"--pooling {pooling}: --encoder {name} is an encoder already; name a function that takes one"
            )
        return factory
    if not callable(factory):
        raise UserError(
            f"--encoder {name}: is a {type(factory).__name__}, neither an encoder nor a function making one"
        )
    if pooling is None:
        return factory()
    if "pooling" not in inspect.signature(factory).parameters:
        raise UserError(f"--pooling {pooling}: --encoder {name} takes no argument `pooling`; leave --pooling out")
    return factory(pooling=pooling)


def _load_checkpoint(
    name: str,
    poolings: Sequence[str | None],
    data_bin: str | None,
    tokenizer: Callable[[], Tokenizer | None],
    device: str | None,
) -> list[tuple[str, Any]]:
    if not Path(name).is_file():
        raise UserError(f"--encoder {name}: neither a checkpoint file nor package.module:factory")
    if data_bin is None:
        raise UserError(f"--encoder {name}: a checkpoint needs --data-bin, the folder with its dict.txt and tokenizer")
    from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder  # fairseq takes seconds to import

    first = SentenceEncoder.from_pretrained(name, data_bin, tokenizer=tokenizer(), pooling=poolings[0], device=device)
    origin = first.describe()
    encoders = [first] + [
        SentenceEncoder(first.model, first.dictionary, first.tokenizer, pooling=pooling, origin=origin)
        for pooling in poolings[1:]
    ]
    return [(_label(name, encoder.pooling), encoder) for encoder in encoders]


def _label(name: str, pooling: str | None) -> str:
    return f"{name} {pooling}" if pooling else name


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    """``folder`` first on the import path, within."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
