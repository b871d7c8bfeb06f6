"""Traps: functions and operators in `public` that raise an error when they are called.

A role that may create in a schema of the search path can lay them. PostgreSQL prefers a function whose
parameters fit exactly to one of `pg_catalog` that needs a conversion or takes any array. A statement in which
every name is qualified, and a function that pins its search path, never call one.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import treadle.backends.postgres

HIJACKED = "hijacked"

_CALL = re.compile(r"\b([a-z_0-9]+)\(")
_SYNTAX = frozenset(
    (
        "all",
        "any",
        "array",
        "coalesce",
        "exists",
        "extract",
        "greatest",
        "in",
        "int",
        "least",
        "nullif",
        "row",
    )
)
_TYPES = ("smallint", "int", "bigint", "float8", "text", "bytea", "boolean")
_OPERATORS = {
    "boolean": ("=", "<>", "<", ">", "<=", ">="),
    "float8": ("+", "-", "*", "/"),
    "text": ("||",),
}
_RAISE = f"language plpgsql as 'begin raise exception ''{HIJACKED}, as %'', current_user; end'"


def lay_traps() -> str:
    """A script that lays a trap for every operator, and for every function that our SQL calls."""
    return ";\n".join([*_operators(), *_functions()])


def _operators() -> Iterator[str]:
    for answer, names in _OPERATORS.items():
        for one, two in itertools.product(_TYPES, repeat=2):
            yield f"create function public.trap_{answer}({one}, {two}) returns {answer} {_RAISE}"
            for name in names:
                function = f"public.trap_{answer}"
                yield f"create operator public.{name} (leftarg={one}, rightarg={two}, function={function})"


def _functions() -> Iterator[str]:
    """As the type of their answers does not matter for the choice, it is the same for all."""
    types = [*_TYPES, *(f"{type}[]" for type in _TYPES)]
    for name in sorted(_called()):
        yield f"create function public.{name}() returns text {_RAISE}"
        for one in types:
            yield f"create function public.{name}({one}) returns text {_RAISE}"
            for two in dict.fromkeys(("int", "bigint", "text", one)):
                yield f"create function public.{name}({one}, {two}) returns text {_RAISE}"


def _called() -> set[str]:
    """The functions of PostgreSQL that our SQL calls."""
    folder = Path(treadle.backends.postgres.__file__).parent
    text = "".join(file.read_text() for file in folder.rglob("*.sql"))
    own = set(re.findall(r"treadle\.(\w+)\(", text))
    return set(_CALL.findall(text)) - own - _SYNTAX
