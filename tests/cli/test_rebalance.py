"""`treadle rebalance`: the moves of tenants that even out stores, and making them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.cli import looked_at
from tests.cli.calling import Called, call
from tests.cli.conftest import APP
from tests.cli.looked_at import TYPES, send
from treadle import InputError, MemoryBackend, Treadle, work
from treadle.backend import Backend
from treadle.backends.many import ManyStores
from treadle.backends.postgres import PostgresBackend
from treadle.backends.sqlite import SqliteBackend, watch
from treadle.backends.sqlite.tenant_moves import SqliteTenantMoves
from treadle.errors import StoreUnavailable
from treadle.testing import WrappedBackend

T = TypeVar("T")
SIZES = {"one": 6, "two": 4, "three": 3, "four": 2}
"""Items of each tenant. All are in the first store."""


class Link(WrappedBackend):
    """A store that can be down, and whose tenants cannot leave."""

    is_down = False

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if self.is_down and verb != "close":
            raise StoreUnavailable("connection refused")
        return await call()


def make(monkeypatch: pytest.MonkeyPatch, stores: dict[str, Backend]) -> Treadle:
    """The app of the commands, over these stores."""
    app = Treadle(ManyStores(stores), work=TYPES, poll_interval=0.05)
    monkeypatch.setattr(looked_at, "app", app)
    return app


@pytest.fixture
def paths(quick_directory: Path, tmp_path: Path) -> dict[str, Path]:
    return {name: quick_directory / f"{tmp_path.name}-{name}.db" for name in ("eu", "us")}


@pytest.fixture
def files(paths: dict[str, Path]) -> dict[str, Backend]:
    return {name: SqliteBackend(path) for name, path in paths.items()}


async def fill(app: Treadle) -> None:
    for tenant, size in SIZES.items():
        await app.place(tenant, "eu")
        for _ in range(size):
            await app.tenant(tenant).enqueue(send(1))


@pytest.fixture
def uneven(monkeypatch: pytest.MonkeyPatch, files: dict[str, Backend]) -> Treadle:
    app = make(monkeypatch, files)
    use(app, fill)
    return app


def use(app: Treadle, what: Callable[[Treadle], Awaitable[T]]) -> T:
    async def run() -> T:
        try:
            return await what(app)
        finally:
            await app.close()

    return asyncio.run(run())


def run(*arguments: str) -> Called:
    return call("rebalance", *arguments, "--app", APP)


def sizes(app: Treadle) -> dict[str, int]:
    """How many items each store has."""

    async def count(app: Treadle) -> dict[str, int]:
        return {
            store: sum(count.count for count in await app.counts(ended=True, store=store))
            for store in ("eu", "us")
        }

    return use(app, count)


def test_it_prints_the_moves_and_makes_none(uneven: Treadle) -> None:
    answer = run()
    assert answer.code == 0
    assert answer.out.splitlines() == [
        "TENANT  FROM  TO  OPEN  ITEMS",
        "one     eu    us     6      6",
        "four    eu    us     2      2",
        "",
        "STORE  OPEN    ITEMS   SHARE",
        "eu     15 → 7  15 → 7  100% → 47%",
        "us     0 → 8   0 → 8   0% → 53%",
        "nothing was moved: --yes moves them, one at a time",
    ]
    assert sizes(uneven) == {"eu": 15, "us": 0}


def test_it_moves_them_and_the_next_call_has_nothing_to_do(uneven: Treadle) -> None:
    answer = run("--yes", "--because", "eu is full", "--most", "1")
    assert answer.code == 0
    assert "one is in us now: 6 items, 0 of them running; writes waited " in answer.out
    assert answer.out.endswith("moved 1 of 1 tenant\n")
    assert sizes(uneven) == {"eu": 9, "us": 6}
    (entry,) = call("audit", "--app", APP, "--json").objects
    assert [entry[name] for name in ("verb", "tenant", "about", "reason")] == [
        "move",
        "one",
        "eu to us",
        "eu is full",
    ]
    again = run("--yes", "--tolerance", "0.5")
    assert again.out.endswith(
        "nothing to move: the stores are even enough, or no tenant would even them out\n"
    )
    assert again.code == 0


def test_programs_get_the_plan_and_each_move(uneven: Treadle) -> None:
    plan, moved = run("--json", "--yes", "--most", "1").objects
    assert plan["moves"] == [
        {"tenant": "one", "source": "eu", "to": "us", "open": 6, "items": 6, "estimated": False}
    ]
    assert [
        (store["name"], store["before"]["share"], store["after"]["items"]) for store in plan["stores"]
    ] == [
        ("eu", 1.0, 9),
        ("us", 0.0, 6),
    ]
    assert (moved["tenant"], moved["to"], moved["items"], moved["finished"]) == ("one", "us", 6, False)


def test_an_app_plans_and_moves(uneven: Treadle) -> None:
    for move in uneven.sync.plan_rebalance(most=1).moves:
        uneven.sync.move_tenant(move.tenant, move.to, source=move.source)
    assert uneven.sync.plan_rebalance(tolerance=0.5).moves == ()
    uneven.sync.close()
    assert sizes(uneven) == {"eu": 9, "us": 6}


def test_open_items_are_evened_out(uneven: Treadle) -> None:
    """With `--by open`, ended items do not count."""

    async def end_most(app: Treadle) -> None:
        found = await app.tenant("one").list(limit=10)
        await app.tenant("one").cancel([item.id for item in found.items[1:]])

    use(uneven, end_most)
    (plan,) = run("--by", "open", "--json", "--most", "1").objects
    (move,) = plan["moves"]
    assert (move["tenant"], move["open"], move["items"]) == ("two", 4, None)


def test_estimates_are_marked(uneven: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open items are counted for a bounded time: here, for that of eight items."""
    monkeypatch.setattr(watch, "COUNTING_SECONDS", 1e-9)
    for name, count in (("_PORTION", 8), ("_LONG_PORTION", 8), ("_MOST_LOOKED_UP", 1), ("_LEAST", 1)):
        monkeypatch.setattr(watch, name, count)
    answer = run("--by", "open")
    assert answer.out.startswith("TENANT  FROM  TO  OPEN\n")
    assert "eu     ≈" in answer.out
    (plan,) = run("--by", "open", "--json").objects
    assert [move["estimated"] for move in plan["moves"]] == [True] * len(plan["moves"])


