"""The command line's frame: commands load lazily, mistakes are one line and status 2."""

import json
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest

from fairseq_clear.cli import COMMANDS
from fairseq_clear.cli.flags import Command
from fairseq_clear.cli.main import build_parser, main
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


def test_help_imports_nothing_but_the_standard_library() -> None:
    """So it takes tenths of a second: torch and fairseq take several seconds to import."""
    assert json.loads(run(sys.executable, "-c", HELP, fresh=True).stdout) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "fairseq-clear: error: the following arguments are required: COMMAND"),
        (["dance"], "fairseq-clear: error: argument COMMAND: invalid choice: 'dance'"),
        (["prepare"], "fairseq-clear prepare: error: the following arguments are required: INPUT, --dest"),
        (["prepare", "a", "--dest", "b", "--shards", "x"], "argument --shards: invalid int value: 'x'"),
        (["embed", "a", "b", "--checkpoint", "c", "--data-bin", "d"], "fairseq-clear embed: error: unrecognized"),
        (["plot", "curves", "a", "--output", "b", "--bars"], "fairseq-clear plot curves: error: unrecognized"),
    ],
)
def test_usage_errors_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1


@dataclass
class Try(Command):
    """Try something."""

    act: ClassVar[Callable[[], int]]

    def run(self) -> int:
        return type(self).act()


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command named ``try`` that calls ``Try.act``; the modules that the command line imports are recorded here."""
    names: list[str] = []

    def import_module(name: str, package: str) -> types.SimpleNamespace:
        names.append(package + name)
        return types.SimpleNamespace(Try=Try)

    monkeypatch.setitem(COMMANDS, "try", ("somewhere:Try", "try something"))
    monkeypatch.setattr("fairseq_clear.cli.main.importlib.import_module", import_module)
    return names


def test_only_the_command_asked_for_is_imported(imported: list[str]) -> None:
    build_parser(None)
    assert imported == []
    Try.act = lambda: 0
    assert main(["try"]) == 0
    assert imported == ["fairseq_clear.cli.somewhere"]


def raising(error: BaseException) -> Callable[[], int]:
    def act() -> int:
        raise error

    return act


def test_user_errors_and_interrupts(imported: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Try.act = raising(UserError("a.txt:3: no  good\nat all"))
    assert main(["try"]) == 2
    assert capsys.readouterr().err == "fairseq-clear try: error: a.txt:3: no  good at all\n"
    Try.act = raising(KeyboardInterrupt())
    assert main(["try"]) == 130
    assert capsys.readouterr().err == "fairseq-clear try: interrupted\n"


def test_bugs_are_not_hidden(imported: list[str]) -> None:
    Try.act = raising(ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        main(["try"])
