"""The recorded session of docs/bad-day.md is what the commands show."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.bad_day import JSON_PART, PAGE, README, page, readme
from tests.docs.terminal import PATIENCE, masked


@pytest.mark.usefixtures("processes", "deployment")
@pytest.mark.timeout(4 * PATIENCE)
def test_the_session_runs_as_it_is_written(tmp_path: Path) -> None:
    """Make it anew with `python -m tests.docs.bad_day`."""
    written = PAGE.read_text()
    if shutil.which("jq") is None:
        written = written.partition(f"\n{JSON_PART}")[0]
    assert masked(page(tmp_path)).split() == masked(written).split()


def test_the_readme_shows_a_part_of_it() -> None:
    """`python -m tests.docs.bad_day` writes that too."""
    written = README.read_text()
    assert "```console\n$ treadle status" in written
    assert written == readme(written, PAGE.read_text())
