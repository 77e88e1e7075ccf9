"""Imports optional libraries, with an error that names the extra that installs them."""

import importlib
import logging
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fairseq_clear.errors import UserError, one_line

FACTORY = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*")  # package.module:factory


def import_library(name: str, extra: str = "hf") -> Any:
    """Import an optional library, which an ``extra`` of ``setup.py`` installs.

    Raises:
        UserError: the library is not installed, or importing it fails; the message names the extra.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken installation raises errors of other types
        package = name.partition(".")[0].replace("_", "-").replace("sklearn", "scikit-learn")
        raise UserError(
            f"{package} cannot be imported ({one_line(error)}); run pip install {package}, or install fairseq_clear with the "
            f"extra {extra}"
        ) from None


def import_factory(name: str, flag: str) -> Any:
    """Import the object ``package.module:factory``, also from the working directory; UserError if the import fails."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        return pkgutil.resolve_name(name)
    except Exception as error:  # the module is the user's
        raise UserError(
            f"{flag} {name}: cannot import it ({one_line(error)}); install it, or run the command in its folder"
        ) from None
    finally:
        sys.path.remove(folder)


@contextmanager
def log_level(level: int, *names: str) -> Iterator[None]:
    """Show only messages of ``level`` or above from the named loggers inside the block."""
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, before in levels.items():
            logger.setLevel(before)


@contextmanager
def quiet_transformers() -> Iterator[Any]:
    """Yield the library transformers, with its progress bars, advice and warnings turned off inside the block."""
    transformers = import_library("transformers")
    said = transformers.utils.logging
    level = said.get_verbosity()
    said.set_verbosity_error()
    said.disable_progress_bar()
    try:
        with log_level(logging.ERROR, "sentence_transformers"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield transformers
    finally:
        said.set_verbosity(level)
        said.enable_progress_bar()
