"""The Lua files of the Redis backend: nothing in them is left over."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from treadle.backends import redis
from treadle.backends.redis.scripts import _in_order

HOME = Path(redis.__file__).parent
LUA = HOME / "lua"
SCRIPTS = sorted(path.stem for path in LUA.glob("*.lua"))


@cache
def code(path: Path) -> str:
    """Without comments."""
    return re.sub(r"--.*", "", path.read_text())


@cache
def mentioned(path: Path) -> frozenset[str]:
    """All names in a file, alone and with the table that they belong to."""
    text = code(path)
    return frozenset(re.findall(r"\b\w+", text)) | frozenset(re.findall(r"\b\w+\.\w+", text))


@cache
def named(path: Path) -> frozenset[str]:
    """What a module gives to others."""
    text = code(path)
    found = {*re.findall(r"^local function (\w+)", text, re.MULTILINE)}
    for names in re.findall(r"^local (\w+(?:, \w+)*)", text, re.MULTILINE):
        found |= {*names.split(", ")}
    return frozenset(found - {"function"}) | frozenset(
        re.findall(r"^ *function (\w+\.\w+)", text, re.MULTILINE)
    )


def test_every_script_is_run() -> None:
    python = "\n".join(path.read_text() for path in HOME.glob("*.py"))
    assert [name for name in SCRIPTS if f'RedisScript("{name}")' not in python] == []


def test_every_function_is_called() -> None:
    files = [*LUA.rglob("*.lua")]
    counts = Counter(name for path in files for name in re.findall(r"\b[A-Z]\w*\.\w+", code(path)))
    functions = [name for path in files for name in re.findall(r"function (\w+\.\w+)\(", code(path))]
    assert [name for name in functions if name[0].isupper() and counts[name] < 2] == []


def test_every_local_name_is_used() -> None:
    """Those of a module by itself or by others, those within a function by the file."""
    files = [*LUA.rglob("*.lua")]
    counts = {path: Counter(re.findall(r"\b\w+", code(path))) for path in files}
    every = sum(counts.values(), Counter[str]())
    unused: list[str] = []
    for path in files:
        found = re.findall(r"^( *)local (?:function )?(\w+(?:, \w+)*)", code(path), re.MULTILINE)
        for indent, names in found:
            times = counts[path] if indent else every
            unused += [
                f"{path.stem}: {name}" for name in names.split(", ") if name != "_" and times[name] < 2
            ]
    assert unused == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_carries_no_module_that_it_does_not_need(script: str) -> None:
    """Each module costs time in every call."""
    path = LUA / f"{script}.lua"
    modules = [LUA / "lib" / f"{name}.lua" for name in _in_order(path.read_text())]
    for module in modules:
        others = [each for each in (*modules, path) if each != module]
        assert any(named(module) & mentioned(other) for other in others), module.stem
