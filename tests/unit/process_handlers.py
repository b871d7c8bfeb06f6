"""Handlers that the tests of the process pool run in other processes, so this module must be importable."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from treadle.errors import Abort


class Wrapped:
    """Stands for a work type: the value that the decorated name has."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn


def add(a: int, b: int = 0) -> int:
    return a + b


@Wrapped
def shadowed(a: int) -> int:
    return a * 10


original = shadowed.fn


def shadow(a: int) -> int:
    return a


renamed, shadow = shadow, None  # type: ignore[assignment]


def pid() -> int:
    return os.getpid()


def fail(message: str) -> None:
    raise ValueError(message)


def abort() -> None:
    raise Abort(KeyError("k"))


class Picky(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


def fail_unpicklably() -> None:
    raise Picky(code=7)


def leave() -> None:
    sys.exit(3)


def give_unpicklable() -> object:
    return threading.Lock()


class Unreadable:
    """It can be pickled, and not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("not a number",)


def give_unreadable() -> object:
    return Unreadable()


class Deadly:
    """It ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (5,)


def give_deadly() -> object:
    return Deadly()


class Silent(Exception):
    def __str__(self) -> str:
        raise SystemExit(6)


def fail_silently() -> None:
    raise Silent


def segfault() -> None:
    ctypes.string_at(0)


def exit_hard() -> None:
    os._exit(9)


def hang(started: str) -> None:
    """Report the start by writing the pid, and never end."""
    _write_pid(started)
    while True:
        time.sleep(60)


def hold_the_interpreter(started: str) -> None:
    """Report the start, and hang in a C call that lets no other thread of the process run."""
    _write_pid(started)
    ctypes.PyDLL(None).sleep(300)


def interrupt_and_go_on() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    return "still here"


def signals_of_a_program() -> str:
    """How a program that a handler starts handles SIGTERM and SIGINT."""
    script = (
        "import signal; print(signal.getsignal(15) == signal.SIG_IGN, signal.getsignal(2) == signal.SIG_IGN)"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def in_a_process_of_its_own(a: int) -> int:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(add, a, 1).result(30)


def length(data: bytes) -> bytes:
    return data * 2


def _write_pid(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
