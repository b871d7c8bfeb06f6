"""House rules that no linter knows. `make check` runs them; docs/glossary.md explains the words.

1. No import circle of more than two files. Imports for type checkers count.
2. No two classes with one name, except those listed here with a reason.
3. The words that the glossary replaced appear in no file name and in no identifier.
4. No class over 20 methods, except the storage contract.
5. Comments and docstrings name who does what: no whoever, nobody, somebody.
6. Commit subjects have at most 72 characters.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SOURCE = PROJECT / "src" / "treadle"

MAX_METHODS = 20
LARGE_CLASSES: dict[str, str] = {
    "Backend": "the storage contract",
    "MemoryBackend": "implements the storage contract",
    "SqliteBackend": "implements the storage contract",
    "PostgresBackend": "implements the storage contract",
    "ManyStores": "implements the storage contract",
    "PortsBackend": "implements the storage contract",
    "WrappedBackend": "implements the storage contract",
}

SHARED_NAMES: dict[str, str] = {
    "Item": "the model of Django names permissions and pages of the admin after the item that it shows",
    "Schedule": "SPEC names the value of users so; the store has the same schedule, with its state",
    "Migration": "Django finds the migrations of a package by this name",
    "LeaseLost": "SPEC names the event so; the error tells of the same fact",
}

REPLACED: dict[str, str] = {
    "minted": "Work",
    "crew": "runtime",
    "duty": "worker settings",
    "employ": "runtime",
    "employee": "runtime",
    "desk": "held, settle, after_commit",
    "heart": "heartbeat",
    "pulse": "heartbeat",
    "pacemaker": "heartbeat",
    "following": "effects",
    "consequences": "effects",
    "afterwards": "effects",
    "told": "effects",
    "grant": "permit",
    "grants": "permits",
    "gauge": "limit state",
    "gauges": "limit states",
    "meter": "limit state",
    "gate": "dependency",
    "gates": "dependencies",
    "gated": "limited",
    "picking": "fairness",
    "turns": "fairness",
    "rotation": "fairness",
    "fading": "retention",
    "strays": "parked",
    "stray": "parked",
    "stranger": "parked",
    "foreign": "parked",
    "sentence": "verdict",
    "alarm": "timers",
    "bell": "timer",
    "bury": "remove_worker",
    "orphans": "unknown_leases",
    "papers": "records",
    "paper": "record",
    "job": "item",
    "jobs": "items",
}
"""A word that is gone, and the glossary's word for it."""

ALLOWED: dict[str, set[str]] = {
    "backends/postgres/sql/statements/moving.sql": {"grant"},  # of SQL
    "backends/postgres/sql/functions/match_keys.sql": {"following"},  # of a window frame
    "backends/sqlite/sql/connection.sql": {"foreign"},  # pragma foreign_keys
    "contrib/otel/__init__.py": {"meter"},  # of OpenTelemetry
    "contrib/otel/instruments.py": {"meter"},
}
"""Words that a file may use all the same, by path below src/treadle."""

VAGUE = re.compile(
    r"\b(whoever|whatever|whomever|nobody|somebody|anybody|such a one|so many)\b",
    re.IGNORECASE,
)
"""Words that hide the subject of a sentence, or its number."""

FIRST_JUDGED = "42c80492"
"""Commit subjects are judged after this one, which is the last that is too long."""
MAX_SUBJECT = 72


def modules() -> dict[str, Path]:
    """Every module of treadle, by its dotted name."""
    found: dict[str, Path] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


# ---------------------------------------------------------------------------------------- import circles


def imports() -> dict[str, set[str]]:
    """Which modules each module imports, functions and type checking blocks included."""
    known = modules()
    graph: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text())):
            graph[name].update(target for target in _targets(node, package, known) if target != name)
    return graph


