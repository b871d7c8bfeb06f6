"""What the model machine found: a backend that answered otherwise than the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tenancy.conftest import NewPlace, new_place, shared_clock
from treadle.backend import Backend
from treadle.item import Beat, Demand, Item, Lease, Rejected, Settlement, Submission

__all__ = ["new_place", "shared_clock"]


def item(id: str, tenant: str = "default", **fields: Any) -> Item:
    return Item(id=id, type="work", input=b"", tenant=tenant, **fields)


async def submitted(backend: Backend, *items: Item) -> None:
    (answer,) = await backend.submit([Submission(items)])
    assert not isinstance(answer, Rejected)


async def claimed(backend: Backend, worker: str) -> list[Lease]:
    await backend.beat(Beat(worker=worker, lease=30.0))
    return list((await backend.claim(Demand(worker=worker, limit=10))).leases)


async def test_an_id_that_is_waited_for_comes_with_its_namesake(new_place: NewPlace) -> None:
    """Of another tenant, in one submission."""
    async with new_place() as place:
        await submitted(place.backend, item("waits", after=("a",), need=1))
        await submitted(place.backend, item("a"), item("a", "acme"))
        assert {(lease.tenant, lease.id) for lease in await claimed(place.backend, "w")} == {
            ("default", "a"),
            ("acme", "a"),
        }


async def test_a_deadline_that_passed_while_its_worker_was_dead(new_place: NewPlace) -> None:
    """Whoever buries the worker does not run the item: its time is over."""
    async with new_place() as place:
        await submitted(place.backend, item("a", expires_in=1.0))
        assert len(await claimed(place.backend, "dead")) == 1
        await place.advance(60.0)
        (lease,) = await claimed(place.backend, "living")
        assert (lease.verdict, lease.attempt) == ("expired", 1)


@pytest.mark.parametrize("delay", [0.0, 0.25])
async def test_what_is_released_keeps_its_place(new_place: NewPlace, delay: float) -> None:
    """Also if it is due later."""
    async with new_place() as place:
        await submitted(place.backend, item("a"))
        (lease,) = await claimed(place.backend, "w")
        await place.backend.settle([Settlement(lease=lease, kind="release", delay=delay)])
        await place.advance(0.5)
        await submitted(place.backend, item("b"))
        assert [lease.id for lease in await claimed(place.backend, "w")] == ["a", "b"]
