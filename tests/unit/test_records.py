"""The table of long runs in tests/README.md."""

from pathlib import Path

import pytest

from tests.support import records
from tests.support.records import machine, record, table

EARLIER = """
| run | command | on | what it came to |
| --- | --- | --- | --- |
| kills | `make kills` | Python 3.9.1, 64 cores, mips | lost 0 |
| soak | `make soak` | Python 3.9.1, 64 cores, mips | grows nothing |
"""


@pytest.fixture(autouse=True)
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    record("soak", "make soak MINUTES=2", items=12345, grows="nothing")


def test_a_run_replaces_the_earlier_one_of_its_name() -> None:
    rows = table(EARLIER).splitlines()
    assert rows[-1] == f"| soak | `make soak MINUTES=2` | {machine()} | items 12,345; grows nothing |"
    assert len(rows) == 4


def test_a_run_that_was_not_made_again_keeps_its_machine() -> None:
    assert "| kills | `make kills` | Python 3.9.1, 64 cores, mips | lost 0 |" in table(EARLIER).splitlines()


def test_a_table_that_is_made_again_is_the_same() -> None:
    once = table(EARLIER)
    assert table(once) == once
