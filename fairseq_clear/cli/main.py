"""Entry point of ``fairseq-clear``: finds the command, imports its module alone, turns user errors into one line."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from fairseq_clear.cli import COMMANDS
from fairseq_clear.errors import UserError

USER_ERROR_STATUS = 2
INTERRUPTED_STATUS = 130


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line, without the usage text, which ``--help`` gives."""

    def error(self, message: str) -> NoReturn:
        """Print ``PROG: error: MESSAGE`` on stderr and leave with status 2."""
        self.exit(USER_ERROR_STATUS, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """Return the parser; only ``command``'s module is imported for its arguments, the others show one line each."""
    parser = OneLineParser(
        prog="fairseq-clear",
        description="Contrastive sentence representations with fairseq: data, views, embeddings.",
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=OneLineParser)
    for name, (module, summary) in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == command:
            loaded = importlib.import_module(module)
            loaded.add_arguments(subparser)
            subparser.set_defaults(run=loaded.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments after the program's name; ``sys.argv[1:]`` if None.

    Returns:
        The exit status: 0, 2 for a user's mistake, 130 when interrupted from the keyboard.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    args = build_parser(command).parse_args(arguments)
    try:
        return int(args.run(args))
    except UserError as error:
        message = " ".join(str(error).splitlines())
        print(f"fairseq-clear {args.command}: error: {message}", file=sys.stderr)
        return USER_ERROR_STATUS
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"fairseq-clear {args.command}: interrupted", file=sys.stderr)
        return INTERRUPTED_STATUS
