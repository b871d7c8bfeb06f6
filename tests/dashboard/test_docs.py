"""What the docs say about the dashboard holds: the actions of programs, and the script of others."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from treadle.dashboard.app import ACTION_ROUTES
from treadle.dashboard.site import FOLDER
from treadle.operate.changes import VERBS

PAGE = Path(__file__).parents[2] / "docs" / "dashboard-programs.md"


def test_every_action_is_in_the_table_with_what_it_needs() -> None:
    table = PAGE.read_text().partition("## What programs can change")[2]
    rows = re.findall(r"^\| `(/[^`]*)` \| (.*?) \|", table, re.MULTILINE)
    told = {path: set(re.findall(r"`(\w+)`", needs)) for path, needs in rows}
    assert told == {
        route.path: set(VERBS) if route.action is None else {route.action}
        for route in ACTION_ROUTES
        if route.method == "POST"
    }


def test_the_script_of_others_is_the_one_that_the_note_names() -> None:
    note = (FOLDER / "README.md").read_text()
    assert f"`{hashlib.sha256((FOLDER / 'idiomorph.js').read_bytes()).hexdigest()}`" in note
    assert (FOLDER / "idiomorph.LICENSE").is_file()
