"""The docs site: its navigation has every page, and no link is dead. `make docs` makes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.links import anchors, dead_links, links, replace_links
from tests.docs.reference import PAGES
from tests.docs.site import DOCS, PROJECT, Stage, pages
from tests.failpoints.test_failpoints import STEPS
from treadle import errors
from treadle.errors import TreadleError

WRITTEN = [
    *sorted(DOCS.rglob("*.md")),
    *(PROJECT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]


def test_the_navigation_has_every_page_once() -> None:
    named = [page.path for page in pages()]
    written = {file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md")}
    made = {*PAGES, *(f"project/{name}.md" for name in ("changelog", "contributing", "security"))}
    assert sorted(named) == sorted(written | made)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_no_link_is_dead(page: Path) -> None:
    assert list(dead_links(page)) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A title\n[fine](#a-title) [gone](gone.md) [no](#no)\n`[code](x.md)`\n```\n[code](y.md)\n```\n"
    )
    assert list(dead_links(page)) == ["page.md:2: there is no gone.md", "page.md:2: page.md has no #no"]
    assert anchors(page) == {"a-title"}
    assert [link.path for link in links(page.read_text())] == ["", "gone.md", ""]
    assert replace_links("`[a](b)` [a](b#c) [d](https://e)", str.upper) == "`[a](b)` [a](B#C) [d](https://e)"


def test_the_source_of_the_site_has_no_dead_links(tmp_path: Path) -> None:
    """Files outside of docs/ have pages there, so that links to them lead somewhere."""
    Stage(tmp_path).write()
    assert [wrong for page in sorted(tmp_path.rglob("*.md")) for wrong in dead_links(page)] == []
    index = (tmp_path / "llms.txt").read_text()
    assert [page.title for page in pages() if f"[{page.title}]" not in index] == []
    whole = (tmp_path / "llms-full.txt").read_text()
    assert whole.count("# Tutorial: a shop in ten steps\n") == 1
    assert not list(tmp_path.rglob(".*"))  # the site would leave them out


def test_every_error_says_what_to_do() -> None:
    text = (DOCS / "errors.md").read_text()
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, TreadleError)
    }
    assert set(sections) == raised
    assert [name for name, section in sections.items() if "**What to do:** " not in section] == []


def test_the_tables_of_faults_say_what_is_tested() -> None:
    """The number of attempts after a fault at each step, as in tests/failpoints."""
    text = (DOCS / "how-it-fails.md").read_text()
    tables = re.findall(r"<!-- failpoint: ([\w, ]+) -->\n((?:\|.*\n)+)", text)
    shown = {
        step: [int(row.split("|")[-2]) for row in table.splitlines()[2:]]
        for steps, table in tables
        for step in steps.split(", ")
    }
    tested = {step: [count for count in counts if count is not None] for (_, step), counts in STEPS.items()}
    assert shown == tested
