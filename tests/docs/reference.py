"""The pages of the reference. Each names objects, and mkdocstrings shows their signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from tests.docs.docstrings import as_markdown

FIRST_SCREEN = """\
The names that most programs need. The rest is in submodules. [Options](../options.md) has all options on one
page.

```python
from treadle import Treadle, work


@work
async def add(a: int, b: int) -> int:
    return a + b


async with Treadle("sqlite:///work.db", work=[add]) as app:
    assert await app.enqueue(add(1, 2)).result() == 3
```
"""

PAGES: dict[str, tuple[str, ...]] = {
    "reference/treadle.md": ("treadle",),
    "reference/backend.md": ("treadle.backend",),
    "reference/contrib.md": (
        "treadle.contrib.celery",
        "treadle.contrib.django",
        "treadle.contrib.fastapi",
        "treadle.contrib.flask",
        "treadle.contrib.otel",
        "treadle.contrib.starlette",
    ),
    "reference/doers.md": ("treadle.doers",),
    "reference/errors.md": ("treadle.errors",),
    "reference/events.md": ("treadle.events",),
    "reference/item.md": ("treadle.item",),
    "reference/metrics.md": ("treadle.metrics", "treadle.store_metrics"),
    "reference/testing.md": ("treadle.testing",),
}
ELSEWHERE = {"Backend", "doers", "errors", "events", "metrics"}
"""What `treadle` exports, and another page shows."""
FIRST = ("Treadle", "work", "WorkType", "Work", "Context", "Result", "Handle", "Client", "Worker", "Retry")
"""The names that stand first on their page."""
WITH_FIELDS = {"treadle.events", "treadle.item"}
"""Modules of plain data: fields are shown, also those without a docstring."""
INHERITING = {"treadle.Treadle", "treadle.Client"}
"""Classes that are shown with what they inherit."""
WITHOUT_MEMBERS = {"treadle.MemoryBackend"}
"""Classes whose members another page describes."""


def reference_pages() -> dict[str, str]:
    """The text of each page, by its path."""
    return {path: "\n".join(_module(name) for name in names) for path, names in PAGES.items()}


def _module(name: str) -> str:
    module = importlib.import_module(name)
    about = FIRST_SCREEN if name == "treadle" else as_markdown(inspect.getdoc(module) or "")
    shown = "\n".join(_object(name, each) for each in public_names(module))
    return f"# {name}\n{about}\n\n{shown}"


def _object(module: str, name: str) -> str:
    """What tells mkdocstrings to show an object."""
    path = f"{module}.{name}"
    options = {
        "inherited_members: true": path in INHERITING,
        "members: false": path in WITHOUT_MEMBERS,
        "show_if_no_docstring: true": module in WITH_FIELDS,
        "show_labels: false": module in WITH_FIELDS,
    }
    given = [f"        {option}\n" for option, holds in options.items() if holds]
    package = importlib.import_module(module)
    if hasattr(package, "__path__") and find_spec(path) is not None:  # a module has the same name
        path = f"{getattr(package, name).__module__}.{name}"
    return "".join([f"::: {path}\n", *(["    options:\n"] if given else []), *given])


def public_names(module: ModuleType) -> list[str]:
    """What a module offers: its `__all__`, or the classes that it defines."""
    named: list[str] | None = getattr(module, "__all__", None)
    if named is not None:
        is_shown_elsewhere = ELSEWHERE if module.__name__ == "treadle" else set[str]()
        shown = [name for name in named if not name.startswith("__") and name not in is_shown_elsewhere]
        return sorted(shown, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    return [name for name, value in vars(module).items() if _is_defined_in(module, name, value)]


def _is_defined_in(module: ModuleType, name: str, value: Any) -> bool:
    return inspect.isclass(value) and not name.startswith("_") and value.__module__ == module.__name__
