"""Parses the specs of ``--views`` and ``--augment``, such as ``"subs:ratio=0.3+del-span:spans=5,ratio=0.05"``.

    spec         := "none" | chain ("/" chain)*        "/": one of the chains, at random
    chain        := "none" | step ("+" step)*          "+": one step, then the next
    step         := name [":" argument ("," argument)*]
    argument     := value | knob "=" value             positional values come before the knobs

Names, knobs and values hold only letters, digits and ``. _ -``: nothing that a shell treats specially.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fairseq_clear.errors import UserError

# Values of flags that the task and the commands share.
BOUNDARIES = ("blank", "line")  # --document-boundary
SHORT_DOCUMENTS = ("clip", "skip", "error")  # --short-documents
SAME_DOCUMENT_NEGATIVES = ("include", "exclude")  # --same-document-negatives
AUGMENT_TEXTS = ("all", "positives")  # --augment-texts
MIX_BATCHES = ("any", "one")  # --mix-batches

KnobValue = float | int | str

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_KNOB = re.compile(r"[a-z][a-z0-9_]*")
_VALUE = re.compile(r"[A-Za-z0-9._-]+")
_EXAMPLE = "subs:ratio=0.3+del-span:spans=5,ratio=0.05"


@dataclass(frozen=True)
class Step:
    """One unchecked step of a spec: a name, positional values, and knobs by name. ``str()`` formats the step as in a spec."""

    name: str
    values: tuple[str, ...] = ()
    knobs: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        arguments = [*self.values, *(f"{knob}={value}" for knob, value in self.knobs.items())]
        return self.name + (":" + ",".join(arguments) if arguments else "")


@dataclass(frozen=True)
class Knob:
    """A setting of a step: values of type ``kind`` from ``minimum`` to ``maximum``, inclusive.

    A ``str`` knob with ``choices`` accepts one of the choices; with ``several``, one or more, joined by ``-``.
    """

    default: KnobValue
    kind: type[float] | type[int] | type[str] = float
    minimum: float | None = None
    maximum: float | None = None
    help: str = ""
    choices: tuple[str, ...] = ()
    several: bool = False

    @property
    def accepts(self) -> str:
        """Description of the accepted values, such as ``a number from 0 to 1``."""
        if self.choices:
            names = ", ".join(self.choices)
            return f"some of {names}, joined by '-'" if self.several else f"one of {names}"
        what = {float: "a number", int: "a whole number", str: "a word"}[self.kind]
        if self.minimum is not None and self.maximum is not None:
            return f"{what} from {self.minimum:g} to {self.maximum:g}"
        if self.minimum is not None:
            return f"{what}, {self.minimum:g} or more"
        return what if self.maximum is None else f"{what}, {self.maximum:g} or less"

    def read(self, text: str) -> KnobValue:
        """Parse a value; ValueError if it is malformed or out of range."""
        if self.kind is str:
            words = text.split("-") if self.several else [text]
            if self.choices and (len(set(words)) < len(words) or not set(words) <= set(self.choices)):
                raise ValueError(text)
            return text
        # int() and float() accept "1_000", but str() would write "1000"
        if "_" in text:
            raise ValueError(text)
        value = self.kind(text)
        assert not isinstance(value, str)
        too_low = self.minimum is not None and value < self.minimum
        too_high = self.maximum is not None and value > self.maximum
        if not math.isfinite(value) or too_low or too_high or abs(value) >= 2**31:  # numpy's integers have 64 bits
            raise ValueError(text)
        return value


def parse_spec(text: str, *, flag: str = "spec") -> tuple[tuple[Step, ...], ...]:
    """Parse a spec into alternative chains of steps; ``"none"`` and ``""`` are one empty chain. UserError if malformed."""
    where, chains = f"{flag} {text!r}", [chain.strip() for chain in (text.strip() or "none").split("/")]
    return tuple(
        tuple(_parse_step(step.strip(), where) for step in chain.split("+") if chain != "none") for chain in chains
    )


def setting_names(text: str) -> set[str]:
    """Parse names of settings for ``--allow-change``: separated by commas, with or without leading dashes."""
    return {name.strip().lstrip("-").replace("-", "_") for name in text.split(",") if name.strip()}


def format_spec(alternatives: tuple[tuple[Step, ...], ...]) -> str:
    """Format alternatives as canonical text, from which ``parse_spec`` reads the same steps."""
    return "/".join("+".join(map(str, chain)) or "none" for chain in alternatives)


def format_value(value: KnobValue) -> str:
    """Format a knob's value, such as ``5`` or ``0.05``. An exponent is written without ``+``, because ``+`` joins two steps."""
    return str(value).removesuffix(".0").replace("e+", "e")


def check_name(step: Step, names: Collection[str], *, flag: str) -> None:
    """Raise UserError, listing ``names``, unless ``step.name`` is one of them."""
    if step.name not in names:
        raise UserError(f"{flag}: there is no '{step.name}'; choose from {', '.join(names)}")


def check_knobs(
    step: Step, knobs: Mapping[str, Knob], *, flag: str, allow_values: bool = False
) -> dict[str, KnobValue]:
    """Return the values of all knobs of a step, in the order of ``knobs``; omitted knobs have their defaults.

    Raises:
        UserError: an unknown knob, a value of another kind or out of range, or positional values without ``allow_values``.
            The message names ``flag`` and what is valid.
    """
    valid = "; ".join(f"{name}: {knob.accepts} (default {format_value(knob.default)})" for name, knob in knobs.items())
    takes = f"it takes {valid}" if valid else "it takes no knobs"
    for name in step.knobs:
        if name not in knobs:
            raise UserError(f"{flag}: {step.name} has no knob '{name}'; {takes}")
    if step.values and not allow_values:
        raise UserError(f"{flag}: {step.name} takes no value without a name, got '{step.values[0]}'; {takes}")
    checked = {name: knob.default for name, knob in knobs.items()}
    for name, text in step.knobs.items():
        try:
            checked[name] = knobs[name].read(text)
        except ValueError:
            raise UserError(f"{flag}: {step.name}:{name}={text} is not {knobs[name].accepts}; {takes}") from None
    return checked


def _parse_step(text: str, where: str) -> Step:
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if name == "none":
        raise UserError(f"{where}: 'none' cannot be joined with other steps by '+'; leave it out")
    if not _NAME.fullmatch(name):
        raise UserError(f"{where}: {name!r} is not a name (lowercase letters, digits, '-'); write it like {_EXAMPLE}")
    values: list[str] = []
    knobs: dict[str, str] = {}
    for argument in rest.split(",") if colon else ():
        knob, equals, value = (part.strip() for part in argument.partition("="))
        if not _VALUE.fullmatch(value if equals else knob) or (equals and not _KNOB.fullmatch(knob)):
            raise UserError(f"{where}: cannot read {argument.strip()!r} in {text!r}; write it like {_EXAMPLE}")
        if not equals and knobs:
            raise UserError(f"{where}: value '{knob}' comes after a knob; values come first, as in name:value,knob=1")
        if knob in knobs:
            raise UserError(f"{where}: {name} is given {knob} twice; keep one")
        if equals:
            knobs[knob] = value
        else:
            values.append(knob)
    return Step(name, tuple(values), knobs)
