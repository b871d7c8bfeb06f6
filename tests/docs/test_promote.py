"""docs/promote.md works as it is written, for the shop of the tutorial as it is after step 7."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.tutorial import PATIENCE, PROMOTED, plain, promote


@pytest.mark.usefixtures("deployment")
@pytest.mark.timeout(8 * PATIENCE)
def test_the_shop_of_the_tutorial_is_promoted(tmp_path: Path, postgres_url: str) -> None:
    """Its orders, its failures and its schedule go on in PostgreSQL. Make the page anew with
    `python -m tests.docs.tutorial promote`."""
    written = PROMOTED.read_text()
    assert plain(promote(written, tmp_path, postgres_url)).split() == plain(written).split()
