"""Evaluates Python literals in settings without running code."""

import ast
import operator
from collections.abc import Callable
from typing import Any

__all__ = ["evaluate_literal"]

LONGEST = 100_000  # maximum characters or items of a product
GREATEST_EXPONENT = 64
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def evaluate_literal(text: str) -> Any:
    """Evaluate numbers, strings, booleans, None, collections and arithmetic, such as ``[(512, 3)] * 4``.

    Raises:
        TypeError: ``text`` is not a string, as for ``eval``.
        ValueError: any other expression, such as a name or a call, or a value that is too large.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected a string, not {type(text).__name__}")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, ArithmeticError, TypeError, ValueError):
        raise ValueError(f"{text[:80]!r} is not a Python literal") from None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item) for item in items)
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_value(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in SIGNS:
            return SIGNS[type(sign)](_value(operand))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in ARITHMETIC:
            one, other = _value(left), _value(right)
            _check_size(type(sign), one, other)
            return ARITHMETIC[type(sign)](one, other)
    raise ValueError


def _check_size(sign: type[ast.operator], one: Any, other: Any) -> None:
    """Check the size of a result: a short expression can exceed any memory."""
    if sign is ast.Pow and not (abs(one) <= 10**6 and abs(other) <= GREATEST_EXPONENT):
        raise ValueError
    if sign is ast.Mult:
        sizes = [len(side) if hasattr(side, "__len__") else abs(side) for side in (one, other)]
        if any(hasattr(side, "__len__") for side in (one, other)) and sizes[0] * sizes[1] > LONGEST:
            raise ValueError
