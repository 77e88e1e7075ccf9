"""Settings are values; anything else that Python could evaluate is an error."""

import ast
import inspect
import sys
import warnings
from typing import Any

import fairseq.models
import pytest
from fairseq import utils

from fairseq_clear.patches.compatibility import evaluate_literal


@pytest.mark.parametrize(
    "text",
    [
        *("(0.9, 0.98)", "[1e-3]", "-3", "[(512, 3)] * 20"),
        *("[(512, 10, 5)] + [(512, 3, 2)] * 4 + [(512,2,2)] * 2", "{'name': \"x\", 'p': [True, None]}"),
        *("'a' * 3", "True"),
    ],
)
def test_values_are_those_of_python(text: str) -> None:
    assert evaluate_literal(text) == eval(text.strip())  # noqa: S307


@pytest.mark.parametrize(
    "text",
    [
        *("__import__('os').system('true')", "print", "().__class__", "[x for x in (1,)]", "lambda: 1"),
        *("f'{1}'", "(1)[0]"),
        *("1 if 1 else 2", "x := 1", "9 ** 9", "[0] * 1000 * 1000", "[[0] * 999] * 999", "[0] * 1000000000"),
        *("'a' * 1000000 * 1000000", "'a' + 1", "1 / 0", "[0] * 2.5", "(" * 500, ""),
    ],
)
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a Python literal"):
        evaluate_literal(text)


def test_what_is_no_string_is_what_eval_says() -> None:
    with pytest.raises(TypeError):
        evaluate_literal(3)  # type: ignore[arg-type]
    assert utils.eval_bool(3, default=True) is True
    assert utils.eval_str_list("1e-3") == [0.001] and utils.eval_str_list("[1, 2]", int) == [1, 2]


def calls_eval(module: Any) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError):
        return False
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(name, ast.Name) and name.id == "eval" for name in calls)


def test_fairseq_evaluates_nothing_else() -> None:
    """Every module of fairseq's that is there when the plugin is, of models and what they are made of above all."""
    assert fairseq.models
    found = [
        module for name, module in sys.modules.items() if name.partition(".")[0] == "fairseq" and calls_eval(module)
    ]
    assert {"fairseq.utils", "fairseq.models.fconv", "fairseq.optim.adam"} <= {module.__name__ for module in found}
    assert all(vars(module).get("eval") is evaluate_literal for module in found)
