"""Settings as dataclass fields that carry their help, choices and smallest value, for the Python API and the command line.

Needs the standard library alone, so that the command line's ``--help`` stays fast.
"""

from dataclasses import MISSING, Field, field, fields
from typing import Any

from fairseq_clear.errors import UserError

__all__ = ["check_settings", "flag_name", "setting"]


def setting(text: str, default: Any = MISSING, *, factory: Any = MISSING, **metadata: Any) -> Any:
    """A dataclass field that is also a flag of the command line.

    Args:
        text: the help, which is the only documentation of the field.
        default: of the field; without default and factory the field is required.
        factory: makes the default.
        metadata: ``choices`` (allowed values), ``least`` (smallest value), ``flag`` (``--name`` if the field has another
            name), ``metavar``, ``nargs``, ``const`` and ``type`` as for argparse, ``positional``, ``group`` (its title),
            ``exclusive`` (name of a group of flags of which one may be given).
    """
    return field(default=default, default_factory=factory, metadata={"help": text, **metadata})


def flag_name(item: "Field[Any]") -> str:
    """The flag of a field, such as ``--batch-size`` of ``batch_size``."""
    return str(item.metadata.get("flag", f"--{item.name.replace('_', '-')}"))


def check_settings(settings: Any) -> None:
    """Check every field of a dataclass against its ``choices`` and its ``least``; None passes.

    Raises:
        UserError: naming the flag, its value and what is allowed.
    """
    for item in fields(settings):
        value, least, choices = getattr(settings, item.name), item.metadata.get("least"), item.metadata.get("choices")
        if value is None or isinstance(value, tuple):
            continue
        if least is not None and value < least:
            raise UserError(f"{flag_name(item)} {value}: must be {least} or more")
        if choices is not None and value not in choices:
            raise UserError(f"{flag_name(item)} {value}: choose from {', '.join(choices)}")
