"""A terminal of 80 columns for the recorded sessions of the docs."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from tests.cli.forks import PROGRAMS, ForkServer

PROJECT = Path(__file__).parents[2]
PATIENCE = 60.0
_CONTROL = re.compile(r"\x1b\[(\d*)([A-Za-z])|\x1b\[\?[0-9;]*[A-Za-z]|\r|\n|[^\r\n\x1b]+")


def terminal_env(directory: Path) -> dict[str, str]:
    """The environment of a shell that finds `treadle`, and the modules of the directory."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("TREADLE_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPATH": f"{directory}{os.pathsep}{PROJECT / 'src'}",
        "NO_COLOR": "1",
        "COLUMNS": "80",
        "LINES": "24",
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
    }


def only_our_plugins() -> str:
    """Options for a pytest with no plugins but those that the extra `testing` brings."""
    names = {each.name for each in entry_points(group="pytest11")} - {"asyncio", "treadle"}
    return " ".join(f"-p no:{name}" for name in sorted(names))


SHELL = frozenset("|&;<>$`*?")
"""A command with one of these is for a shell."""


def can_fork(command: str) -> bool:
    """Whether a command needs no shell, and is one of those that a fork can run."""
    return not SHELL & set(command) and command.split(maxsplit=1)[0] in PROGRAMS


def type_command(
    command: str, directory: Path, env: Mapping[str, str], forks: ForkServer | None = None
) -> str:
    """What the terminal shows in the end. Questions are answered with y. forks: runs what needs no shell."""
    screen, inside = pty.openpty()
    if forks is not None and can_fork(command):
        words = shlex.split(command)
        process = forks.start(words, directory, env, input=inside, output=inside, errors=inside)
        os.close(inside)
        shown = _shown(screen, command)
        process.wait(PATIENCE)
        return screen_text(shown)
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=directory,
        env=env,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    ):
        os.close(inside)
        return screen_text(_shown(screen, command))


def _shown(screen: int, command: str) -> str:
    """All that is written to a terminal until no process has it open."""
    shown, asked, end = b"", 0, time.monotonic() + PATIENCE
    while True:
        ready, _, _ = select.select([screen], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"{command} has not ended: {shown.decode(errors='replace')}"
        try:
            read = os.read(screen, 65536)
        except OSError:  # the other end is closed
            break
        if not read:
            break
        shown += read
        if shown.count(b"[y/N] ") > asked:
            asked += 1
            os.write(screen, b"y\n")
    os.close(screen)
    return shown.decode()


def screen_text(shown: str) -> str:
    """What a terminal shows in the end. A progress bar goes up, clears its lines and is written over."""
    rows, row, column = [""], 0, 0
    for found in _CONTROL.finditer(shown):
        text, count, letter = found[0], int(found[1] or 1), found[2]
        if text == "\r":
            column = 0
        elif text == "\n":
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        elif letter == "A":
            row = max(0, row - count)
        elif letter == "K":
            rows[row] = ""
        elif not text.startswith("\x1b"):
            rows[row] = rows[row].ljust(column)[:column] + text + rows[row][column + len(text) :]
            column += len(text)
    return "\n".join(rows).rstrip("\n")


_MASKS = (
    (re.compile(r' *File "[^"]*site-packages[^\n]*\n(?: {4,}[^\n]*\n)+?(?= *File)'), ""),
    (re.compile(r"\n *[~^]+(?=\n)"), ""),
    (re.compile(r"(\w+: \w+)[^\n]*…"), r"\1…"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| UTC)"), "TIME"),
    (re.compile(r"\b(in )?[\d.]+\s(ms|s|min|h)\b(\sago)?|\bnow\b"), "SPAN"),
    (re.compile(r'"order":\d+'), '"order":N'),
    (re.compile(r"Input \(\d+ B\)"), "Input"),
    (re.compile(r"\s+"), " "),
)


def masked(text: str) -> str:
    """The text without what differs from run to run."""
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text
