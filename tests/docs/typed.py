"""Runs `treadle ...` and `python FILE` in forks of a process that has imported treadle: each command then
takes a fraction of the time. Nothing else differs from a process of its own.

    python -m tests.docs.typed

reads orders from its standard input, one JSON object per line, and answers each when the fork has its
terminal.
"""

from __future__ import annotations

import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

SHELL = frozenset("|&;<>$`*?")
"""A command with one of these is for a shell."""


class ForkServer:
    """A process that runs commands in forks of itself."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.typed"],
            cwd=Path(__file__).parents[2],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, command: str, directory: Path, env: Mapping[str, str], terminal: str) -> None:
        """Start a command. Return when it has its terminal. terminal: the path of that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"argv": shlex.split(command), "cwd": str(directory), "env": dict(env), "terminal": terminal}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline(), "the fork server has ended"

    def close(self) -> None:
        self._process.communicate()


def can_run(command: str) -> bool:
    """Whether a command needs no shell, and is one of those that a fork can run."""
    return not SHELL & set(command) and command.startswith(("treadle ", "python "))


def serve() -> None:
    import asyncpg  # noqa: F401  imported for the forks

    import treadle.backends.postgres
    import treadle.backends.sqlite
    import treadle.cli.commands  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    for line in sys.stdin:
        if os.fork() == 0:
            become(json.loads(line))


def become(order: Mapping[str, Any]) -> NoReturn:
    """Be the process of a command."""
    code: Any = 1
    try:
        _move_to(order)
        program, *arguments = order["argv"]
        sys.argv = arguments if program == "python" else [program, *arguments]
        if program == "python":
            runpy.run_path(arguments[0], run_name="__main__")
            code = 0
        else:
            from treadle.cli import main

            code = main()
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)  # noqa: T201
    except BaseException:  # noqa: BLE001  shown as by an interpreter
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _move_to(order: Mapping[str, Any]) -> None:
    """Move to the terminal, the directory and the environment of the command."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    terminal = os.open(order["terminal"], os.O_RDWR)
    os.write(1, b"begun\n")  # answers the order
    for descriptor in (0, 1, 2):
        os.dup2(terminal, descriptor)
    os.close(terminal)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path.insert(0, order["cwd"])


if __name__ == "__main__":
    serve()
