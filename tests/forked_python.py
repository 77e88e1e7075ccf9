"""Runs ``-c CODE`` or ``-m MODULE`` in a process forked by tests/zygote.py; any other command by Python itself.

Commands that were forked find a script that calls this file as ``sys.executable``, so what they start is forked too.
Arguments: the path of the server's socket, then Python's own. Signals are passed on, and the exit status is the command's.
"""

import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(path: str, arguments: list[str]) -> None:
    """Ask the server to fork, and wait for the end of the command."""
    words, warnings, is_safe = list(arguments), [], False
    while words[:1] in (["-u"], ["-P"], ["-W"]):
        option = words.pop(0)
        warnings += [words.pop(0)] if option == "-W" else []
        is_safe = is_safe or option == "-P"
    if len(words) < 2 or words[0] not in ("-c", "-m"):
        os.execv(sys.executable, [sys.executable, *arguments])
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until there is a process to send them to
    asked = {"command": [sys.executable, *words], "cwd": os.getcwd(), "env": dict(os.environ), "session": False}
    content = json.dumps({**asked, "warnings": warnings, "safe": is_safe}).encode()
    socket.send_fds(connection, [len(content).to_bytes(4, "big")], [1, 2])
    connection.sendall(content)
    answers = connection.makefile()
    pid = int(answers.readline())
    for number in FORWARDED:
        signal.signal(number, lambda received, _: os.kill(pid, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    code = int(answers.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code in FORWARDED else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
