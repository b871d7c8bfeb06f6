"""A package for a library that is not installed names the extra that has it."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("package", "missing", "message"),
    [
        ("django", ["django"], r"needs Django: pip install 'treadle\[django\]'"),
        ("django", ["django.tasks", "django_tasks"], "needs Django 6, or .* pip install django-tasks"),
        ("fastapi", ["fastapi"], r"needs fastapi: pip install fastapi 'treadle\[web\]'"),
        ("flask", ["flask"], r"needs flask: pip install 'treadle\[flask\]'"),
        ("otel", ["opentelemetry"], r"needs opentelemetry-api: pip install 'treadle\[otel\]'"),
        ("starlette", ["starlette"], r"needs starlette: pip install 'treadle\[web\]'"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    package: str, missing: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"treadle.contrib.{package}", raising=False)
    with pytest.raises(ImportError, match=message):
        importlib.import_module(f"treadle.contrib.{package}")
