"""The house rules find what breaks them. `make check` runs them on the source itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import house


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package in place of treadle's own source."""
    root = tmp_path / "src" / "treadle"
    root.mkdir(parents=True)
    monkeypatch.setattr(house, "SOURCE", root)
    return root


def test_three_files_that_import_each_other_are_a_circle(source: Path) -> None:
    (source / "a.py").write_text("from .b import B\n")
    (source / "b.py").write_text("import treadle.c\n")
    (source / "c.py").write_text("def later() -> None:\n    from treadle import a\n")
    assert list(house.circles()) == ["3 files import each other: treadle.a, treadle.b, treadle.c"]


def test_two_files_that_import_each_other_are_allowed(source: Path) -> None:
    (source / "a.py").write_text("from . import b\n")
    (source / "b.py").write_text("from . import a\n")
    assert list(house.circles()) == []


def test_a_class_name_is_used_once(source: Path) -> None:
    (source / "a.py").write_text("class Plan: ...\nclass LeaseLost: ...\n")
    (source / "b.py").write_text("class Plan: ...\nclass LeaseLost: ...\n")
    assert list(house.duplicate_classes()) == ["class Plan is defined 2 times: a.py:1, b.py:1"]


def test_large_classes_are_found(source: Path) -> None:
    methods = "".join(f"    def m{n}(self): ...\n" for n in range(21))
    (source / "a.py").write_text(f"class Large:\n{methods}")
    assert [each.partition(" has")[0] for each in house.sizes()] == ["a.py: class Large"]


@pytest.mark.parametrize(
    "code",
    ["class PermitGate: ...", "def open_gate(): ...", "self.gate = 1", "gate: int = 1", "def f(gate): ..."],
)
def test_a_replaced_word_is_found_in_identifiers(source: Path, code: str) -> None:
    (source / "a.py").write_text(code + "\n")
    (problem,) = house.vocabulary()
    assert problem.endswith("says 'gate': the glossary says 'dependency'")


def test_a_replaced_word_is_found_in_file_names_and_sql(source: Path) -> None:
    (source / "orphans.py").write_text("")
    (source / "list.sql").write_text("select id from job -- a job\n")
    assert [each.partition(" says")[0] for each in house.vocabulary()] == [
        "list.sql:1: job",
        "the file name orphans.py",
    ]


def test_a_word_is_not_found_inside_another(source: Path) -> None:
    (source / "a.py").write_text("class Delegate:\n    heartbeat = propagated = jobless = 1\n")
    assert list(house.vocabulary()) == []


def test_a_sentence_without_a_subject_is_found(source: Path) -> None:
    (source / "a.py").write_text('"""Told whoever waits."""\n')
    assert list(house.prose()) == ["a.py:1: 'whoever' hides who, or how many"]


def test_every_replaced_word_is_in_the_glossary() -> None:
    glossary = (house.PROJECT / "docs" / "glossary.md").read_text().lower()
    assert [word for word in house.REPLACED if word not in glossary] == []
