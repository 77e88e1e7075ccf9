"""Imports point down one list of layers; the lowest knows nothing of the host."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "fairseq_clear"
LAYERS = {
    "errors": 0,
    "spec": 0,
    "distributed": 0,
    "lifeline": 0,
    "literals": 0,
    "checkpoint_files": 1,
    "patches": 1,
    "endings": 1,
    "augmentations": 0,
    "objectives": 0,
    "data": 1,
    "modules": 1,
    "models": 2,
    "optimizers": 2,
    "criterions": 3,
    "tasks": 4,
    "preemption": 5,
    "preparation": 5,
    "evaluation": 5,
    "interop": 5,
    "planning": 5,
    "cli": 6,
}
# What the package's own __init__ needs before any layer; compat may be called from a model's architecture.
BESIDE = {"compat", "__init__"}
HOST_FREE = [
    "errors",
    "spec",
    "distributed",
    "augmentations",
    "objectives",
    "modules",
    "data.seeding",
    "data.batch",
    "data.views",
    "data.synonyms",
    "data.tokenizer",
]


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported(source: str) -> Iterator[str]:
    """Every module that the source imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide their layer"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def upward(layer: int, source: str) -> list[str]:
    """Imports of the project's from a higher layer than ``layer``."""
    parts = [name.split(".") for name in imported(source)]
    ours = [part for part in parts if part[0] == "fairseq_clear" and len(part) > 1]
    return [".".join(part) for part in ours if LAYERS.get(part[1], -1) > layer]


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_file_imports_downward(path: Path) -> None:
    name = room(path)
    if name in BESIDE:
        pytest.skip("beside the layers")
    assert name in LAYERS, f"{name} is no room of the house: give it a layer"
    assert upward(LAYERS[name], path.read_text()) == []


def test_upward_import_is_found() -> None:
    assert upward(0, "from fairseq_clear.tasks import clear_lm") != []
    assert upward(0, "def f():\n    import fairseq_clear.models") != []
    assert upward(6, "from fairseq_clear.tasks import clear_lm") == []


@pytest.mark.parametrize("module", HOST_FREE)
def test_core_does_not_know_the_host(module: str) -> None:
    path = PACKAGE / (module.replace(".", "/") + ".py")
    sources = [path] if path.exists() else sorted((PACKAGE / module).glob("*.py"))
    assert sources
    for source in sources:
        names = {
            name.split(".")[0]
            for node in ast.parse(source.read_text()).body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in imported(ast.unparse(node))
        }
        assert not names & {"fairseq", "fairseq_cli", "omegaconf", "hydra", "sentencepiece"}, source
