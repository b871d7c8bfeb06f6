"""Tables of the names of objects, in docs, and how objects differ from them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

ROW = re.compile(r"^\| \*([\w ]+)\* \| (.*) \|$", re.MULTILINE)
NAME = re.compile(r"`(\w+)`(\?)?(?: \(\*([\w ]+)\*\))?")
Objects = dict[str, list[dict[str, Any]]]
"""Those that were met, by kind."""


class Kind(NamedTuple):
    """What an object holds. Each name with what kind of object it holds, or with ""."""

    always: dict[str, str]
    at_times: dict[str, str]
    own_at_times: frozenset[str]
    bases: tuple[str, ...]

    def get(self, name: str) -> str | None:
        return self.always.get(name, self.at_times.get(name))


def kinds_in(text: str) -> dict[str, Kind]:
    """The kinds of objects that a table, or several, describe."""
    kinds: dict[str, Kind] = {}
    rows = dict(ROW.findall(text))

    def read(name: str) -> Kind:
        if name not in kinds:
            text = re.sub(r"\((?!\*)[^)]*\)", "", rows[name].partition(": see")[0])
            bases = tuple(re.findall(r"the names of \*([\w ]+)\*", text))
            found = NAME.findall(text)
            always = {each: holds for each, mark, holds in found if not mark}
            at_times = {each: holds for each, mark, holds in found if mark}
            own = frozenset(at_times)
            for base in bases:
                always |= read(base).always
                at_times |= read(base).at_times
            kinds[name] = Kind(always, at_times, own, bases)
        return kinds[name]

    for name in rows:
        read(name)
    return kinds


def collect(kinds: dict[str, Kind], kind: str, value: Any, met: Objects) -> None:
    """Note an object, a list of them or nothing, and the objects inside."""
    for each in objects_in(value) if kind != "any" else []:
        met.setdefault(kind, []).append(each)
        for name, inner in each.items():
            if holds := kinds[kind].get(name):
                collect(kinds, holds, inner, met)


def objects_in(value: Any) -> list[dict[str, Any]]:
    values = cast("list[Any]", value if isinstance(value, list) else [value])
    return [each for each in values if isinstance(each, dict)]


def differences(met: Objects, kinds: dict[str, Kind]) -> dict[str, list[str]]:
    """How objects differ from their kinds, by kind."""
    wrong = {kind: sorted(set(_differences(objects, kinds[kind]))) for kind, objects in met.items()}
    return {kind: texts for kind, texts in wrong.items() if texts}


def _differences(objects: list[dict[str, Any]], kind: Kind) -> Iterator[str]:
    for each in objects:
        yield from (f"{name} is not printed" for name in kind.always if name not in each)
        for name, value in each.items():
            holds = kind.get(name)
            if holds is None:
                yield f"{name} is not on the page"
            if not holds and objects_in(value):
                yield f"what {name} holds is not on the page"
