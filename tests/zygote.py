"""Runs Python commands in processes that are forked after the slow imports: 0.1 seconds a start instead of 4.

One server process, which all test workers share, imports torch and fairseq, but neither the plugin nor fairseq's commands,
and forks itself for each request.
"""

import atexit
import copy
import gc
import importlib
import inspect
import json
import logging
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = [
    "sentence_transformers",
    "sklearn.linear_model",
    "matplotlib.pyplot",
]  # imported too; few fast tests need them
FORKED = "{}.python"  # by the server's socket: the script that commands find as sys.executable
SOCKET = "FAIRSEQ_CLEAR_TESTS_SOCKET"  # environment variable: the socket of the server that another process has started


def quicken_hydra() -> None:
    """Let hydra share what it copies, parses and reads anew for every configuration: half of the time of a composition."""
    from hydra._internal import config_repository, utils
    from hydra.core.override_parser.overrides_parser import OverridesParser

    def keep(self: Any, delegate: Any) -> None:
        self.delegate, self.cache = delegate, {}  # hydra's own copies every schema of fairseq

    def stack() -> list[inspect.FrameInfo]:  # hydra asks for a caller's file and name; Python's own reads all sources
        frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
        return [inspect.FrameInfo(f, f.f_code.co_filename, f.f_lineno, f.f_code.co_name, None, None) for f in frames]

    utils.inspect = types.SimpleNamespace(**{**vars(inspect), "stack": stack})  # type: ignore[attr-defined]
    parse_once = cache(OverridesParser.parse_rule)
    parser = OverridesParser.create()
    config_repository.CachingConfigRepository.__init__ = keep  # type: ignore[method-assign]
    OverridesParser.parse_rule = lambda _, text, rule: copy.copy(parse_once(parser, text, rule))  # type: ignore[method-assign]


class Forked:
    """A running command; the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, connection: socket.socket, arguments: Sequence[str]) -> None:
        self.connection, self.args = connection, arguments
        self.returncode: int | None = None
        self.pid = int(self._receive(None))

    def _receive(self, timeout: float | None) -> str:
        self.connection.settimeout(timeout)
        received = b""
        while not received.endswith(b"\n"):
            more = self.connection.recv(64)
            assert more, "the process that forks commands is gone"
            received += more
        return received.decode()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; the negative signal where one ended the process. Raises ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            try:
                self.returncode = int(self._receive(timeout))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0) from None
        return self.returncode

    def poll(self) -> int | None:
        """The exit code, None while the process runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def server() -> str:
    """The path of the server's socket; starts the server, unless the process that started this one has.

    The socket listens before the server imports anything. So this function does not wait; the first command does.
    """
    if SOCKET in os.environ:
        return os.environ[SOCKET]
    path = tempfile.mktemp(prefix="zygote.")
    script = Path(FORKED.format(path))
    client = Path(__file__).with_name("forked_python.py")
    words = shlex.join([sys.executable, "-SE", str(client), path])
    script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    script.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        number = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, __file__, path, str(number), *LIBRARIES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,  # not a file: commands inherit sys.stdout, and it would seek in their pipes
            pass_fds=[number],
            cwd=ROOT,
        )
    atexit.register(process.kill)
    for file in (path, FORKED.format(path)):
        atexit.register(Path(file).unlink, missing_ok=True)
    return path


def can_fork(command: Sequence[str]) -> bool:
    """Whether this is a command of this interpreter: ``-c CODE ...`` or ``-m MODULE ...``."""
    return len(command) > 2 and command[0] == sys.executable and command[1] in ("-c", "-m")


def forked_python() -> str:
    """The path of a Python whose ``-c`` and ``-m`` are forked, for code under test that starts ``sys.executable``."""
    return FORKED.format(server())


def write_scripts(folder: Path, *names: str) -> None:
    """Write console scripts of the installed packages, and ``python``, so that what a shell starts is forked."""
    python = forked_python()
    (folder / "python").symlink_to(python)
    for name in names:
        (point,) = entry_points(group="console_scripts", name=name)
        code = f"import sys; sys.argv[0] = {name!r}; from {point.module} import {point.attr} as main; sys.exit(main())"
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join([python, "-c", code])} "$@"\n')
        script.chmod(0o755)


