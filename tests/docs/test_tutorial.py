"""docs/tutorial.md works as it is written: its files, its commands, and what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.tutorial import PAGE, PATIENCE, plain, play, shown_by_workers


@pytest.mark.timeout(8 * PATIENCE)
def test_the_tutorial_works_as_it_is_written(tmp_path: Path, postgres_url: str) -> None:
    """Make it anew with `python -m tests.docs.tutorial`."""
    written = PAGE.read_text()
    played = play(written, tmp_path, postgres_url)
    assert plain(played.page).split() == plain(written).split()
    printed = plain(played.worker_output)
    assert [shown for shown in shown_by_workers(written) if plain(shown) not in printed] == []