def test_what_cannot_take_part_is_named(monkeypatch: pytest.MonkeyPatch, files: dict[str, Backend]) -> None:
    """A store whose tenants cannot leave while it is in use, and a tenant whose move has begun."""
    app = make(monkeypatch, {**files, "asia": Link(MemoryBackend())})

    async def begin(app: Treadle) -> None:
        await fill(app)
        await app.place("far", "asia")
        for _ in range(40):
            await app.tenant("far").enqueue(send(1))
        with pytest.raises(StoreUnavailable):
            await app.move_tenant("one", "us")

    async def fails(self: object, *_: object) -> bool:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteTenantMoves, "stage", fails)
        asyncio.run(begin(app))
    asyncio.run(app.close())
    answer = run()
    assert "asia is left out: tenants cannot leave or reach it while it is in use\n" in answer.out
    assert (
        "one stays: a move to us has begun: end it with treadle move --tenant one --to us --resume, or with "
        "--give-up\n"
    ) in answer.out
    assert "two     eu    us     4      4\n" in answer.out
    assert "\nasia   40      40\n" in answer.out
    assert call("move", "--tenant", "one", "--to", "us", "--resume", "--app", APP).code == 0
    assert " stays: " not in run().out


def test_a_store_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    links = {name: Link(MemoryBackend()) for name in ("eu", "us")}
    make(monkeypatch, {**links})
    answer = run()
    assert answer.code == 0
    assert answer.out.endswith("nothing to move: tenants need two stores that they can leave and reach\n")
    links["us"].is_down = True
    answer = run()
    assert answer.code == 3
    assert "the store 'us' does not answer, and a plan without it would be wrong: " in answer.err
    assert answer.err.endswith("connection refused\n")
    assert answer.out == ""


