"""Scripts: the Lua files of this directory, put together with the modules that they use.

A script is `lua/<name>.lua`. A module is `lua/lib/<name>.lua`. The first lines of each may say

    -- uses: store rows        modules that must come before it
    -- flags: allow-oom        flags of the script
    -- reads                   it writes nothing
    -- beside stages           it runs although a stage is being unfolded

`K.item` in Lua is the key `{prefix}:item`. A script declares the keys that it and its modules name.

All other scripts refuse to run while the items of a large submission are being unfolded: see
`lua/lib/stages.lua`.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

from msgspec import Struct

_USES: Final = re.compile(r"^-- uses: (.+)$", re.MULTILINE)
_FLAGS: Final = re.compile(r"^-- flags: (.+)$", re.MULTILINE)
_READS: Final = re.compile(r"^-- reads$", re.MULTILINE)
_BESIDE_STAGES: Final = re.compile(r"^-- beside stages$", re.MULTILINE)
_KEY: Final = re.compile(r"\bK\.(\w+)")
_COMMENT: Final = re.compile(r"^\s*--.*\n", re.MULTILINE)
_GUARD: Final = """local STAGES = redis.call('EXISTS', K.stages) == 1
if STAGES and redis.call('HEXISTS', K.stages, 'unfolding') == 1 then
  return redis.error_reply('STAGED a large submission is being unfolded')
end
"""
_NO_GUARD: Final = "local STAGES = false\n"
_CLOCK: Final = "clock"
_CLOCK_FOR_TESTS: Final = "clock_for_tests"


class ScriptSource(Struct, frozen=True):
    """A script as the server gets it, and the keys that it declares, in order."""

    text: str
    sha: str
    keys: tuple[str, ...]


class RedisScript:
    """One verb, or a part of one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.writes = _READS.search(_read(name)) is None

    def __repr__(self) -> str:
        return f"RedisScript({self.name!r})"

    @property
    def source(self) -> ScriptSource:
        return _source(self.name, _CLOCK)

    @property
    def source_for_tests(self) -> ScriptSource:
        """The same on a clock that the key `shift` moves."""
        return _source(self.name, _CLOCK_FOR_TESTS)


@cache
def _source(name: str, clock: str) -> ScriptSource:
    text = _read(name)
    modules = _in_order(text)
    parts = [_read(f"lib/{clock if module == _CLOCK else module}") for module in modules]
    guard = _NO_GUARD if _BESIDE_STAGES.search(text) else _GUARD
    code = _COMMENT.sub("", "".join([guard, *parts, text]))
    keys = tuple(dict.fromkeys(_KEY.findall(code)))
    places = {key: number for number, key in enumerate(keys, 1)}
    code = _KEY.sub(lambda match: f"KEYS[{places[match[1]]}]", code)
    flags = _FLAGS.search(text)
    named = flags[1] if flags else "no-writes" if _READS.search(text) else ""
    first = f"#!lua flags={named}\n" if named else "#!lua\n"
    whole = f"{first}local KEYS, ARGV = KEYS, ARGV\n{code}"
    return ScriptSource(whole, sha1(whole.encode(), usedforsecurity=False).hexdigest(), keys)


@cache
def all_keys() -> tuple[str, ...]:
    """The names of all keys that scripts use."""
    folder = files("treadle.backends.redis").joinpath("lua")
    names = sorted(file.name.removesuffix(".lua") for file in folder.iterdir() if file.name.endswith(".lua"))
    return tuple(dict.fromkeys(key for name in names for key in _source(name, _CLOCK).keys))


def _in_order(text: str) -> list[str]:
    """The modules that a script uses, each after those that it uses itself."""
    found: dict[str, None] = {}

    def visit(text: str) -> None:
        for names in _USES.findall(text):
            for name in names.split():
                if name not in found:
                    visit(_read(f"lib/{name}"))
                    found[name] = None

    visit(text)
    return list(found)


@cache
def _read(name: str) -> str:
    return files("treadle.backends.redis").joinpath("lua", f"{name}.lua").read_text("utf-8")
