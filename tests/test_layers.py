"""Imports point down one list of layers, the lowest ones need no fairseq, and importing changes nothing outside the package."""

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT, run

PACKAGE = ROOT / "fairseq_clear"
LEVELS = (
    "errors settings spec processes files libraries output_folder distributed shared_work lifecycle seeding tokens "
    "augmentations objectives modules",
    "text patches",
    "views",
    "data",
    "models criterions optimizers",
    "evaluation",
    "tasks",
    "preparation interop",
    "plan launch refining",
    "cli",
)
LAYERS = {name: level for level, names in enumerate(LEVELS) for name in names.split()}
HOST_FREE = [
    *(name for name, level in LAYERS.items() if level == 0),
    *("data.batch", "views.view_source", "views.view_table", "text.synonym_files", "text.tokenizers"),
]


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide their layer"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named(source: str) -> Iterator[str]:
    """Every module that the source names in a string, such as "fairseq_clear.tasks.clear_lm:ClearLMTask"."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = re.fullmatch(r"(fairseq_clear|)((?:\.[a-z_0-9]+)+)(:\w+)?", node.value)
            if found and found[2][1:].partition(".")[0] in LAYERS:
                yield f"fairseq_clear{found[2]}"


def upward(layer: int, source: str) -> list[str]:
    """Imports of the project's from a higher layer than ``layer``, also by name; the root's ``register`` imports the tasks."""
    parts = [name.split(".") for name in (*imported(source), *named(source))]
    ours = [part for part in parts if part[0] == "fairseq_clear" and len(part) > 1]
    return [".".join(part) for part in ours if {**LAYERS, "register": LAYERS["tasks"]}.get(part[1], -1) > layer]


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_files_import_downward() -> None:
    for path in files():
        name = package_of(path)
        if name != "__init__":  # the package's own names modules of every layer
            assert name in LAYERS, f"{name} is in no layer: add it to LAYERS"
            assert upward(LAYERS[name], path.read_text()) == [], path


# Packages of one layer that must not know each other.
SEPARATE = {"interop": {"preparation", "plan"}, "preparation": {"evaluation", "interop", "plan"}}


def test_packages_that_do_not_know_each_other() -> None:
    for name, others in import_graph().items():
        known = {other.split(".")[1] for other in others if other != "fairseq_clear"}
        assert not known & SEPARATE.get(name.partition(".")[2].partition(".")[0], set()), name


def import_graph() -> dict[str, set[str]]:
    """Each module of the package -> the modules of the package that it imports, wherever in the file."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files()}
    return {
        name: {other for other in imported(path.read_text()) if other in names} - {name} for name, path in names.items()
    }


