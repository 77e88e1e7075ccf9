"""Settings as dataclass fields that carry their help text, choices and minimum, for the Python API and the command line.

Imports only the standard library, so that ``--help`` stays fast.
"""

import math
from dataclasses import MISSING, Field, field, fields
from typing import Any

from fairseq_clear.errors import UserError


def setting(text: str, default: Any = MISSING, *, factory: Any = MISSING, **metadata: Any) -> Any:
    """A dataclass field that is also a flag of the command line.

    Args:
        text: help text, which is the only documentation of the field.
        default: default of the field; without default and factory the field is required.
        metadata: ``choices`` (allowed values), ``least`` and ``most`` (smallest and largest), ``above`` (values are greater),
            ``flag`` (``--name`` if the field has another name), ``positional``, ``group`` (title of the flag's group),
            ``exclusive`` (name of a set of mutually exclusive flags); ``metavar``, ``nargs``, ``const`` and ``type`` as
            for argparse.
    """
    return field(default=default, default_factory=factory, metadata={"help": text, **metadata})


def flag_name(item: "Field[Any]") -> str:
    """The flag of a field, such as ``--batch-size`` for ``batch_size``."""
    return str(item.metadata.get("flag", f"--{item.name.replace('_', '-')}"))


def typed_flag(item: "Field[Any]", value: Any) -> str:
    """The flag of a field as it is typed for a value, or ``without --recipe``."""
    if not isinstance(value, bool):
        return f"without {flag_name(item)}" if value is None else f"{flag_name(item)} {value}"
    flag = flag_name(item).replace("--", "--no-", 1) if item.default is True else flag_name(item)
    return flag if value is not (item.default is True) else f"without {flag}"


def check_settings(settings: Any) -> None:
    """Check every field of a dataclass against its ``choices``, ``least``, ``most`` and ``above``; None is always valid.

    Numbers must be finite.

    Raises:
        UserError: naming the flag, its value and what is allowed.
    """
    for item in fields(settings):
        value, allowed = getattr(settings, item.name), item.metadata
        if value is None or isinstance(value, tuple):
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{flag_name(item)} {value}: must be a finite number")
        if "least" in allowed and not value >= allowed["least"]:
            raise UserError(f"{flag_name(item)} {value}: must be {allowed['least']} or more")
        if "most" in allowed and not value <= allowed["most"]:
            raise UserError(f"{flag_name(item)} {value}: must be {allowed['most']} or less")
        if "above" in allowed and not value > allowed["above"]:
            raise UserError(f"{flag_name(item)} {value:g}: must be above {allowed['above']}")
        if "choices" in allowed and value not in allowed["choices"]:
            raise UserError(f"{flag_name(item)} {value}: choose from {', '.join(map(str, allowed['choices']))}")
