"""Types docs/tutorial.md as a reader would: writes its files, enters its commands, and runs its worker.

    python -m tests.docs.tutorial

records anew what the commands print, and with `promote` what those of docs/promote.md print. Tests compare
that with the pages. These blocks are understood:

- `python` and `ini`, whose first line is the name of a file: the file is written.
- `console`: commands of the first terminal, with what they print.
- `console` after `<!-- terminal 2 -->`: the worker is stopped, if it runs, and started. What the page shows
  of its output must be a part of it.
- `bash`: what a reader does before, outside of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.cli.forks import Forked, common_server
from tests.docs.terminal import (
    PATIENCE,
    PROJECT,
    masked,
    only_our_plugins,
    terminal_env,
    type_command,
)
from treadle import Client

PAGE = PROJECT / "docs" / "tutorial.md"
PROMOTED = PROJECT / "docs" / "promote.md"
BLOCK = re.compile(r"^(<!-- terminal 2 -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.\w+)\n")
STORE = "postgresql://postgres:shop@127.0.0.1:5432/shop"
PORT = "9100"


class Block(NamedTuple):
    """A block of the page, and where it is."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The commands of a console, each with what it prints."""
        parts = re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]
        return [(command, shown) for part in parts for command, _, shown in [part.partition("\n")]]


def blocks(page: str) -> Iterator[Block]:
    for found in BLOCK.finditer(page):
        yield Block("worker" if found[1] else found[2], found[3], found.start(3), found.end(3))


class Reader:
    """Someone with two terminals, in a directory of their own."""

    def __init__(self, directory: Path, store: str, columns: int) -> None:
        self._directory = directory
        self._env = {
            **terminal_env(directory),
            "PYTEST_ADDOPTS": only_our_plugins(),
            "COLUMNS": str(columns),
        }
        self._forks = common_server()
        store = _with_password(store)
        self._stands_for = {STORE: store, _hidden(STORE): _hidden(store), PORT: str(_free_port())}
        """What the page says, and what is meant here."""
        self._worker: Forked | None = None
        self._log = directory / "worker.log"
        self._store_of_worker = ""
        self.worker_output = ""
        """What all workers have printed."""

    def play(self, page: str) -> str:
        """Do what a page says. Returns it with what the commands have printed now."""
        parts: list[str] = []
        end = 0
        for block in blocks(page):
            text = block.text
            match block.kind:
                case "python" | "ini":
                    self.write(text)
                case "console":
                    text = "".join(_entry(command, self.enter(command)) for command, _ in block.commands)
                case "worker":
                    self.run_worker(block.commands)
                case _:
                    assert block.kind == "bash", block.kind
            parts += [page[end : block.start], text]
            end = block.end
        return "".join(parts) + page[end:]

    def write(self, text: str) -> None:
        name = FILE.match(text)
        assert name is not None, f"a block begins with the name of its file: {text[:40]!r}"
        (self._directory / name[1]).write_text(text)

    def enter(self, command: str) -> str:
        """What a command prints in the first terminal."""
        if self._worker is not None:
            asyncio.run(self._until_quiet())
        if self._exports(command):
            return ""
        return self._as_on_page(type_command(self._meant(command), self._directory, self._env, self._forks))

    def run_worker(self, commands: list[tuple[str, str]]) -> None:
        """Start the worker in the second terminal, again if it runs."""
        self.stop()
        *before, (command, _) = commands
        for each, _ in before:
            assert self._exports(each)
        self._store_of_worker = self._env.get("SHOP_STORE", f"sqlite:///{self._directory / 'shop.db'}")
        with self._log.open("wb") as log:
            words = shlex.split(self._meant(command))
            self._worker = self._forks.start(words, self._directory, self._env, errors=log.fileno())

    def stop(self) -> None:
        """Press Ctrl-C in the second terminal."""
        if self._worker is not None:
            self._worker.send_signal(signal.SIGINT)
            self._worker.wait(PATIENCE)
            self.worker_output += self._as_on_page(self._log.read_text())
            self._worker = None

    async def _until_quiet(self) -> None:
        """Wait until a worker is alive, and no item is open."""
        async with Client(self._store_of_worker) as client:
            end = time.monotonic() + PATIENCE
            while any(each.status != "dead" for each in await client.counts()) or not await client.workers():
                assert time.monotonic() < end, self._log.read_text()
                await asyncio.sleep(0.02)

    def _exports(self, command: str) -> bool:
        is_export = command.startswith("export ")
        if is_export:
            name, _, value = command.removeprefix("export ").partition("=")
            self._env[name] = self._meant(value)
        return is_export

    def _meant(self, text: str) -> str:
        for shown, meant in self._stands_for.items():
            text = text.replace(shown, meant)
        return text

    def _as_on_page(self, text: str) -> str:
        for shown, meant in (*self._stands_for.items(), ("/home/you/shop", str(self._directory))):
            text = text.replace(meant, shown)
        text = text.replace(str(PROJECT / "src"), ".venv/lib/python3/site-packages")
        text = re.sub(rf"\b{re.escape(socket.gethostname())}:\d+", "shop-1:4711", text)
        text = re.sub(rf"\b{re.escape(socket.gethostname()):<4}(?=  )", "shop", text)
        return "\n".join(line.rstrip() for line in text.splitlines())


