"""What the model machine found: a backend that answered otherwise than the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Beat, Demand, Filter, Item, Lease, Settlement, Submission


@pytest.fixture
async def backend(store: Callable[[], Backend]) -> AsyncIterator[Backend]:
    made = store()
    await made.open()
    await made.beat(Beat(worker="w", lease=60.0))
    yield made
    await made.close()


@pytest.fixture
def _not_yet_on_postgres(request: pytest.FixtureRequest) -> None:
    if "postgres" in request.node.name:
        request.applymarker(pytest.mark.xfail(strict=True, reason="PostgreSQL answers otherwise"))


async def submitted(backend: Backend, id: str, **fields: Any) -> None:
    await backend.submit([Submission((Item(id=id, type="work", input=b"", **fields),))])


async def claimed(backend: Backend) -> Lease:
    (lease,) = (await backend.claim(Demand(worker="w", limit=10))).leases
    return lease


async def abort(backend: Backend, lease: Lease) -> None:
    await backend.settle([Settlement(lease=lease, kind="dead", reason="aborted")])


@pytest.mark.usefixtures("_not_yet_on_postgres")
async def test_a_reason_of_statuses_that_have_none(backend: Backend) -> None:
    """Only what is dead has a reason: nothing is asked for."""
    await submitted(backend, "a")
    await abort(backend, await claimed(backend))
    assert (await backend.list(Filter(reason="aborted"))).items
    for status in ("success", "cancelled", "ready"):
        page = await backend.list(Filter(status=(status,), reason="aborted"))
        assert [item.id for item in page.items] == []


@pytest.mark.usefixtures("_not_yet_on_postgres")
async def test_what_is_doomed_and_given_back_is_due_as_before(backend: Backend) -> None:
    """It is not to be run, so there is nothing to be due: its handler for the end is called at once."""
    await submitted(backend, "a")
    await submitted(backend, "b", after=("a",), need=1)
    await abort(backend, await claimed(backend))
    (before,) = await backend.get(["b"])
    lease = await claimed(backend)
    assert lease.verdict == "unsatisfiable"
    await backend.settle([Settlement(lease=lease, kind="release", delay=50.0)])
    (after,) = await backend.get(["b"])
    assert before is not None
    assert after is not None
    assert after.due_at == before.due_at
    assert (await claimed(backend)).id == "b"
