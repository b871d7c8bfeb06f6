"""docs/command-reference.md is made from the commands, and it is current."""

from __future__ import annotations

from tests.docs.command_line import PAGE, names, page


def test_the_page_is_current() -> None:
    """Make it anew with `python -m tests.docs.command_line`."""
    assert PAGE.read_text() == page()


def test_the_page_has_every_command() -> None:
    written = PAGE.read_text()
    assert [name for name in names() if f"\n### treadle {name}\n" not in written] == []
