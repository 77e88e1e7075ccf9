"""The command line's frame: commands load lazily, mistakes are one line and status 2."""

import importlib
import io
import json
import sys
import types
from dataclasses import dataclass
from typing import ClassVar

import pytest

from fairseq_clear.cli import COMMANDS
from fairseq_clear.cli.flags import Command
from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from tests.conftest import run

HELP = """
import contextlib, io, json, sys

loaded = set(sys.modules)
from fairseq_clear.cli import COMMANDS
from fairseq_clear.cli.main import main

heavy = {}
for arguments in ([], *([name] for name in COMMANDS), ["glue", "run"], ["plot", "curves"]):
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main([*arguments, "--help"])
    assert shown.getvalue().startswith("usage: fairseq-clear")
    new = {name.split(".")[0] for name in set(sys.modules) - loaded} - set(sys.stdlib_module_names) - {"fairseq_clear"}
    heavy |= {" ".join(arguments): sorted(new)} if new else {}
    loaded |= set(sys.modules)
print(json.dumps(heavy))
"""


def test_a_terminal_that_lacks_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["user-dir"]) == 0
    print("0.5 \u00b1 0.1", flush=True)
    assert written.getvalue().endswith(b"0.5 \\xb1 0.1\n")


def test_help_imports_nothing_but_the_standard_library() -> None:
    """So it takes tenths of a second: torch and fairseq take several seconds to import."""
    assert json.loads(run(sys.executable, "-c", HELP, fresh=True).stdout) == {}


@dataclass
class Try(Command):
    """Try something."""

    error: ClassVar[BaseException]

    def run(self) -> int:
        raise self.error


def test_errors_and_interrupts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "try", ("somewhere:Try", "try something"))
    monkeypatch.setattr(importlib, "import_module", lambda *_: types.SimpleNamespace(Try=Try))
    for error, status, said in (
        (UserError("a.txt:3: no  good\nat all"), 2, "error: a.txt:3: no  good at all"),  # as of another library
        (KeyboardInterrupt(), 130, "interrupted"),
        (
            RuntimeError("CUDA out of memory\nmore"),
            2,
            "error: out of memory (RuntimeError: CUDA out of memory); give a smaller --batch-size or shorter texts",
        ),
    ):
        Try.error = error
        assert main(["try"]) == status
        assert capsys.readouterr().err == f"fairseq-clear try: {said}\n"
    for bug in (ValueError("a bug"), RuntimeError("a bug")):
        Try.error = bug
        with pytest.raises(type(bug), match="a bug"):
            main(["try"])
