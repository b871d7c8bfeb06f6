"""`python -m tests.architecture.size`: how large the house is, and how far one call goes through it.

CONTRIBUTING keeps the table.
"""

from __future__ import annotations

import ast
import asyncio
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from treadle import Treadle, work

PROJECT = Path(__file__).parents[2]
SOURCE = PROJECT / "src" / "treadle"
EDGES = ("cli", "dashboard", "contrib")
SHORT = 60
"""Lines of a module that needs a reason to stand alone."""


@work
async def add(a: int, b: int) -> int:
    return a + b


def modules() -> list[Path]:
    """The modules that programs run with: `testing` is for tests."""
    return [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] != "testing"]


def length(paths: Iterable[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


def by_room() -> dict[str, tuple[int, int]]:
    """Lines and files of each room. Modules of the top level are the room `.`."""
    rooms: dict[str, list[Path]] = {}
    for path in modules():
        parts = path.relative_to(SOURCE).parts
        room = (
            "."
            if len(parts) == 1
            else "/".join(parts[: 2 if parts[0] == "backends" and len(parts) > 2 else 1])
        )
        rooms.setdefault(room, []).append(path)
    return {room: (length(paths), len(paths)) for room, paths in sorted(rooms.items())}


def top_level() -> list[str]:
    return sorted(path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("__"))


def imported(code: str) -> int:
    """Modules of treadle that are loaded after this code."""
    count = "import sys; print(sum(name.partition('.')[0] == 'treadle' for name in sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\n{count}"], check=True, capture_output=True, text=True, cwd=PROJECT
    )
    return int(ran.stdout)


def edges_on_the_engine() -> list[str]:
    """Files of the edges that import the engine."""
    found: list[str] = []
    for path in (path for edge in EDGES for path in sorted((SOURCE / edge).rglob("*.py"))):
        nodes = ast.walk(ast.parse(path.read_text()))
        names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
        if any(name == "treadle.engine" or name.startswith("treadle.engine.") for name in names):
            found.append(str(path.relative_to(SOURCE)))
    return found


def uses_of_core() -> int:
    """Calls of `core_of` at the edges: each reaches around the client."""
    texts = (path.read_text() for edge in EDGES for path in (SOURCE / edge).rglob("*.py"))
    return sum(len(re.findall(r"\bcore_of\(", text)) for text in texts)


def words() -> int:
    """Words of README and docs, without the decisions."""
    pages = [
        PROJECT / "README.md",
        *(PROJECT / "docs").glob("*.md"),
        *(PROJECT / "docs" / "moving").glob("*.md"),
    ]
    return sum(len(page.read_text().split()) for page in pages)


class Way(NamedTuple):
    """What one call, from enqueue to its result, goes through."""

    modules: int
    switches: int
    """Calls into another module than that of the call before."""
    calls: int
    statements: int
    """SQL statements. 0 in memory."""


class Profile:
    """Counts calls of treadle's functions, in all threads, and SQL statements, while it is on."""

    def __init__(self) -> None:
        self.on = False
        self._files: list[str] = []
        self._statements = 0

    def called(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            self._files.append(frame.f_code.co_filename)

    def executed(self, _: str) -> None:
        self._statements += self.on

    def way(self) -> Way:
        switches = sum(one != other for one, other in zip(self._files, self._files[1:], strict=False))
        return Way(len(set(self._files)), switches, len(self._files), self._statements)


async def way_of_one_add(url: str) -> Way:
    """The way of an item on a store that has seen others: the shortest of five, for upkeep may be due."""
    profile = Profile()
    connect = sqlite3.connect

    def connect_traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_trace_callback(profile.executed)
        return connection

    sqlite3.connect = connect_traced
    threading.setprofile(profile.called)
    sys.setprofile(profile.called)
    ways: list[Way] = []
    try:
        async with Treadle(url, work=[add]) as app:
            for _ in range(5):
                await app.enqueue(add(1, 2)).result()
                await asyncio.sleep(0.1)
                profile._files.clear()
                profile._statements = 0
                profile.on = True
                assert await app.enqueue(add(1, 2)).result() == 3
                profile.on = False
                ways.append(profile.way())
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]
        sqlite3.connect = connect
    return min(ways, key=lambda way: way.calls)


def table() -> list[tuple[str, str, str]]:
    """What, how much, and what it should be at most."""
    paths = modules()
    short = sum(length([path]) <= SHORT for path in paths if path.name != "__init__.py")
    with tempfile.TemporaryDirectory() as directory:
        sqlite = asyncio.run(way_of_one_add(f"sqlite:///{directory}/work.db"))
    memory = asyncio.run(way_of_one_add("memory://"))
    return [
        ("Python without `testing/`", f"{length(paths):,} lines in {len(paths)} files", "72,000 in 420"),
        ("modules on the top level", f"{len(top_level())}", "25"),
        (f"modules with {SHORT} lines or fewer", f"{short}", ""),
        (
            "`import treadle`, with SQLite",
            f"{imported('import treadle')}, {imported('import treadle.backends.sqlite')} modules",
            "120",
        ),
        (
            "one `add(1, 2)` on SQLite",
            f"{sqlite.modules} modules, {sqlite.switches} switches, {sqlite.calls} calls, "
            f"{sqlite.statements} statements",
            "45, 130, 350, 20",
        ),
        (
            "... on memory",
            f"{memory.modules} modules, {memory.switches} switches, {memory.calls} calls",
            "40, 100",
        ),
        (
            "edges: files that import the engine; `core_of`",
            f"{len(edges_on_the_engine())}; {uses_of_core()}",
            "0; 5",
        ),
        ("words of README and docs, without decisions", f"{words():,}", "75,000"),
    ]


def main() -> None:
    for what, now, goal in table():
        print(f"| {what} | {now} | {goal} |")  # noqa: T201
    print()  # noqa: T201
    for room, (lines, files) in by_room().items():
        print(f"{room:20} {lines:6,} lines {files:4} files")  # noqa: T201


if __name__ == "__main__":
    main()
