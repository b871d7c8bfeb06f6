"""Every Python block of the README and the docs runs, in order, with one namespace per file."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN_TESTS = {"django.md", "tutorial.md"}
"""The blocks are the files of a project: tests/contrib/django/test_docs.py and test_tutorial.py run them."""
FILES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    *(file for file in sorted((ROOT / "docs").glob("*.md")) if file.name not in OWN_TESTS),
    *sorted((ROOT / "docs" / "moving").glob("*.md")),
]
BLOCK = re.compile(r"^```python(?: needs=(\w+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""`needs=flask`: it runs only where that is installed. Elsewhere it is only compiled. `file=`: a copy of a
program, which tests/moving runs."""


def blocks(file: Path) -> list[tuple[int, str, bool]]:
    """The Python blocks of a file, each with its first line number, and whether it can run here."""
    text = file.read_text()
    return [
        (
            text.count("\n", 0, match.start()) + 1,
            match[2],
            match[1] is None or find_spec(match[1]) is not None,
        )
        for match in BLOCK.finditer(text)
    ]


SERVERS = {"POSTGRES_URL": "postgres_url", "REDIS_URL": "valkey_url", "NATS_URL": "nats_url"}
"""Names that a block may use, and the fixtures that give their values."""


def servers(file: Path) -> dict[str, str]:
    """The servers that the blocks of a page need."""
    text = file.read_text()
    return {name: fixture for name, fixture in SERVERS.items() if name in text}


@pytest.fixture
def module(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> types.ModuleType:
    """The namespace of a page."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"docs_{file.stem.lower()}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, fixture in servers(file).items():
        module.__dict__[name] = request.getfixturevalue(fixture)
    return module


@pytest.mark.parametrize(
    "file", [file for file in FILES if blocks(file) and not servers(file)], ids=lambda file: file.stem
)
def test_python_blocks_run(file: Path, module: types.ModuleType) -> None:
    run_page(file, module)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "file", [file for file in FILES if blocks(file) and servers(file)], ids=lambda file: file.stem
)
def test_python_blocks_run_on_servers(file: Path, module: types.ModuleType) -> None:
    run_page(file, module)


def run_page(file: Path, module: types.ModuleType) -> None:
    with asyncio.Runner() as runner:
        for line, source, runs in blocks(file):
            # The empty lines give tracebacks the line numbers of the file.
            run("\n" * line + source, file, module, runner if runs else None)


def run(source: str, file: Path, module: types.ModuleType, runner: asyncio.Runner | None) -> None:
    code = compile(source, str(file), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if runner is None:
        return
    outcome = eval(code, module.__dict__)
    if inspect.iscoroutine(outcome):
        runner.run(outcome)
