"""The Python blocks of the docs as programs for type checkers.

Each page becomes a module in which a block has the lines that it has on the page. A block may await at its
top, and may define again what an earlier block has. So each is an async function inside that of the block
before it, except for a first one that awaits nothing.

The blocks of the tutorial are files, which later blocks replace: each state of its directory is a package.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.docs import tutorial
from tests.docs.test_blocks import FILES, ROOT, blocks

PRELUDE = 'POSTGRES_URL = REDIS_URL = NATS_URL = ""'
"""What tests/docs/test_blocks.py gives to a page, on the line of its title."""

PYRIGHT = """{
  "include": ["."],
  "extraPaths": ["%(root)s", "%(root)s/src"],
  "typeCheckingMode": "strict",
  "pythonVersion": "3.11",
  "reportUnusedImport": false,
  "reportUnusedVariable": false,
  "reportUnusedFunction": false,
  "reportUnusedClass": false
}
"""
"""A block defines what it shows. It need not use all of it."""

MYPY = """[mypy]
mypy_path = %(here)s:%(root)s/src
explicit_package_bases = True
strict = True
python_version = 3.11
follow_imports = silent
cache_dir = %(root)s/.mypy_cache/docs
"""


def write(directory: Path) -> list[Path]:
    """Write the modules and the settings of both checkers. Return the modules."""
    for name, text in (("pyrightconfig.json", PYRIGHT), ("mypy.ini", MYPY)):
        (directory / name).write_text(text % {"root": ROOT, "here": directory})
    modules = [*((name_of(page), module_of(page)) for page in FILES if blocks(page)), *tutorial_files()]
    for name, text in modules:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    return [directory / name for name, _ in modules]


def name_of(page: Path) -> str:
    """The name of the file of a page. It is no name of a library."""
    return f"page_{re.sub(r'[^a-z]', '_', page.stem.lower())}.py"


def module_of(page: Path) -> str:
    """The blocks of a page as a module."""
    lines, depth = [PRELUDE], 0
    for line, source, runs in blocks(page):
        if not runs or "from django" in source:  # Django has no types
            continue
        first = len(lines) == 1
        lines += [""] * (line - 1 - len(lines))
        if not first or awaits(source):
            lines.append(f"{' ' * depth}async def block_{line}() -> None:")
            depth += 1
        else:
            lines.append("")
        lines += [f"{' ' * depth}{each}" if each else "" for each in source.splitlines()]
    return "\n".join([*lines, ""])


def awaits(source: str) -> bool:
    """Whether a block awaits at its top."""
    code = compile(source, "", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return bool(code.co_flags & inspect.CO_COROUTINE)


def tutorial_files() -> Iterator[tuple[str, str]]:
    """The files of the tutorial, as they are whenever commands are entered: in a package each time."""
    page = tutorial.PAGE.read_text()
    files: dict[str, str] = {}
    entered: list[dict[str, str]] = [{}]
    for block in tutorial.blocks(page):
        if block.kind == "python" and (named := tutorial.FILE.match(block.text)):
            files[named[1]] = "\n" * page.count("\n", 0, block.start) + block.text
        elif block.kind in ("console", "worker") and files != entered[-1]:
            entered.append(dict(files))
    for number, each in enumerate(entered[1:]):
        for name, source in each.items():
            yield f"tutorial_{number}/{name}", _within(f"tutorial_{number}", each, source)


def _within(package: str, files: Iterable[str], source: str) -> str:
    """A file whose imports of other files name their package."""
    modules = "|".join(Path(name).stem for name in files)
    source = re.sub(rf"^from ({modules}) import", rf"from {package}.\1 import", source, flags=re.MULTILINE)
    return re.sub(rf"^import ({modules})$", rf"from {package} import \1", source, flags=re.MULTILINE)
