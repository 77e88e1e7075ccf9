"""Entry point of ``fairseq-clear``: imports only the module of the given command, and prints user errors as one line."""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from typing import Any, NoReturn

from fairseq_clear.cli import COMMANDS
from fairseq_clear.errors import UserError, is_out_of_memory, one_line
from fairseq_clear.output_folder import signals_raise
from fairseq_clear.shared_work import Workers, join_workers

USER_ERROR_STATUS = 2

READ_ONLY = ("user-dir", "doctor")  # commands that every worker may run


class OneLineParser(argparse.ArgumentParser):
    """An argument parser that prints errors as one line, without the usage."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reject unknown arguments here, so that the error points to the help of the command, not of the program."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """Print ``PROG: error: MESSAGE`` on stderr and exit with status 2."""
        self.exit(USER_ERROR_STATUS, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """Build the parser, with the flags of ``command`` and one line of help for every other command."""
    parser = OneLineParser(
        prog="fairseq-clear", description="Contrastive sentence representations with fairseq: data, views, embeddings."
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=OneLineParser)
    for name, (target, summary) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == command:
            module, _, kind = target.partition(":")
            getattr(importlib.import_module(f".{module}", "fairseq_clear.cli"), kind).add_arguments(subparser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. SIGTERM and SIGHUP raise SystemExit (128 + signal), so that the command removes its temporary files.

    Returns:
        The exit status: 0; 1 if ``doctor`` finds a problem; 2 for an error the user can fix; 130 for an interrupt.
    """
    # without this, importing fairseq turns on the debug logs of all libraries
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals that are not UTF-8
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    parser = build_parser(command)
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument) and not os.path.exists(argument):
            parser.error(f"{argument!r}: is not UTF-8")
    rest: list[str] = []
    if command == "refine" and "--" in arguments:  # which forwards the arguments after it
        place = arguments.index("--")
        arguments, rest = arguments[:place], arguments[place + 1 :]
    args = parser.parse_args(arguments, argparse.Namespace(rest=tuple(rest)))
    workers = Workers()
    try:
        with signals_raise():
            # before joining, which would wait for the other workers
            if not args.shares_work and os.environ.get("WORLD_SIZE", "1") != "1" and command not in READ_ONLY:
                raise UserError("runs in one process; start it without torchrun, or unset WORLD_SIZE")
            workers = join_workers() if args.shares_work else workers
            # all workers print the same
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere) if workers.rank else nullcontext():
                return int(args.run(args))
    except UserError as error:
        if workers.is_first_report(error):
            print(f"fairseq-clear {args.command}: error: {error}", file=sys.stderr)
        return USER_ERROR_STATUS
    except SystemExit as error:
        if workers.size > 1 and workers.is_first_report(error):
            print(
                f"fairseq-clear {args.command}: stopped; rerun, finished blocks of an output are kept",
                file=sys.stderr,
            )
        raise
    except BrokenPipeError:  # a reader such as `head` has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # such as a folder that may not be entered, or a name that is too long
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        print(f"fairseq-clear {args.command}: error: {where}{error.strerror or error}", file=sys.stderr)
        return USER_ERROR_STATUS
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        what = f"out of memory ({one_line(error)}); give a smaller --batch-size or shorter texts"
        print(f"fairseq-clear {args.command}: error: {what}", file=sys.stderr)
        return USER_ERROR_STATUS
    except KeyboardInterrupt:
        print(f"fairseq-clear {args.command}: interrupted", file=sys.stderr)
        return 130
