"""The one exception for mistakes that a user can mend, and how it ends a command that is not ours."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["UserError", "exit_on_user_error", "one_line"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class UserError(ValueError):
    """A mistake of the user's: one line saying what is wrong, where (file, line, flag, value) and what to do.

    The command line prints the message alone and exits with status 2; from Python it is an ordinary ``ValueError``.
    """


def exit_on_user_error(method: Callable[P, R]) -> Callable[P, R]:
    """Turn a UserError into one line on the log and exit status 2, as our own commands do."""

    @wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except UserError as error:
            logger.error("%s", error)
            raise SystemExit(2) from error

    return checked


def one_line(error: BaseException) -> str:
    """Another's error for a line of ours: its type, and the first line of what it says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
