"""The exception for errors that the user can fix, and its conversion to an exit status in fairseq's commands."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

logger = logging.getLogger(__name__)

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")

P = ParamSpec("P")
R = TypeVar("R")


class UserError(ValueError):
    """An error the user can fix. The message is one line: what is wrong, where (file, line, flag, value), and what to do.

    The command line prints only the message and exits with status 2. In Python it is an ordinary ``ValueError``.
    """

    def __init__(self, message: str) -> None:
        # it may quote another library's lines
        super().__init__(" ".join(line.strip() for line in message.splitlines()))


def exit_on_user_error(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method so that a UserError becomes one log line and exit status 2."""

    @wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except UserError as error:
            logger.error("%s", error)
            raise SystemExit(2) from error

    return checked


def one_line(error: BaseException) -> str:
    """The type and the first line of an exception's message, for use in another message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error of Python, numpy or torch says that memory ran out."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY)
