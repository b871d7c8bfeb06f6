"""Statements: the SQL that this backend sends, from sql/statements/*.sql.

Each statement or fragment stands under a `-- :name x`. `{x}` includes a fragment, `:x` is a parameter. The
arguments of a statement come in the order in which its parameters first appear.

A statement runs with the search path of its connection, in which there may be a schema where others create
functions and operators. So every name is qualified: functions in the text, operators here. A qualified
operator has no precedence: an expression with two of them needs parentheses, unless it reads from left to
right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

FILES: Final[Traversable] = files("treadle.backends.postgres")

_NAME = re.compile(r"^-- :name (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)
_FRAGMENT = re.compile(r"\{(\w+)\}")
_PARAMETER = re.compile(r"(?<![\w:]):(\w+)")
_ASSIGNMENT_OR_OPERATOR = re.compile(r"(\bset \w+ = )|(?<=\s)(=|<>|<=?|>=?|\|\||[+-])(?=\s)")


def statement(file: str, name: str, **fragments: str) -> str:
    """The SQL of a statement, with parameters `$1`, `$2` and so on."""
    return numbered(text(file, name, **fragments))[0]


def statements(file: str) -> Callable[[str], str]:
    """The statements of one file, by name."""
    return cache(partial(statement, file))


def text(file: str, name: str, **fragments: str) -> str:
    """The text of a statement, with its fragments: those given, else those of the same file."""
    known = _texts(file)

    def include(match: re.Match[str]) -> str:
        given = fragments.get(match[1])
        return text(file, match[1], **fragments) if given is None else given

    return _FRAGMENT.sub(include, known[name])


@cache
def _texts(file: str) -> Mapping[str, str]:
    parts = _NAME.split((FILES / "sql" / "statements" / f"{file}.sql").read_text("utf-8"))
    return {
        name: _qualified(_COMMENT.sub("", body).strip())
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def _qualified(text: str) -> str:
    """The text with the schema of every operator."""
    return _ASSIGNMENT_OR_OPERATOR.sub(
        lambda match: match[1] or f"operator(pg_catalog.{match[2]})",
        text,
    )


def numbered(text: str) -> tuple[str, tuple[str, ...]]:
    """The SQL with numbered parameters, and the names of the parameters in the order of their numbers."""
    names: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"${names.setdefault(match[1], len(names) + 1)}"

    return _PARAMETER.sub(number, text), tuple(names)
