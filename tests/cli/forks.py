"""Runs `treadle ...` and `python FILE` in forks of a process that has imported treadle: a start then
takes a hundredth of a second, and not a half. Nothing else differs from a process of its own. What a command
starts itself, such as the children of a supervisor, are processes as usual.

    python -m tests.cli.forks FD

reads orders from a socket, one JSON object per line, with the descriptors for standard input, output and
error. It answers each order with a number.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

PROJECT = Path(__file__).parents[2]
PROGRAMS = ("treadle", "python")


class Forked:
    """A command that runs in a fork: what the tests need of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int, ended: int) -> None:
        """ended: a descriptor that can be read when the process has ended."""
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        self._server = server
        self._ended = ended
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
                os.close(self._ended)
                self.returncode = self._server.code_of(self.pid)
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A process that runs commands in forks of itself."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._channel, far = socket.socketpair()
        self._lock = threading.Lock()
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cli.forks", str(far.fileno())],
                cwd=PROJECT,
                env=env,
                stdin=subprocess.DEVNULL,
                pass_fds=[far.fileno()],
            )

    def start(
        self,
        arguments: Sequence[str],
        directory: Path,
        env: Mapping[str, str],
        *,
        input: int | None = None,
        output: int | None = None,
        errors: int | None = None,
    ) -> Forked:
        """Start a command in a session of its own. Each of the three is a descriptor; None: nothing is read,
        and what is written is lost. If all are a terminal, it is the one of the session."""
        order = {"argv": list(arguments), "cwd": str(directory), "env": dict(env)}
        ended, ends = os.pipe()
        with Path(os.devnull).open("r+b", buffering=0) as nothing:
            given = [nothing.fileno() if each is None else each for each in (input, output, errors)]
            try:
                pid = self._ask(order, [*given, ends])
            finally:
                os.close(ends)
        return Forked(self, pid, ended)

    def start_with_pipes(self, arguments: Sequence[str], directory: Path, env: Mapping[str, str]) -> Forked:
        """Start a command whose output and errors can be read while it runs."""
        (output, far_output), (errors, far_errors) = os.pipe(), os.pipe()
        try:
            process = self.start(arguments, directory, env, output=far_output, errors=far_errors)
        finally:
            os.close(far_output)
            os.close(far_errors)
        process.stdout, process.stderr = os.fdopen(output), os.fdopen(errors)
        return process

    def run(
        self, arguments: Sequence[str], directory: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            process = self.start(arguments, directory, env, output=output.fileno(), errors=errors.fileno())
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(list(arguments), code, output.read(), errors.read())

    def code_of(self, pid: int) -> int:
        """The exit code of a process that ends now, or has ended."""
        return self._ask({"code of": pid}, [])

    def _ask(self, order: Mapping[str, Any], descriptors: list[int]) -> int:
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(order).encode() + b"\n"], descriptors)
            answer = b""
            while not answer.endswith(b"\n"):
                read = self._channel.recv(64)
                assert read, "the fork server has ended"
                answer += read
        return int(answer)

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


@functools.cache
def common_server() -> ForkServer:
    """One for the tests of this process. It ends with it."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def serve(channel: socket.socket) -> None:
    _import_for_forks()
    while order := _next_order(channel):
        asked, descriptors = order
        if "code of" in asked:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["code of"], 0)[1])
        elif (answer := os.fork()) == 0:
            channel.close()
            become(asked, descriptors)
        for each in descriptors:
            os.close(each)
        channel.sendall(b"%d\n" % answer)


def _import_for_forks() -> None:
    import asyncpg  # noqa: F401
    import typer.main

    import treadle.backends.memory
    import treadle.backends.postgres
    import treadle.backends.sqlite  # noqa: F401
    from treadle.cli.commands import commands

    make = functools.cache(typer.main.get_command)  # takes longer than most commands
    vars(typer.main)["get_command"] = make
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        make(commands).main(["schema", "sqlite"], prog_name="treadle")  # imports what every command needs


def _next_order(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    text, descriptors = b"", []
    while not text.endswith(b"\n"):
        read, passed, _, _ = socket.recv_fds(channel, 65536, 4)
        if not read:
            return None
        text += read
        descriptors += passed
    return json.loads(text), descriptors


def become(order: Mapping[str, Any], descriptors: list[int]) -> NoReturn:
    """Be the process of a command."""
    code: Any = 1
    try:
        _move_to(order, descriptors)
        code = _run(*order["argv"])
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)  # noqa: T201
            code = 1
    except BaseException:  # noqa: BLE001  shown as by an interpreter
        sys.excepthook(*sys.exc_info())
    finally:
        _finish()
        os._exit(code or 0)


def _run(program: str, *arguments: str) -> Any:
    if program == "python" and arguments[:2] == ("-W", "error"):
        warnings.simplefilter("error")
        arguments = arguments[2:]
    if program == "python":
        sys.argv = list(arguments)
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")
        return 0
    sys.argv = [program, *arguments]
    from treadle.cli import main

    main()
    return 0


def _finish() -> None:
    """What an interpreter does at its end."""
    import logging

    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    logging.shutdown()
    if "coverage" in sys.modules and (measuring := sys.modules["coverage"].Coverage.current()):
        measuring.stop()
        measuring.save()
    sys.stdout.flush()
    sys.stderr.flush()


def _move_to(order: Mapping[str, Any], descriptors: list[int]) -> None:
    """Move to the terminal or the files, the directory and the environment of the command. The last
    descriptor stays open until the end of the process."""
    os.setsid()
    for number, given in enumerate(descriptors[:3]):
        os.dup2(given, number)
        os.close(given)
    os.set_inheritable(descriptors[3], False)
    if all(os.isatty(number) for number in range(3)):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    encoding = os.environ.get("PYTHONIOENCODING")
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [order["cwd"], *(each for each in path if each and each not in sys.path)]


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
