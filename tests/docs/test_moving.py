"""The pages of docs/moving show the programs of examples/moving, as they are, or lead to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.links import links
from tests.docs.moving import PAGES, PROGRAMS, ROOT, copies
from tests.moving.pairs import PAIRS, Pair

NOT_SHOWN = {"django_tasks/shop/__init__.py", "django_tasks/shop/settings.py"}


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_shows_programs_as_they_are(page: Path) -> None:
    for file, text in copies(page):
        assert text == (ROOT / file).read_text(), f"{file} has changed: python -m tests.docs.moving"


def programs_of(page: Path) -> list[str]:
    """The programs that a page shows or leads to."""
    targets = [(page.parent / link.path).resolve() for link in links(page.read_text())]
    linked = [file.relative_to(ROOT).as_posix() for file in targets if file.is_relative_to(PROGRAMS)]
    return [file for file, _ in copies(page)] + [file for file in linked if file.endswith(".py")]


def test_every_program_is_on_one_page() -> None:
    shown = [file for page in PAGES.glob("*.md") for file in programs_of(page)]
    programs = {file.relative_to(PROGRAMS).as_posix() for file in PROGRAMS.rglob("*.py")}
    assert sorted(shown) == sorted(f"examples/moving/{each}" for each in programs - NOT_SHOWN)


def test_every_pair_is_tested() -> None:
    folders = {folder.name for folder in PROGRAMS.iterdir() if folder.is_dir() and folder.name[0] != "_"}
    assert {pair.name for pair in PAIRS} == folders


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_page_shows_what_both_programs_print(pair: Pair) -> None:
    (page,) = [
        page
        for page in PAGES.glob("*.md")
        if any(file.startswith(f"examples/moving/{pair.name}/") for file in programs_of(page))
    ]
    assert "```text\n" + "".join(f"{line}\n" for line in pair.lines) + "```" in page.read_text()


def test_the_index_names_every_page() -> None:
    index = (PAGES / "README.md").read_text()
    assert [page.name for page in PAGES.glob("*.md") if f"({page.name})" not in index] == ["README.md"]
