"""Context: the fields of the lease, and the calls that go to the engine."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.works import make_context
from treadle.define.work import WorkTypeBase
from treadle.errors import InputError
from treadle.handler.context import Context, ContextServices, set_interrupt
from treadle.item import ItemState, Lease


class Services:
    """An engine that knows one item."""

    worker_id = "worker-1"
    resources = "pool"
    keep = 60.0

    def __init__(self) -> None:
        self.claims: list[tuple[str, str, float]] = []

    async def states(self, tenant: str, ids: Sequence[str]) -> list[ItemState | None]:
        known = ItemState(id="a", type="t", status="success", tenant=tenant)
        return [known if each == "a" else None for each in ids]

    async def results(
        self, tenant: str, ids: Sequence[str], *, return_exceptions: bool, of: WorkTypeBase | None = None
    ) -> list[Any]:
        return [(tenant, each, return_exceptions) for each in ids]

    async def result_of(self, tenant: str, ids: Sequence[str], of: WorkTypeBase) -> Any:
        return (tenant, ids, of.name)

    async def claim(self, lease: Lease, key: str, ttl: float) -> bool:
        self.claims.append((lease.tenant, key, ttl))
        return True

    def transaction(self, ctx: Context, session: Any = None) -> AbstractAsyncContextManager[Any]:
        @asynccontextmanager
        async def begin() -> AsyncIterator[str]:
            yield f"transaction of {ctx.id}"

        return begin()

    def extend(self, lease: Lease, seconds: float) -> float | None:
        return None if lease.deadline is None else lease.deadline + seconds


def lease(**facts: Any) -> Lease:
    known = {"id": "self", "tenant": "acme", "token": 1, "type": "t", "input": b"", "attempt": 2}
    return Lease(**{**known, "group_id": "root", **facts})


def test_the_context_shows_the_fields_of_the_lease() -> None:
    ctx = make_context(
        attempt=3, parent="p", after=("a", "b"), tenant="acme", workflow="w", workflow_type="wt", deadline=1e9
    )
    assert (ctx.id, ctx.type, ctx.group_id, ctx.attempt) == ("self", "test.flow", "root", 3)
    assert (ctx.parent, ctx.dependencies, ctx.tenant) == ("p", ("a", "b"), "acme")
    assert (ctx.workflow, ctx.workflow_type) == ("w", "wt")
    assert ctx.deadline == datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)
    assert make_context().deadline is None
    assert repr(ctx) == "<Context of test.flow self, attempt 3>"


def test_the_fields_of_a_context_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        make_context().attempt = 1  # type: ignore[misc]


def test_extra_and_interrupt_are_the_same_each_time() -> None:
    ctx = make_context()
    ctx.extra["user"] = 1
    assert ctx.extra == {"user": 1}
    set_interrupt(ctx.interrupt, "stopping")
    assert ctx.interrupt.reason == "stopping"


async def test_states_results_and_transaction_go_to_the_engine() -> None:
    services: ContextServices = Services()
    ctx = Context(lease(), services)
    assert (ctx.worker_id, ctx.resources) == ("worker-1", "pool")
    states = await ctx.states(["b", "a"])
    assert [state and state.tenant for state in states] == [None, "acme"]
    assert await ctx.results(["a"]) == [("acme", "a", False)]
    assert await ctx.results(["a"], return_exceptions=True) == [("acme", "a", True)]
    async with ctx.transaction() as tx:
        assert tx == "transaction of self"


async def test_a_claim_lasts_for_keep_by_default() -> None:
    services = Services()
    ctx = Context(lease(), services)
    assert await ctx.claim("once")
    assert await ctx.claim("twice", ttl=timedelta(minutes=2))
    assert services.claims == [("acme", "once", 60.0), ("acme", "twice", 120.0)]


async def test_extend_says_the_new_end_with_and_without_await() -> None:
    ctx = Context(lease(deadline=1e9), Services())
    end = datetime(2001, 9, 9, 1, 47, 40, tzinfo=UTC)
    assert await ctx.extend(timedelta(minutes=1)) == ctx.extend(60).until == end
    assert await Context(lease(), Services()).extend(60) is None
    assert repr(ctx.extend(60)) == "<Extension until 2001-09-09 01:47:40+00:00>"


@pytest.mark.parametrize(
    ("key", "ttl", "message"),
    [("", None, "key='' must not be empty"), ("k", -1, "ttl=-1 must not be negative")],
)
async def test_bad_arguments_of_claim_are_refused(key: str, ttl: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        await Context(lease(), Services()).claim(key, ttl)


def test_log_records_carry_the_attempt(caplog: pytest.LogCaptureFixture) -> None:
    ctx = Context(lease(workflow="w"), Services(), lambda: {"order": 42})
    with caplog.at_level(logging.INFO, "treadle"):
        ctx.log.info("charged %s", "x")
        ctx.log.info("again", extra={"order": 43})
    first, second = caplog.records
    assert (first.name, first.getMessage()) == ("treadle", "charged x")
    fields = [first.__dict__[name] for name in ("id", "type", "attempt", "tenant", "workflow", "order")]
    assert fields == ["self", "t", 2, "acme", "w", 42]
    assert second.__dict__["order"] == 43


def test_log_fields_are_computed_once_at_the_first_use() -> None:
    asked: list[int] = []
    ctx = Context(lease(), Services(), lambda: asked.append(1) or {})
    assert asked == []
    assert ctx.log is ctx.log
    assert asked == [1]
