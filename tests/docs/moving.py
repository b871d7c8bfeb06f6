"""Copies the programs of examples/moving into the pages of docs/moving.

python -m tests.docs.moving
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "examples" / "moving"
PAGES = ROOT / "docs" / "moving"
COPY = re.compile(r"^(```python file=(\S+)\n)(.*?)^```$", re.MULTILINE | re.DOTALL)


def copies(page: Path) -> list[tuple[str, str]]:
    """The files that a page shows, and what it shows of them."""
    return [(file, text) for _, file, text in COPY.findall(page.read_text())]


def refresh(page: Path) -> None:
    """Copy the files into a page again."""
    text = COPY.sub(lambda found: f"{found[1]}{(ROOT / found[2]).read_text()}```", page.read_text())
    page.write_text(text)


if __name__ == "__main__":
    for each in sorted(PAGES.glob("*.md")):
        refresh(each)