def test_what_it_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch, uneven: Treadle) -> None:
    assert run("--by", "size").code == 2
    assert run("--tenant", "one").code == 2
    with pytest.raises(InputError, match="most"):
        use(uneven, lambda app: app.plan_rebalance(most=0))
    with pytest.raises(InputError, match="tolerance"):
        use(uneven, lambda app: app.plan_rebalance(tolerance=2))
    stores = {name: MemoryBackend() for name in ("eu", "us")}
    monkeypatch.setattr(looked_at, "app", Treadle(ManyStores(stores, by="root"), work=TYPES))
    answer = run()
    assert answer.code == 1
    assert "does not support moves of slots: by root the last digits of an id" in answer.err
    assert "redis-cli --cluster rebalance" in answer.err
    monkeypatch.setattr(looked_at, "app", Treadle(MemoryBackend(), work=TYPES))
    assert run().code == 2


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_stops_between_moves(
    processes: None, monkeypatch: pytest.MonkeyPatch, uneven: Treadle, times: int
) -> None:
    """The move that is under way ends. A second Ctrl-C leaves it: it can be resumed, or given up."""
    stage, left = SqliteTenantMoves.stage, [times]

    async def interrupted(self: SqliteTenantMoves, *arguments: Any) -> bool:
        while left[0]:
            left[0] -= 1
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.01)
        return await stage(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(SqliteTenantMoves, "stage", interrupted)
        answer = run("--yes")
    assert answer.code == 130
    if times == 1:
        assert answer.out.endswith("stopped: moved 1 of 2 tenants. Run it again to go on\n")
        assert sizes(uneven) == {"eu": 9, "us": 6}
        assert run("--yes").out.endswith("moved 1 of 1 tenant\n")
        assert sizes(uneven) == {"eu": 7, "us": 8}
    else:
        assert answer.out.endswith("stopped: moved 0 of 2 tenants. Run it again to go on\n")
        assert "treadle move --tenant one --to us --resume, or --give-up" in answer.err
        assert sizes(uneven) == {"eu": 15, "us": 0}
        assert "one stays: a move to us has begun" in run().out
        assert call("move", "--tenant", "one", "--to", "us", "--resume", "--app", APP).code == 0
        assert sizes(uneven) == {"eu": 9, "us": 6}


def test_a_worker_goes_on_meanwhile(
    monkeypatch: pytest.MonkeyPatch, paths: dict[str, Path], prepared_url: str
) -> None:
    """From a file to PostgreSQL. Each item runs once, what is submitted meanwhile too, and both have about as
    much at last."""
    ran: Counter[str] = Counter()
    stop = threading.Event()

    @work(name="order")
    async def order(number: str) -> str:
        ran[number] += 1
        await asyncio.sleep(0.002)
        return number

    def app_here() -> Treadle:
        stores: dict[str, Backend] = {
            "eu": SqliteBackend(paths["eu"]),
            "us": PostgresBackend(prepared_url),
        }
        return Treadle(ManyStores(stores), work=[order], poll_interval=0.05)

    submitted: list[str] = []

    async def submit_and_work() -> None:
        app = app_here()
        async with app:
            for tenant in SIZES:
                await app.place(tenant, "eu")
            while not stop.is_set():
                for tenant, size in SIZES.items():
                    for _ in range(size):
                        submitted.append(f"{len(submitted)}")
                        await app.tenant(tenant).enqueue(order(submitted[-1]))
                await asyncio.sleep(0.02)
            async with asyncio.timeout(20):
                while any(count.status != "success" for count in await app.counts(ended=True)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(submit_and_work()))
    thread.start()
    try:
        monkeypatch.setattr(looked_at, "app", app_here())
        until(lambda: len(submitted) > 50)
        answers = [run("--yes", "--tolerance", "0.5")]
        until(lambda: len(submitted) > 200)
        answers.append(run("--yes", "--tolerance", "0.5"))
    finally:
        stop.set()
        thread.join()
    assert [answer.code for answer in answers] == [0, 0], answers
    assert "one is in us now: " in answers[0].out
    assert ran == Counter(submitted)
    held = sizes(app_here())
    assert sum(held.values()) == len(submitted)
    assert min(held.values()) > 0.2 * len(submitted), held


def until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        threading.Event().wait(0.01)
    raise TimeoutError