def start(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdout: int,
    stderr: int,
    start_new_session: bool = False,
) -> Forked:
    """Start a command for which ``can_fork`` holds; its standard input is empty."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(server())
    asked = {"command": list(command), "cwd": str(cwd), "env": dict(env), "session": start_new_session}
    content = json.dumps({**asked, "warnings": [], "safe": False}).encode()
    socket.send_fds(connection, [len(content).to_bytes(4, "big")], [stdout, stderr])
    connection.sendall(content)
    return Forked(connection, command)


def _serve(listener: socket.socket) -> None:
    """Accept requests until killed; returns in the process that is to run a command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the supervisors
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return _supervise(connection)
        connection.close()


def _supervise(connection: socket.socket) -> None:
    length, fds, _, _ = socket.recv_fds(connection, 4, 2)
    content = b""
    while len(content) < int.from_bytes(length, "big"):
        content += connection.recv(1 << 16)
    child = os.fork()
    if child:
        connection.sendall(f"{child}\n".encode())
        for descriptor in (*fds, 0, 1, 2):
            os.close(descriptor)
        ended = os.pidfd_open(child)
        if ended not in select.select([ended, connection], [], [])[0]:  # who asked is gone
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        try:
            connection.sendall(f"{code}\n".encode())
        finally:
            os._exit(0)
    connection.close()
    asked = json.loads(content)
    if asked["session"]:
        os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in zip((null, *fds), (0, 1, 2), strict=True):
        os.dup2(source, target)
    for descriptor in (null, *fds):
        os.close(descriptor)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.executable, tempfile.tempdir = FORKED.format(sys.argv[1]), None  # TMPDIR may be another
    _prepare(asked["command"], asked["warnings"], asked["safe"])


def _prepare(command: list[str], filters: list[str], is_safe: bool) -> None:
    filters = [*filter(None, os.environ.get("PYTHONWARNINGS", "").split(",")), *filters]
    warnings._processoptions(filters)  # type: ignore[attr-defined]  # as Python does when it starts
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [*([] if is_safe else [os.getcwd()]), *(path for path in added if path)]
    kind, text = command[1:3]
    sys.argv = [kind, *command[3:]]
    global work
    work = (kind, text)


work = ("", "")


def _exit(kind: str, text: str) -> None:
    """Run a command and exit as Python does, without taking apart what was imported: that takes a second of copying."""
    code: Any = 0
    try:
        _run(kind, text)
    except SystemExit as left:
        code = left.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code or 0)


def _run(kind: str, text: str) -> None:
    if kind == "-m":
        runpy.run_module(text, run_name="__main__", alter_sys=True)
        return
    main: Any = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(text, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).resolve().parent))
    os.environ["OMP_NUM_THREADS"] = "1"
    logging.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import fairseq.checkpoint_utils
        import fairseq.data.data_utils_fast
        import fairseq.quantization_utils
        import fairseq.trainer  # noqa: F401
        import torch
        import torch._dynamo  # what the first optimizer imports, a second
        import torch.distributed.fsdp
        from fairseq import options
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf

        for name in sys.argv[3:]:
            with suppress(ImportError):
                importlib.import_module(name)
        quicken_hydra()
        # hydra's parser keeps tables of what it has seen
        convert_namespace_to_omegaconf(
            options.parse_args_and_arch(options.get_training_parser(), ["data", "--arch", "roberta"])
        )
    torch.set_num_threads(1)
    logging.disable(logging.NOTSET)
    logging.root.handlers.clear()  # fairseq's commands set up logging first, and libraries only if no one did
    logging.root.setLevel(logging.WARNING)
    gc.freeze()  # a collection would copy every page that is shared with the children
    _serve(socket.socket(fileno=int(sys.argv[2])))
    _exit(*work)