def test_files_and_folders_make_no_circle_and_names_of_files_are_unique() -> None:
    graph = import_graph()
    del graph["fairseq_clear"]  # its lazy names and register() reach every layer
    graph = {name: others - {"fairseq_clear"} for name, others in graph.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError
    folders: dict[str, set[str]] = {}
    for name, others in graph.items():
        folder = name.split(".")[1]
        folders.setdefault(folder, set()).update({other.split(".")[1] for other in others} - {folder})
    TopologicalSorter(folders).prepare()
    names = Counter(path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_what_the_checks_find() -> None:
    """Their negative controls."""
    assert "fairseq_clear.seeding" in import_graph()["fairseq_clear.augmentations.base"]
    assert upward(1, "from fairseq_clear import register") != []
    assert upward(1, 'MODEL = "fairseq_clear.models.clear_roberta:ClearRobertaModel"') != []
    assert upward(8, 'COMMANDS = {"embed": ".cli.embed:Embed"}') != []
    assert upward(0, "def f():\n    import fairseq_clear.models") != []
    assert upward(6, "from fairseq_clear.tasks import clear_lm") == []
    assert meets_fairseq_unpatched("def f():\n    from fairseq.data import Dictionary")
    assert not meets_fairseq_unpatched("import fairseq\nfrom fairseq_clear import register\nregister()")
    assert not meets_fairseq_unpatched("if TYPE_CHECKING:\n    import fairseq")


@pytest.mark.parametrize("module", HOST_FREE)
def test_core_does_not_know_the_host(module: str) -> None:
    path = PACKAGE / (module.replace(".", "/") + ".py")
    sources = [path] if path.exists() else sorted((PACKAGE / module).glob("*.py"))
    assert sources
    for source in sources:
        body = ast.parse(source.read_text()).body
        at_top = [ast.unparse(node) for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {name.split(".")[0] for name in imported("\n".join(at_top))}
        assert not names & {"fairseq", "fairseq_cli", "omegaconf", "hydra", "sentencepiece"}, source


def at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node, except what is under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from at_run_time(node)


def meets_fairseq_unpatched(source: str) -> bool:
    """Whether the file imports fairseq, and neither registers the plugin nor applies its patches."""
    nodes = list(at_run_time(ast.parse(source)))
    imports = [ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {name.split(".")[0] for line in imports for name in imported(line)}
    calls = {ast.unparse(node) for node in nodes if isinstance(node, ast.Call)}
    return bool(names & {"fairseq", "fairseq_cli"}) and not calls & {"register()", "patches.apply()"}


# Their __init__ applies the patches.
PATCHED = {"models", "criterions", "optimizers", "tasks", "patches"}


def test_no_file_uses_fairseq_without_the_patches() -> None:
    others = [path for path in files() if package_of(path) not in PATCHED]
    assert [path for path in others if meets_fairseq_unpatched(path.read_text())] == []
    for folder in PATCHED - {"patches"}:
        statements = [ast.unparse(node) for node in ast.parse((PACKAGE / folder / "__init__.py").read_text()).body]
        assert statements[1:3] == ["from fairseq_clear import patches", "patches.apply()"], folder


IMPORTS = """
import importlib, json, logging, sys, warnings

def state():
    loggers = {name: logger.level for name, logger in logging.root.manager.loggerDict.items() if hasattr(logger, "level")}
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    return {
        "filters": [str(entry) for entry in warnings.filters],
        "levels": {name: level for name, level in loggers.items() if level},
        "root": [logging.root.level, len(logging.root.handlers), logging.root.manager.disable],
        "safe": sorted(map(str, torch.serialization.get_safe_globals())) if torch else [],
        "torch.load": str(torch.load) if torch else "",
        "numpy.compat": hasattr(numpy, "compat"),
    }

def steps():
    for before, modules in (
        ([], ["fairseq_clear", "fairseq_clear.errors", "fairseq_clear.spec"]),
        (["numpy"], ["fairseq_clear.augmentations"]),
        (["torch"], ["fairseq_clear.objectives"]),
    ):
        for name in before:
            importlib.import_module(name)
        old, loaded = state(), set(sys.modules)
        for name in modules:
            importlib.import_module(name)
        new = {name.split(".")[0] for name in set(sys.modules) - loaded}
        yield {
            "changed": [key for key, value in state().items() if value != old[key]],
            "imported": sorted(new - set(sys.stdlib_module_names)),
        }

print(json.dumps(list(steps())))
"""


@pytest.mark.slow
def test_importing_changes_nothing() -> None:
    found = json.loads(run(sys.executable, "-c", IMPORTS, fresh=True).stdout)
    assert [step["changed"] for step in found] == [[], [], []]
    # what numpy's compiled parts register as modules, under names of their compiler's version
    compiled = {name for step in found for name in step["imported"] if name.startswith(("_cython", "cython_runtime"))}
    package, augmentations, objectives = (set(step["imported"]) - compiled for step in found)
    assert package == {"fairseq_clear"}
    assert augmentations <= {"fairseq_clear", "numpy"}  # without torch
    assert "fairseq_clear" in objectives and not objectives & {"fairseq", "fairseq_cli", "omegaconf", "hydra"}


REGISTERS = f"""
import argparse, logging, sys
import fairseq_clear.objectives
from fairseq_clear.criterions import clear_nt_xent
from fairseq import utils
utils.import_user_module(argparse.Namespace(user_dir={str(PACKAGE)!r}))
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY
others = [REGISTRIES[name]["registry"] for name in ("criterion", "optimizer")]
kinds = (TASK_REGISTRY, MODEL_REGISTRY, ARCH_MODEL_REGISTRY, *others)
print(*(name for kind in kinds for name in kind if name.startswith("clear_")))
from fairseq_clear import SentenceEncoder
print(SentenceEncoder.__module__, "transformers" in sys.modules)
print(logging.getLogger().level, len(logging.getLogger().handlers))
"""


@pytest.mark.slow
def test_user_dir_registers_everything_where_a_part_was_imported_before() -> None:
    """fairseq leaves a package alone that was imported before, and gives the root logger a handler and the level DEBUG."""
    *_, registered, imported, root = run(sys.executable, "-c", REGISTERS, fresh=True).stdout.splitlines()
    wanted = {"clear_lm", "clear_roberta", "clear_roberta_base", "clear_nt_xent", "clear_moco", "clear_self_guided"}
    assert wanted | {"clear_adamw", "clear_hf"} <= set(registered.split())
    assert (imported, root) == ("fairseq_clear.evaluation.sentence_encoder False", "30 0")
