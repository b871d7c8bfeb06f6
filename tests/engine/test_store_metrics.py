"""What the store says about itself, for Prometheus."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, failure, until
from treadle import Abort, Treadle, store_metrics, work
from treadle.doers import concurrency, rate_limited
from treadle.errors import InputError
from treadle.item import Count, Schedule
from treadle.item_facts import LimitUse, Overview, QueueAge
from treadle.metrics import MAX_QUEUES
from treadle.ports import PortsBackend, memory_pubsub, memory_queue, memory_store
from treadle.records import QueueBacklog
from treadle.store_metrics import MOST_LIMITS, StoreMetrics, StoreRows, rows_of_limits, rows_of_schedules
from treadle.testing import Faults

pytestmark = pytest.mark.every_store


@work(name="add")
async def add(n: int) -> int:
    if n < 0:
        raise Abort("negative")
    return n


@work(name="elsewhere")
async def elsewhere() -> None: ...


def values(text: str) -> dict[str, float]:
    """The values by the text that stands before them. prometheus-client can read it, no series is there
    twice, and no metric without a value."""
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(text))
    assert all(family.samples and family.documentation for family in families)
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, _, value in lines}
    assert len(found) == len(lines) == sum(len(family.samples) for family in families)
    return found


async def test_the_store_says_how_it_stands(make_app: MakeApp) -> None:
    barrier = Barrier()

    @work(name="slow", doer=concurrency(2))
    async def slow() -> None:
        await barrier.wait()

    @work(name="rated", doer=rate_limited(4, timedelta(hours=1)))
    async def rated() -> None: ...

    async with make_app(add, slow, rated) as app:
        nightly = app.schedule("nightly", cron="0 0 1 1 *", run=lambda: add(1))
        await failure(app.enqueue(add(-1), queue="mail").result(PATIENCE))
        await app.enqueue(rated()).result(PATIENCE)
        await app.enqueue(slow())
        await until(lambda: barrier.count == 1)
        await app.enqueue(add(2), delay=3600)
        await app.enqueue(elsewhere())
        await app.pause("mail")
        await app.enqueue(add(3), queue="mail")
        await nightly.resume()  # now it is stored
        found = values(await StoreMetrics(app).prometheus())
        expected = {
            "treadle_store_up": 1,
            'treadle_items{queue="mail",type="add",status="dead"}': 1,
            'treadle_items{queue="mail",type="add",status="ready"}': 1,
            'treadle_items{queue="default",type="add",status="scheduled"}': 1,
            'treadle_items{queue="default",type="slow",status="running"}': 1,
            'treadle_items{queue="default",type="elsewhere",status="ready"}': 1,
            'treadle_items_exact{queue="mail",status="dead"}': 1,
            'treadle_items_exact{queue="mail",status="ready"}': 1,
            'treadle_items_exact{queue="default",status="scheduled"}': 1,
            'treadle_items_exact{queue="default",status="running"}': 1,
            'treadle_items_exact{queue="default",status="ready"}': 1,
            'treadle_unserved_items{type="elsewhere"}': 1,
            "treadle_workers": 1,
            'treadle_queue_paused{queue="mail"}': 1,
            'treadle_queue_paused{queue="default"}': 0,
            'treadle_limit_used_ratio{limit="slow:slots:all"}': 0.5,
            'treadle_limit_used_ratio{limit="rated:token_bucket/3600:all"}': 0.25,
            'treadle_schedule_orphaned{schedule="nightly"}': 0,
            'treadle_schedule_failing{schedule="nightly"}': 0,
        }
        assert {name: found.pop(name) for name in expected} == pytest.approx(expected, abs=0.01)
        assert 0 <= found.pop('treadle_oldest_ready_seconds{queue="mail"}') < 60
        assert 0 <= found.pop('treadle_oldest_ready_seconds{queue="default"}') < 60
        assert 0 <= found.pop('treadle_backlog_seconds{queue="mail"}') < 60  # no samples: that of the oldest
        assert 0 <= found.pop('treadle_backlog_seconds{queue="default"}') < 60
        assert found.pop('treadle_schedule_next_timestamp_seconds{schedule="nightly"}') > time.time()
        assert found.pop("treadle_worker_last_beat_timestamp_seconds") == pytest.approx(time.time(), abs=60)
        assert found == {}
        await app.set_limit("slow", 1)
        await app.set_limit(type="rated", limit=4)
        ordered = values(await StoreMetrics(app).prometheus())
        assert ordered['treadle_limit_used_ratio{limit="slow:slots:all"}'] == 1
        barrier.go.set()


async def test_the_store_is_asked_once_for_many_readers(make_faulty: MakeApp, faults: Faults) -> None:
    app: Treadle = make_faulty(add)
    asked = faults.repeat("overview", times=None)
    store = StoreMetrics(app)
    texts = {await store.prometheus() for _ in range(3)}
    assert len(texts) == 1
    assert asked.hits == 1
    await app.close()


async def test_values_are_absent_if_the_store_does_not_answer(
    make_faulty: MakeApp, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Treadle = make_faulty(add)
    await app.enqueue(add(1))
    store = StoreMetrics(app)
    monkeypatch.setattr(store_metrics, "EVERY", 0.0)
    assert 'treadle_items{queue="default",type="add",status="ready"} 1' in await store.prometheus()
    faults.fail("limits")
    assert values(await store.prometheus()) == {"treadle_store_up": 0}
    monkeypatch.setattr(store_metrics, "TIMEOUT", 0.01)
    held = faults.hold("overview")
    assert values(await store.prometheus()) == {"treadle_store_up": 0}
    held.release()
    monkeypatch.setattr(store_metrics, "TIMEOUT", 30.0)
    assert values(await store.prometheus())["treadle_store_up"] == 1
    await app.close()


async def test_a_store_that_cannot_be_looked_at_shows_its_schedules_only() -> None:
    async with Treadle(PortsBackend(memory_queue(), memory_pubsub(), memory_store()), work=[add]) as app:
        assert values(await StoreMetrics(app).prometheus()) == {"treadle_store_up": 1}


async def test_a_client_of_one_tenant_is_refused(make_app: MakeApp) -> None:
    with pytest.raises(InputError, match="is bound to a tenant"):
        StoreMetrics(make_app(add).tenant("acme"))
    with pytest.raises(InputError, match="must be a Treadle app or a Client"):
        StoreMetrics("sqlite:///work.db")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- bounds


def test_queues_beyond_the_bound_are_shown_as_other() -> None:
    rows = StoreRows()
    first = Overview(
        now=100.0, counts=(Count("t", "q", "add", "ready", 3), Count("u", "q", "add", "ready", 4))
    )
    assert [row.value for row in rows.of_overview(first) if row.name == "treadle_items"] == [7]
    names = [f"queue{n}" for n in range(MAX_QUEUES)]
    many = Overview(
        now=100.0,
        counts=tuple(Count("t", name, "add", "ready", 1) for name in (*names, "q")),
        ages=tuple(QueueAge(name, 90.0 - n) for n, name in enumerate(names)),
    )
    found = {(row.name, row.labels): row.value for row in rows.of_overview(many)}
    assert found["treadle_items", ("q", "add", "ready")] == 1
    assert found["treadle_items", ("_other", "add", "ready")] == 1
    assert found["treadle_oldest_ready_seconds", ("_other",)] == 109.0


def test_the_backlog_of_a_queue_that_is_empty_again_is_zero() -> None:
    """At the rate of ends; by the oldest wait where there is no such rate."""
    rows = StoreRows()
    busy = QueueBacklog(queue="q", ready=600, ends=120.0, growth=0.0, arrivals=120.0, waited=True, oldest=9.0)
    fresh = QueueBacklog(queue="p", ready=600, ends=2.0, growth=0.0, arrivals=2.0, oldest=4.0)
    stuck = QueueBacklog(queue="s", ready=600, ends=0.0, growth=0.0, arrivals=0.0, waited=True, oldest=900.0)
    first = {row.labels: row.value for row in rows.of_backlogs([busy, fresh, stuck])}
    assert first == {("q",): 300.0, ("p",): 4.0, ("s",): 900.0}
    assert {row.labels: row.value for row in rows.of_backlogs([busy])} == {**first, ("p",): 0, ("s",): 0}


def test_an_estimate_is_exported_as_one() -> None:
    found = Overview(
        now=100.0,
        counts=(
            Count("t", "q", "add", "dead", 3),
            Count("t", "q", "add", "ready", 2_000_000, estimated=True),
            Count("t", "q", "mul", "ready", 1),
        ),
    )
    rows = {
        row.labels: row.value for row in StoreRows().of_overview(found) if row.name == "treadle_items_exact"
    }
    assert rows == {("q", "dead"): 1, ("q", "ready"): 0}


def test_limits_that_are_used_most_are_shown() -> None:
    rows = rows_of_limits(LimitUse(f"limit{n:03}:slots:all", "slots", n, 299) for n in range(300))
    assert len(rows) == MOST_LIMITS
    assert (rows[0].labels, rows[0].value) == (("limit299:slots:all",), 1.0)


def test_a_limit_without_permits_is_used_up() -> None:
    uses = [LimitUse("a", "fixed_window", 5, 5, 3.0), LimitUse("b", "token_bucket", 4.2, 5, 0.1)]
    rows = rows_of_limits([*uses, LimitUse("unknown", "slots", 1)])
    assert [row.value for row in rows] == [1.0, 1.0]


def test_ended_schedules_are_left_out_and_paused_ones_are_neither_orphaned_nor_failing() -> None:
    schedules = [
        Schedule(name="ended", next_at=None),
        Schedule(name="paused", next_at=7.0, paused=True),
        Schedule(name="orphan", next_at=8.0),
    ]
    rows = rows_of_schedules(schedules, lambda _: True, {"ended", "paused", "orphan"})
    assert {(row.name.removeprefix("treadle_schedule_"), *row.labels): row.value for row in rows} == {
        ("next_timestamp_seconds", "paused"): 7.0,
        ("next_timestamp_seconds", "orphan"): 8.0,
        ("orphaned", "paused"): 0,
        ("orphaned", "orphan"): 1,
        ("failing", "paused"): 0,
        ("failing", "orphan"): 1,
    }
