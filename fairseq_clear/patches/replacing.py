"""Replaces functions and classes of fairseq by name, once, and keeps the originals."""

import inspect
import logging
import sys
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)

_originals: dict[str, Any] = {}
_installed: set[tuple[str, str]] = set()  # (module, which may be __main__; target or replacement)


@dataclass(frozen=True)
class Patch:
    """One row of the table of patches.

    Attributes:
        target: object to replace, as ``module:name`` or ``module:Class.name``; empty if ``replacement`` is a function that is
            only called once.
        replacement: function or class of this package, as ``module:name``.
        reason: the problem of fairseq that the patch solves.
        test: the test that fails without the patch.
    """

    target: str
    replacement: str
    reason: str
    test: str


def original(target: str) -> Any:
    """Return fairseq's own function or class of this name, unpatched."""
    if target in _originals:
        return _originals[target]
    owner, name = _resolve(target, import_module(target.partition(":")[0]))
    return getattr(owner, name)


def install(patch: Patch) -> bool:
    """Install a patch: replace its target, or call its function. A second call does nothing.

    Returns:
        Whether the patch is in place. False for a target of a fairseq command that this process has not imported.
    """
    if not patch.target:
        if ("", patch.replacement) not in _installed:
            _installed.add(("", patch.replacement))
            _load(patch.replacement)()
        return True
    modules = _modules(patch.target.partition(":")[0])
    for module in modules:
        if (module.__name__, patch.target) in _installed:
            continue
        _installed.add((module.__name__, patch.target))
        replacement = _load(patch.replacement)
        owner, name = _resolve(patch.target, module)
        found = getattr(owner, name)
        if patch.target not in _originals:
            _originals[patch.target] = found
            if mismatch := signature_mismatch(patch):
                logger.warning("%s", mismatch)
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(replacement) if is_static else replacement)
    return bool(modules)


def is_installed(patch: Patch) -> bool:
    """Whether the patch is installed in this process; imports the target's module.

    Raises:
        AttributeError: fairseq has no such target.
    """
    if not patch.target:
        return ("", patch.replacement) in _installed
    owner, name = _resolve(patch.target, import_module(patch.target.partition(":")[0]))
    return getattr(owner, name) is _load(patch.replacement)


def signature_mismatch(patch: Patch) -> str:
    """Return a line if the target takes other parameters than its replacement, else an empty string.

    Classes, and replacements that take ``*args`` or ``**options``, are not compared.

    Raises:
        AttributeError: fairseq has no such target.
    """
    if not patch.target or isinstance(stock := original(patch.target), type):
        return ""
    ours, theirs = (inspect.signature(function).parameters for function in (_load(patch.replacement), stock))
    if "options" in ours or list(ours) == list(theirs):
        return ""
    return (
        f"{patch.target} takes ({', '.join(theirs)}) in this version of fairseq, but ({', '.join(ours)}) in 0.12.3: its "
        "patch may not work"
    )


def _modules(name: str) -> list[ModuleType]:
    """Return the module of this name, and ``__main__`` if ``python -m`` runs it."""
    if not name.startswith("fairseq_cli."):
        return [import_module(name)]
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    found = [sys.modules[name]] if name in sys.modules else []
    return [*found, main] if main is not None and spec is not None and spec.name == name else found


def _resolve(target: str, module: ModuleType) -> tuple[Any, str]:
    *owners, name = target.partition(":")[2].split(".")
    owner: Any = module
    for part in owners:
        owner = getattr(owner, part)
    return owner, name


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"fairseq_clear.patches.{module}"), attribute)
