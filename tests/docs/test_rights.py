"""The rights that docs/command-line.md grants to a role that only looks are enough, and no more."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.backends.postgres_store import connected
from tests.cli.calling import call
from treadle import Retry, Treadle, WorkFailed, work

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
LOOKING = (
    "status",
    "list",
    "show fails-1",
    "why fails-1",
    "dead",
    "limits",
    "schedules",
    "doctor",
)


@work(name="fails")
async def fails() -> None:
    raise ValueError("no")


@pytest.fixture
def looker_url(prepared_url: str) -> Iterator[str]:
    """The store as the role of the page sees it."""
    (grants,) = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    role = f"looker_{uuid.uuid4().hex[:12]}"

    async def execute(sql: str) -> None:
        async with connected(prepared_url) as admin:
            await admin.execute(sql)

    asyncio.run(execute(grants.replace("looker", role)))
    yield urlunsplit(urlsplit(prepared_url)._replace(netloc=f"{role}@"))
    asyncio.run(execute(f"drop owned by {role}; drop role {role}"))


def test_a_role_that_may_only_read_can_export(prepared_url: str, looker_url: str, tmp_path: Path) -> None:
    """With the sequences, as SECURITY.md says. It can promote nothing: that gives the schema another name."""

    async def grant() -> None:
        async with connected(prepared_url) as owner:
            role = urlsplit(looker_url).netloc.removesuffix("@")
            await owner.execute(f"grant select on all sequences in schema treadle to {role}")

    asyncio.run(grant())
    done = call("export", str(tmp_path / "shop.records"), "--url", looker_url)
    assert done.code == 0, done.err
    refused = call("promote", looker_url, f"sqlite:///{tmp_path / 'new.db'}")
    assert (refused.code, "permission denied" in refused.err) == (1, True), refused.err


def test_a_role_that_may_only_read_can_look(prepared_url: str, looker_url: str) -> None:
    async def fill() -> None:
        async with Treadle(prepared_url, work=[fails], log_failures=False) as app:
            with pytest.raises(WorkFailed):
                await app.enqueue(fails(), id="fails-1", retry=Retry(attempts=1)).result()

    asyncio.run(fill())
    for command in LOOKING:
        seen = call(*command.split(), "--url", looker_url)
        assert seen.code in (0, 4), (command, seen)
    assert call("requeue", "fails-1", "--url", looker_url).code not in (0, 4)
    assert '"status":"dead"' in call("show", "fails-1", "--url", looker_url, "--json").out
