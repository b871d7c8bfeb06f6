"""The layout of Redis, as its code has it: names of keys, packed formats, and what reads and writes bytes.

    python -m tests.backends.redis_layout                   records it, if its number is new
    python -m tests.backends.redis_layout --same-layout     records it with the same number

The second is for code that was moved or written otherwise, so that stores are read as before, and for a
number that is not released yet.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final

from treadle.backends.redis.schema import VERSION

RECORD: Final = Path(__file__).with_name("redis_layout.txt")
CODE: Final = Path(str(files("treadle.backends.redis")))

_COMMENT: Final = re.compile(r"^\s*--.*\n|\s+--.*$", re.MULTILINE)
_LUA_KEY: Final = re.compile(r"\bK\.(\w+)")
_PYTHON_KEY: Final = re.compile(r"\.key\(\"(\w+)\"\)")
_LUA_FORMAT: Final = re.compile(r"'(>[A-Za-z0-9]+)'")
_PYTHON_COMMENT: Final = re.compile(r"(^|\s)#.*$", re.MULTILINE)
_TRAILING: Final = re.compile(r",(?=[)\]}])")
_PYTHON_FORMAT: Final = re.compile(r"\bBytes\(\"([^\"]+)\"\)")


def layout() -> list[str]:
    """One line for each fact, in order."""
    return sorted({*_lua_facts(), *_python_facts()})


def recorded() -> tuple[int, list[str]]:
    """The number of the layout that was recorded, and its facts."""
    first, *facts = RECORD.read_text().splitlines()
    return int(first.removeprefix("version ")), facts


def record() -> None:
    RECORD.write_text("\n".join([f"version {VERSION}", *layout()]) + "\n")


def _lua_facts() -> Iterator[str]:
    for path in sorted(CODE.glob("lua/**/*.lua")):
        text = _COMMENT.sub("", path.read_text())
        yield from (f"key {name}" for name in _LUA_KEY.findall(text))
        yield from (f"format {path.name} {each}" for each in _LUA_FORMAT.findall(text))
        if path.name.endswith("_bytes.lua"):
            yield f"bytes {path.name} {_digest(' '.join(text.split()))}"


def _python_facts() -> Iterator[str]:
    for path in sorted(CODE.glob("*.py")):
        text = path.read_text()
        yield from (f"key {name}" for name in _PYTHON_KEY.findall(text))
        yield from (f"format {path.name} {each}" for each in _PYTHON_FORMAT.findall(text))
        if path.name.endswith("_bytes.py"):
            yield from (f"bytes {path.name} {each}" for each in _definitions(text))


def _definitions(text: str) -> Iterator[str]:
    """What a module defines, each with a digest of its code without texts and comments about it."""
    for node in ast.parse(text).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield f"{name} {_digest(_code_of(node, text))}"
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield f"{name} {_digest(_code_of(node, text))}"
            case _:
                pass


def _code_of(node: ast.stmt, text: str) -> str:
    """The source, however it is laid out: what `ast` writes depends on the version of Python."""
    lines = dict(enumerate(text.splitlines(), 1))
    for each in ast.walk(node):
        if isinstance(each, ast.stmt) and _is_text(each):
            for number in range(each.lineno, (each.end_lineno or each.lineno) + 1):
                lines[number] = ""
    code = "\n".join(lines[number] for number in range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return _TRAILING.sub("", "".join(_PYTHON_COMMENT.sub("", code).split()))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def main(arguments: list[str]) -> int:
    number, facts = recorded() if RECORD.exists() else (0, [])
    if (number, facts) == (VERSION, layout()):
        sys.stdout.write("nothing has changed\n")
        return 0
    if number == VERSION and "--same-layout" not in arguments:
        sys.stdout.write(
            f"the layout has changed, and its number is still {VERSION}: raise VERSION in "
            "src/treadle/backends/redis/schema.py. If stores are read as before: --same-layout\n"
        )
        return 1
    record()
    sys.stdout.write(f"recorded the layout as number {VERSION}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
