"""SQL lives in files named after the verb: several statements in each, every one under a `-- :name x`."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

_NAME = re.compile(r"^-- :name (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"\s*--[^\n]*")
_VALUES = "VALUES "


class Statements:
    """The statements of one file, by name."""

    def __init__(self, verb: str) -> None:
        parts = _NAME.split(_read(f"sql/{verb}.sql"))
        self._by_name = {name: _tidy(text) for name, text in zip(parts[1::2], parts[2::2], strict=True)}

    def __getitem__(self, name: str) -> str:
        return self._by_name[name]


@cache
def repeated(sql: str, count: int) -> str:
    """The statement for `count` rows at once: its `VALUES (?, ?)` repeated."""
    begin = sql.index(_VALUES) + len(_VALUES)
    end = _closing(sql, begin)
    return sql[:begin] + ", ".join([sql[begin:end]] * count) + sql[end:]


def _closing(sql: str, begin: int) -> int:
    """Behind the parenthesis that closes the one at `begin`."""
    depth = 0
    for place in range(begin, len(sql)):
        depth += {"(": 1, ")": -1}.get(sql[place], 0)
        if depth == 0:
            return place + 1
    raise ValueError(sql)


def _here() -> Traversable:
    return resources.files(__name__.rpartition(".")[0])


def _tidy(text: str) -> str:
    return _COMMENT.sub("", text).strip().rstrip(";")


def _read(path: str) -> str:
    return _here().joinpath(path).read_text(encoding="utf-8")


@cache
def migrations() -> tuple[str, ...]:
    """The scripts that build the schema, in order: number n brings it to version n."""
    folder = _here().joinpath("migrations")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(_read(f"migrations/{name}") for name in names)
