"""CONTRIBUTING names every room in its layer, and each room says what it is for."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from .house import PROJECT, SOURCE
from .size import top_level


def rooms() -> set[str]:
    """The directories of the top level, and the modules beside them."""
    return {path.parent.name for path in SOURCE.glob("*/__init__.py")} | set(top_level())


def layers_of_contributing() -> list[set[str]]:
    """From the bottom up."""
    text = (PROJECT / "CONTRIBUTING.md").read_text()
    table = text.partition("| layer |")[2].partition("\n\n")[0]
    columns = [line.split("|")[2] for line in table.splitlines()[2:]]
    return [{name.rstrip("/") for name in re.findall(r"`([\w/]+)`", column)} for column in columns]


def layers_of_the_import_rules() -> list[set[str]]:
    """From the bottom up."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = settings["contracts"][0]["layers"]
    return [set(re.findall(r"\w+", layer)) - {"__main__"} for layer in reversed(layers)]


def test_the_table_of_layers_has_every_room() -> None:
    assert set().union(*layers_of_contributing()) == rooms()


def test_the_table_of_layers_says_what_the_import_rules_say() -> None:
    assert layers_of_contributing() == layers_of_the_import_rules()


def said_by(room: Path) -> str:
    return ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""


def test_every_room_says_what_it_is_for() -> None:
    rooms = [path.parent for path in sorted(SOURCE.glob("*/__init__.py"))]
    assert [room.name for room in rooms if len(said_by(room).split()) < 10] == []


def test_few_modules_lie_beside_the_rooms() -> None:
    assert len(top_level()) <= 25


UNLISTED = {"cli", "contrib", "testing", "migrations", "views", "actions", "management", "commands"}
"""Packages in which a module is named after a command, a page or a library: a list would repeat the names."""


def test_every_room_names_its_modules() -> None:
    """A reader finds a module by the list of its room, or by the list of the room around that."""
    missing: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).parts
        if len(parts) == 1 or path.name == "__init__.py" or UNLISTED & set(parts):
            continue
        text = said_by(path.parent) + (said_by(path.parent.parent) if len(parts) > 2 else "")
        if not re.search(rf"\b{path.stem}\b", text):
            missing.append("/".join(parts))
    assert missing == []