def _with_password(url: str) -> str:
    """The URL with a password, as on the page: commands must hide it. A server that trusts all takes any."""
    return re.sub(r"^(\w+://[^:/@]+)@", r"\1:shop@", url)


def _hidden(url: str) -> str:
    """The URL as commands show it."""
    return re.sub(r"^(\w+://[^:/@]+):[^@]*@", r"\1:***@", url)


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


@contextlib.contextmanager
def reader(directory: Path, store: str, *, columns: int = 80) -> Generator[Reader]:
    made = Reader(directory, store, columns)
    try:
        yield made
    finally:
        made.stop()


class Played(NamedTuple):
    """The page as it was played, and what the workers printed."""

    page: str
    worker_output: str


def play(page: str, directory: Path, store: str) -> Played:
    """Do what the page says. Returns it with what the commands have printed now."""
    with reader(directory, store) as someone:
        played = someone.play(page)
    return Played(played, someone.worker_output)


def promote(page: str, directory: Path, store: str) -> str:
    """Do what the page about promotions says, when the tutorial has been typed up to another URL, without its
    tests. Returns it as `play` does. Its terminal is wide: in a narrow one, how many columns a table has
    depends on how long ago things were."""
    before, _, others = PAGE.read_text().partition("\n## 6. ")
    with reader(directory, store, columns=100) as someone:
        someone.play(before)
        someone.play(others[others.index("\n## 7. ") : others.index("\n## 8. ")])
        someone.stop()
        return someone.play(page)


def _entry(command: str, shown: str) -> str:
    return f"$ {command}\n" + (f"{shown}\n" if shown else "")


def shown_by_workers(page: str) -> Iterator[str]:
    """What the page shows of the output of workers."""
    for block in blocks(page):
        if block.kind == "worker" and (shown := block.commands[-1][1].strip()):
            yield shown


CUT = re.compile(r"  (?:(?!  )[^\n])*…")
"""The last column of a table, if it is cut: how much of it is shown depends on the others."""
COUNTED = re.compile(r"^(statistic|sample) +[\d,]+\n", re.MULTILINE)
"""A row of a table with as many as the minutes in which something happened."""
_MORE_MASKS = (
    (re.compile(r"\bin \d+\.\d+s\b"), "in SPAN"),
    (re.compile(r"\bpid +\d+"), "pid N"),
    (re.compile(r"\bevent loop \w+"), "event loop"),
    (re.compile(r"\[\d+\]"), "[N]"),
    (re.compile(r"\bshop +\d+"), "shop N"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
)


def plain(text: str) -> str:
    """The text without what differs from run to run."""
    text = masked(COUNTED.sub("", CUT.sub("  CUT", text)))
    for pattern, mask in _MORE_MASKS:
        text = pattern.sub(mask, text)
    return text


def main(pages: list[str]) -> None:
    from tests.support import postgres
    from tests.support.run import Run

    run = Run.begin()
    try:
        with tempfile.TemporaryDirectory() as made:
            store = postgres.start(run.directory)
            if pages == ["promote"]:
                PROMOTED.write_text(promote(PROMOTED.read_text(), Path(made), store))
                return
            played = play(PAGE.read_text(), Path(made), store)
        PAGE.write_text(played.page)
    finally:
        run.end()
    print(played.worker_output)  # noqa: T201  to copy from


if __name__ == "__main__":
    main(sys.argv[1:])
