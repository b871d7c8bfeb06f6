"""Shorthand for the cases: build items and settlements, call verbs, read states."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from treadle.backend import Backend, placed
from treadle.item import (
    GROUP_MARK,
    AuditNote,
    Claim,
    Contribution,
    DeathReason,
    Demand,
    ErrorInfo,
    GroupState,
    Heartbeat,
    Item,
    ItemState,
    Lease,
    Order,
    Outcome,
    Rejected,
    Settled,
    Settlement,
    Submission,
    Submitted,
)

from .subject import Subject

T = TypeVar("T")

LEASE = 10_000_000.0
"""Longer than any case lasts, so that a worker dies only where a case wants it to."""

_numbers = itertools.count(1)


def near(seconds: float) -> Any:
    """Equal within 5 seconds: a store on real time moves on between two calls."""
    return pytest.approx(seconds, abs=5)


def only(found: Iterable[T]) -> T:
    """The one and only element."""
    elements = list(found)
    assert len(elements) == 1, elements
    return elements[0]


# ---------------------------------------------------------------------------------------------- submitting


def item(id: str | None = None, type: str = "work", *, input: bytes = b"input", **fields: Any) -> Item:
    return Item(id=id or f"item-{next(_numbers)}", type=type, input=input, **fields)


def items(count: int, **fields: Any) -> list[Item]:
    return [item(**fields) for _ in range(count)]


def dependent(*after: str, id: str | None = None, need: int | None = None, **fields: Any) -> Item:
    """An item that waits for the items `after`: for all of them, or for `need` of them."""
    return item(id, after=after, need=len(after) if need is None else need, **fields)


async def submit(backend: Backend, *new: Item) -> tuple[Submitted, ...]:
    """Store these items in one submission, which must be accepted."""
    answer = only(await backend.submit([Submission(new)]))
    assert not isinstance(answer, Rejected), answer
    assert len(answer) == len(new)
    return answer


async def submit_one(backend: Backend, new: Item) -> Submitted:
    return only(await submit(backend, new))


async def submit_each(backend: Backend, *new: Item) -> Sequence[tuple[Submitted, ...] | Rejected]:
    """Store each of these items as a submission of its own, in one call."""
    answers = await backend.submit([Submission((one,)) for one in new])
    assert len(answers) == len(new)
    return answers


async def submit_refused(backend: Backend, *new: Item) -> Rejected:
    """Submit these items in one submission, which must be refused."""
    answer = only(await backend.submit([Submission(new)]))
    assert isinstance(answer, Rejected), answer
    return answer


async def start(backend: Backend, *new: Item, worker: str = "w") -> list[Lease]:
    """Store these items leased to the worker, so that they run without a claim."""
    await beat(backend, worker)
    answers = await submit(backend, *(replace(one, lease_to=worker) for one in new))
    leases = [answer.lease for answer in answers if answer.lease is not None]
    assert len(leases) == len(new), answers
    return leases


async def start_one(backend: Backend, new: Item, worker: str = "w") -> Lease:
    return only(await start(backend, new, worker=worker))


# ------------------------------------------------------------------------------------------------ claiming


async def beat(
    backend: Backend, worker: str = "w", lease: float = LEASE, types: tuple[str, ...] | None = None
) -> None:
    await backend.beat(Heartbeat(worker=worker, lease=lease, types=types))


async def claim_answer(
    backend: Backend,
    limit: int = 100,
    worker: str = "w",
    *,
    types: Mapping[str, int] | None = None,
    lease: float = LEASE,
    **demand: Any,
) -> Claim:
    """Heartbeat, then claim. Return the whole answer."""
    await beat(backend, worker, lease, None if types is None else tuple(types))
    return await backend.claim(Demand(worker=worker, limit=limit, types=types, **demand))


async def claim(backend: Backend, limit: int = 100, worker: str = "w", **demand: Any) -> list[Lease]:
    """Heartbeat, then claim. Return the leases to run. No verdict may come with them."""
    leases = list((await claim_answer(backend, limit, worker, **demand)).leases)
    assert [lease.id for lease in leases if lease.verdict] == []
    return leases


async def claim_one(backend: Backend, worker: str = "w", **demand: Any) -> Lease:
    """Claim the only item there is to run."""
    return only(await claim(backend, worker=worker, **demand))


async def claim_ids(backend: Backend, limit: int = 100, worker: str = "w", **demand: Any) -> list[str]:
    return [lease.id for lease in await claim(backend, limit, worker, **demand)]


async def verdicts(backend: Backend, worker: str = "w", **demand: Any) -> dict[str, str]:
    """Claim doomed items only. Return the verdict of each by id."""
    claimed = await claim_answer(backend, 0, worker, **demand)
    return {lease.id: lease.verdict or "none" for lease in claimed.leases}


async def doomed_lease(backend: Backend, worker: str = "w", **demand: Any) -> Lease:
    """Claim the only doomed item."""
    lease = only((await claim_answer(backend, 0, worker, **demand)).leases)
    assert lease.verdict is not None
    return lease


# ------------------------------------------------------------------------------------------------ settling


async def pause(
    backend: Backend,
    queue: str | None = None,
    *,
    type: str | None = None,
    tenant: str | None = None,
    until: float | None = None,
    note: AuditNote | None = None,
) -> bool:
    order = Order(kind="pause", queue=queue, type=type, tenant=tenant, until=until)
    return await backend.order(order, note=note)


async def resume(
    backend: Backend,
    queue: str | None = None,
    *,
    type: str | None = None,
    tenant: str | None = None,
    note: AuditNote | None = None,
) -> bool:
    return await backend.withdraw(Order(kind="pause", queue=queue, type=type, tenant=tenant), note=note)


def succeed(
    lease: Lease, *children: Item, result: bytes | None = b"result", contribution: Contribution | None = None
) -> Settlement:
    return Settlement(
        lease=lease, kind="success", result=result, contribution=contribution, children=children
    )


def contribute(
    lease: Lease, value: bytes | None, *, final: bool = False, version: int | None = None
) -> Settlement:
    """A success that contributes to the value of the group. With `version` it is a fold."""
    return succeed(lease, contribution=Contribution(value, final, version))


async def begin(backend: Backend, leases: Sequence[Lease]) -> None:
    """Begin the attempts that have not begun, where the backend tells them apart."""
    if "begin" in backend.capabilities:
        assert await backend.begin(leases) == {}


def retry(
    lease: Lease, delay: float = 0.0, *, run_at: float | None = None, message: str = "no"
) -> Settlement:
    failure = ErrorInfo("Oops", message, "trace")
    return Settlement(lease=lease, kind="retry", delay=delay, run_at=run_at, failure=failure)


def defer(lease: Lease, delay: float = 0.0, *, run_at: float | None = None) -> Settlement:
    return Settlement(lease=lease, kind="defer", delay=delay, run_at=run_at)


def release(lease: Lease, delay: float = 0.0) -> Settlement:
    return Settlement(lease=lease, kind="release", delay=delay)


def die(lease: Lease, *children: Item, reason: DeathReason | None = None) -> Settlement:
    """A death by the verdict, or by a handler that gave up."""
    why = reason or lease.verdict or "aborted"
    return Settlement(
        lease=lease, kind="dead", reason=why, failure=ErrorInfo("Oops", "no", "trace"), children=children
    )


def cancel(lease: Lease) -> Settlement:
    return Settlement(lease=lease, kind="cancelled")


async def settle(backend: Backend, *settlements: Settlement) -> Settled:
    settled = await backend.settle(settlements)
    assert len(settled.outcomes) == len(settlements)
    return settled


async def settle_one(backend: Backend, settlement: Settlement) -> Outcome:
    return only((await settle(backend, settlement)).outcomes)


async def apply(backend: Backend, *settlements: Settlement) -> Settled:
    """Settle these. All must be applied, for the first time."""
    settled = await settle(backend, *settlements)
    assert {(outcome.verb, outcome.again) for outcome in settled.outcomes} <= {("applied", False)}, settled
    return settled


async def end(backend: Backend, *new: Item, how: Any = succeed) -> Settled:
    """Start these items and settle each with `how`."""
    return await apply(backend, *[how(lease) for lease in await start(backend, *new)])


# ------------------------------------------------------------------------------------------------- reading


async def state(backend: Backend, id: str, tenant: str | None = None) -> ItemState:
    found = only(await backend.get([id], tenant=tenant))
    assert found is not None, f"{id} does not exist"
    return found


async def status(backend: Backend, id: str, tenant: str | None = None) -> str:
    return (await state(backend, id, tenant)).status


async def statuses(backend: Backend, *ids: str, tenant: str | None = None) -> list[str | None]:
    found = await backend.get(ids, tenant=tenant)
    assert len(found) == len(ids)
    return [None if one is None else one.status for one in found]


async def exists(backend: Backend, id: str, tenant: str | None = None) -> bool:
    return only(await backend.get([id], tenant=tenant)) is not None


async def group(backend: Backend, id: str, tenant: str | None = None) -> GroupState:
    found = only(await backend.group([id], tenant=tenant))
    assert found is not None, f"group {id} does not exist"
    return found


def by_id(leases: Iterable[Lease]) -> dict[str, Lease]:
    return {lease.id: lease for lease in leases}


async def connections(subject: Subject, count: int) -> list[Backend]:
    """That many independent connections to the store."""
    others = await asyncio.gather(*(subject.another() for _ in range(count - 1)))
    return [subject.backend, *others]


def tells_in_parts(backend: Backend) -> bool:
    """Whether several stores are behind it, in a wrapper or not: each tells what it knows when it can."""
    return placed(getattr(backend, "inner", backend)) is not None


def whole(id: str) -> str:
    """The name of a group in `after`."""
    return GROUP_MARK + id


async def start_awaited(backend: Backend) -> None:
    """Open the group `root`, with the members `a` and `b`. Two items wait for it: `strict` for its success,
    `any` for any end."""
    root = await start_one(backend, item("root"))
    await submit(
        backend,
        dependent(whole("root"), id="strict"),
        dependent(whole("root"), id="any", counting="done"),
    )
    await apply(backend, succeed(root, item("a"), item("b")))