def _targets(node: ast.AST, package: str, known: dict[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")
        base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
        module = ".".join(part for part in (base, node.module) if part)
        for alias in node.names:
            inner = f"{module}.{alias.name}"
            yield from (target for target in (inner if inner in known else module,) if target in known)


def circles() -> Iterator[str]:
    for circle in _strong_components(imports()):
        if len(circle) > 2:
            yield f"{len(circle)} files import each other: {', '.join(sorted(circle))}"


def _strong_components(graph: dict[str, set[str]]) -> list[set[str]]:
    """Tarjan's algorithm. The graph has some hundred nodes: recursion is fine."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(set(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return found


# ---------------------------------------------------------------------------------------- classes, modules


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield path.relative_to(SOURCE), node


def duplicate_classes() -> Iterator[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for path, node in classes():
        places[node.name].append(f"{path}:{node.lineno}")
    for name, found in sorted(places.items()):
        if len(found) > 1 and name not in SHARED_NAMES:
            yield f"class {name} is defined {len(found)} times: {', '.join(found)}"


def sizes() -> Iterator[str]:
    for path, node in classes():
        methods = _methods(node)
        contract = node.name in LARGE_CLASSES or "testing/contract" in path.as_posix()
        if len(methods) > MAX_METHODS and not contract:
            yield f"{path}: class {node.name} has {len(methods)} methods, {MAX_METHODS} are allowed"


def _methods(node: ast.ClassDef) -> set[str]:
    """By name: the overloads of a method are one method."""
    return {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


# ---------------------------------------------------------------------------------------- the vocabulary


def vocabulary() -> Iterator[str]:
    for path in sorted([*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql")]):
        short = path.relative_to(SOURCE)
        allowed = ALLOWED.get(short.as_posix(), set())
        for word in sorted(set(_words(path.stem)) & (REPLACED.keys() - allowed)):
            yield f"the file name {short} says {word!r}: the glossary says {REPLACED[word]!r}"
        names = _sql_names(path) if path.suffix == ".sql" else _python_names(path)
        for name, line in sorted(names.items()):
            for word in sorted(set(_words(name)) & (REPLACED.keys() - allowed)):
                yield f"{short}:{line}: {name} says {word!r}: the glossary says {REPLACED[word]!r}"


def _words(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def _python_names(path: Path) -> dict[str, int]:
    names: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.setdefault(node.name, node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.setdefault(node.id, node.lineno)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.setdefault(node.attr, node.lineno)
        elif isinstance(node, ast.arg):
            names.setdefault(node.arg, node.lineno)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.setdefault(node.target.id, node.lineno)
    return names


def _sql_names(path: Path) -> dict[str, int]:
    names: dict[str, int] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for name in re.findall(r"[a-z_]+", line.partition("--")[0].lower()):
            names.setdefault(name, number)
    return names


# ---------------------------------------------------------------------------------------- prose


def prose() -> Iterator[str]:
    for path in sorted([*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql")]):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if found := VAGUE.search(line):
                yield f"{path.relative_to(SOURCE)}:{number}: {found.group(0)!r} hides who, or how many"


# ---------------------------------------------------------------------------------------- commits


def commit_subjects() -> Iterator[str]:
    """Judged where the history is there: a source archive and a shallow clone have none."""
    asked = ["git", "log", "--no-merges", "--format=%h %s", f"{FIRST_JUDGED}..HEAD"]
    ran = subprocess.run(asked, check=False, cwd=PROJECT, capture_output=True, text=True)
    for line in ran.stdout.splitlines() if ran.returncode == 0 else ():
        commit, _, subject = line.partition(" ")
        if len(subject) > MAX_SUBJECT:
            yield f"commit {commit}: its subject has {len(subject)} characters, {MAX_SUBJECT} are allowed"


CHECKS = (circles, duplicate_classes, sizes, vocabulary, prose, commit_subjects)


def main() -> None:
    problems = [problem for check in CHECKS for problem in check()]
    print(*problems, sep="\n", end="\n" if problems else "")
    if problems:
        sys.exit(f"{len(problems)} house rules are broken: see tests/architecture/house.py")
    print("House rules kept: circles, class names, sizes, vocabulary, prose, commit subjects.")


if __name__ == "__main__":
    main()
