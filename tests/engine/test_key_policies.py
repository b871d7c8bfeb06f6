"""Key policies, `unique=True` and ids that callers give (SPEC §18)."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.backends.postgres_store import connected
from tests.engine.kit import PATIENCE, Barrier, MakeApp, failure, until_status
from treadle import Context, DuplicateIdError, InputError, Result, Treadle, UnsupportedError, work
from treadle.engine.submit.build_item import unique_key
from treadle.errors import DuplicateKeyError
from treadle.ports import PortsBackend, memory_pubsub, memory_queue, memory_store


@work(name="echo")
async def echo(text: str) -> str:
    return text


async def test_an_earlier_item_refuses_with_its_id(make_app: MakeApp) -> None:
    """`DuplicateKeyError` has the id of the earlier item, and the key."""
    app = make_app(echo)
    earlier = await app.enqueue(echo("a"), key="k", delay=60)
    with pytest.raises(DuplicateKeyError) as refused:
        await app.enqueue(echo("b"), key="k", key_policy="error")
    assert (refused.value.id, refused.value.key) == (earlier.id, "k")
    assert (await app.get([earlier.id]))[0] is not None


async def test_the_handler_gets_the_newest_arguments(make_app: MakeApp) -> None:
    """`replace`: the handle is that of the earlier item. A worker that sleeps sees it at once."""
    async with make_app(echo, poll_interval=60) as app:
        earlier = await app.enqueue(echo("old"), key="k", delay=3600)
        again = await app.enqueue(echo("new"), key="k", key_policy="replace", priority=4)
        assert (again.id, again.existing) == (earlier.id, True)
        assert await earlier.result(PATIENCE) == "new"
        assert (await earlier.state()).priority == 4


@pytest.mark.every_store
async def test_a_change_in_a_transaction_wakes_a_worker(make_app: MakeApp) -> None:
    """`replace` in `ctx.transaction()`: a worker that sleeps sees the changed item at once."""

    @work(name="change")
    async def change(ctx: Context) -> None:
        async with ctx.transaction():
            await app.enqueue(echo("new"), key="k", key_policy="replace")

    async with make_app(change, poll_interval=60) as app, make_app(echo, poll_interval=60):
        if "transactions" not in app.backend.capabilities:
            pytest.skip("the store has no transactions")
        earlier = await app.enqueue(echo("old"), key="k", delay=3600)
        await app.enqueue(change()).result(PATIENCE)
        assert await earlier.result(PATIENCE) == "new"


async def test_a_running_item_keeps_its_arguments(make_app: MakeApp) -> None:
    """`replace` changes only what has not started."""
    barrier = Barrier()

    @work(name="slow")
    async def slow(text: str) -> str:
        await barrier.wait()
        return text

    async with make_app(slow) as app:
        earlier = await app.enqueue(slow("old"), key="k")
        await barrier.reached()
        again = await app.enqueue(slow("new"), key="k", key_policy="replace")
        assert again.existing
        barrier.go.set()
        assert await earlier.result(PATIENCE) == "old"


async def test_a_debounced_item_runs_once_with_the_newest_arguments(make_app: MakeApp) -> None:
    """Each submit starts the delay again."""
    ran: list[str] = []

    @work(name="save", key_policy="debounce", debounce_max=30, options=lambda _: {"key": "doc"})
    async def save(text: str) -> None:
        ran.append(text)

    async with make_app(save) as app:
        handles = [await app.enqueue(save(str(n)), delay=0.3) for n in range(5)]
        await handles[0].result(PATIENCE)
        assert ran == ["4"]
        assert [handle.existing for handle in handles] == [False, True, True, True, True]


async def test_the_longest_delay_of_a_debounced_item(make_app: MakeApp) -> None:
    """`debounce_max` counts from the first submit."""
    app = make_app(echo)
    handle = await app.enqueue(echo("a"), key="k", key_policy="debounce", delay=100)
    await app.enqueue(echo("b"), key="k", key_policy="debounce", delay=500, debounce_max=200)
    state = await handle.state()
    assert 190 < state.due_at - state.queued_at <= 200


async def test_a_child_replaces_an_earlier_item(make_app: MakeApp) -> None:
    """Options of `ctx.queue`."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.queue(echo("new"), key="k", key_policy="replace")

    async with make_app(root, echo) as app:
        earlier = await app.enqueue(echo("old"), key="k", delay=3600)
        await (await app.enqueue(root())).result(PATIENCE)
        assert await earlier.result(PATIENCE) == "new"


async def test_a_child_whose_key_is_taken_kills_its_parent(make_app: MakeApp) -> None:
    """`error` in a settlement: nothing is stored, and the item is dead at once. The error names the key."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.queue(echo("x"), ctx.queue(echo("b"), key="k", key_policy="error"))

    async with make_app(root, echo) as app:
        earlier = await app.enqueue(echo("a"), key="k", delay=3600)
        error = await failure((await app.enqueue(root())).result(PATIENCE))
        assert (error.reason, error.attempts) == ("bad_result", 1)
        assert earlier.id in error.error
        assert "'k'" in error.error
        assert len((await app.list(type="echo")).items) == 1


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"key": "k", "key_policy": "newest"}, "key_policy"),
        ({"key_policy": "replace"}, "key_policy"),
        ({"key": "k", "debounce_max": 5}, "debounce_max"),
        ({"key": "k", "debounce_max": 0, "key_policy": "debounce"}, "debounce_max"),
        ({"key": "k", "unique": True}, "key"),
        ({"unique": "yes"}, "unique"),
        ({"id": "no spaces"}, "id"),
    ],
)
async def test_mistakes_are_named(options: Any, parameter: str) -> None:
    """Before anything is stored."""
    app = Treadle(work=[echo])
    with pytest.raises(InputError) as refused:
        await app.enqueue(echo("a"), **options)
    assert refused.value.parameters == (parameter,)
    assert (await app.list()).items == ()


async def test_ports_refuse_a_policy() -> None:
    """They can only return the earlier item. `unique` needs no more than that."""
    app = Treadle(PortsBackend(memory_queue(), memory_pubsub(), memory_store()), work=[echo])
    with pytest.raises(UnsupportedError, match="key_policy='replace'"):
        await app.enqueue(echo("a"), key="k", key_policy="replace")
    first = await app.enqueue(echo("a"), unique=True)
    assert (await app.enqueue(echo("a"), unique=True)).id == first.id


# --------------------------------------------------------------------------------------------------- unique


async def test_the_same_arguments_are_one_item(make_app: MakeApp) -> None:
    """For an option of the type, and of the call. Other arguments are another item."""

    @work(name="fetch", unique=True)
    async def fetch(url: str, depth: int = 1) -> None: ...

    app = make_app(fetch, echo)
    first = await app.enqueue(fetch("a", depth=2), delay=60)
    assert (await app.enqueue(fetch(depth=2, url="a"), delay=60)).id == first.id
    assert (await app.enqueue(fetch("a", 2))).existing
    assert not (await app.enqueue(fetch("b", 2))).existing
    one = await app.enqueue(echo("a"), unique=True, delay=60)
    assert not one.existing
    assert (await app.enqueue(echo("a"), unique=True)).id == one.id
    assert not (await app.enqueue(echo("a"))).existing


async def test_the_stronger_level_decides(make_app: MakeApp) -> None:
    """A key at enqueue wins over `unique` of the type, and the other way round."""

    @work(name="fetch", unique=True)
    async def fetch(url: str) -> None: ...

    @work(name="keyed", options=lambda _: {"key": "same"})
    async def keyed(url: str) -> None: ...

    app = make_app(fetch, keyed)
    later: dict[str, Any] = {"delay": 60}
    states = [
        (await (await app.enqueue(fetch("a"), **later)).state()).key,
        (await (await app.enqueue(fetch("a"), key="mine", **later)).state()).key,
        (await (await app.enqueue(fetch("a"), unique=False, **later)).state()).key,
        (await (await app.enqueue(keyed("a"), **later)).state()).key,
        (await (await app.enqueue(keyed("a"), unique=True, **later)).state()).key,
    ]
    assert states == [
        unique_key(fetch, {"url": "a"}),
        "mine",
        None,
        "same",
        unique_key(keyed, {"url": "a"}),
    ]


@dataclass
class Query:
    words: set[str]
    by: dict[str, int] = field(default_factory=dict[str, int])


@work(name="search")
async def search(query: Query, tags: frozenset[str], *more: Any) -> None: ...


def test_the_key_does_not_depend_on_order() -> None:
    """Neither of dict keys, nor of the members of sets, declared or not."""
    one = search(Query({"a", "b"}, {"x": 1, "y": 2}), frozenset("pq"), {"u", "v"}, {"m": 1, "n": 2})
    two = search(Query({"b", "a"}, {"y": 2, "x": 1}), frozenset("qp"), {"v", "u"}, {"n": 2, "m": 1})
    assert unique_key(search, one.input) == unique_key(search, two.input)
    other = search(Query({"a", "b"}, {"x": 1, "y": 2}), frozenset("pq"), ["u", "v"], {"m": 1, "n": 2})
    assert unique_key(search, one.input) != unique_key(search, other.input)


@pytest.mark.usefixtures("processes")
def test_the_key_is_the_same_in_every_process() -> None:
    """Python hashes texts differently in each, so sets have another order there."""
    program = (
        "from tests.engine.test_key_policies import *\n"
        "print(unique_key(search, search(Query(set('abcdefgh')), frozenset('ijklmnop'), set('qrst')).input))"
    )
    root = Path(__file__).parents[2]
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


async def test_a_codec_of_the_app_does_not_matter(make_app: MakeApp) -> None:
    """One that encrypts writes other bytes each time."""

    class Salted:
        def __init__(self) -> None:
            self._count = 0

        def encode(self, value: Any) -> bytes:
            self._count += 1
            return f"{self._count}|{value!r}".encode()

        def decode(self, data: bytes) -> Any:
            raise NotImplementedError

    app = make_app(echo, codec=Salted())
    first = await app.enqueue(echo("a"), unique=True, delay=60)
    assert (await app.enqueue(echo("a"), unique=True)).id == first.id


# ------------------------------------------------------------------------------------------------------ ids


async def test_a_caller_gives_the_id(make_app: MakeApp) -> None:
    """The second item of that id is refused. The Work has the id too, so `after` can name it."""
    async with make_app(echo) as app:
        first = echo("a")
        handle = await app.enqueue(first, id="order:7", delay=60)
        assert (handle.id, first.id) == ("order:7", "order:7")
        with pytest.raises(DuplicateIdError) as refused:
            await app.enqueue(echo("b"), id="order:7")
        assert refused.value.id == "order:7"
        after = await app.enqueue(echo("c"), after=[first])
        assert (await after.state()).after == ("order:7",)
        await app.trigger("order:7")
        assert await after.result(PATIENCE) == "c"


async def test_two_calls_of_one_work_with_two_ids(make_app: MakeApp) -> None:
    """Each call has its own id, whenever it is awaited."""
    app = make_app(echo)
    one = echo("a")
    calls = [app.enqueue(one, id="x"), app.enqueue(one, id="y")]
    handles = await asyncio.gather(*calls)
    assert [handle.id for handle in handles] == ["x", "y"]


async def test_an_id_of_several_works_is_refused(make_app: MakeApp) -> None:
    """`enqueue_many` and `ctx.queue` take several."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.queue(echo("a"), id="x")  # type: ignore[call-overload]

    async with make_app(root, echo) as app:
        with pytest.raises(TypeError, match=r"enqueue_many has no option 'id'.*enqueue\(work, id="):
            await app.enqueue_many([echo("a")], id="x")
        handle = await app.enqueue(root(), retry=None)
        await until_status(app, handle.id, "scheduled")
        assert "ctx.queue has no option 'id'" in ((await handle.state()).error or "")


def test_the_sync_side_gives_ids_and_updates(tmp_path: Path) -> None:
    """As the async side."""
    app = Treadle(f"sqlite:///{tmp_path / 'work.db'}", work=[echo])
    handle = app.sync.enqueue(echo("a"), id="x", delay=60, key="k")
    assert handle.id == "x"
    assert app.sync.update("x", priority=3, run_at=1) == 1
    assert handle.state().priority == 3
    with pytest.raises(DuplicateKeyError):
        app.sync.enqueue(echo("b"), key="k", key_policy="error")
    app.sync.close()


# --------------------------------------------------------------------------------------------- transactions


async def test_a_policy_in_the_callers_transaction(prepared_url: str) -> None:
    """PostgreSQL: the earlier item changes with the commit, and not with a rollback. A taken key leaves the
    transaction usable."""
    app = Treadle(prepared_url, work=[echo])
    earlier = await app.enqueue(echo("old"), key="k", delay=3600)
    async with connected(prepared_url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        again = await app.enqueue(echo("lost"), key="k", key_policy="replace", delay=3600, tx=connection)
        assert (again.id, again.existing) == (earlier.id, True)
        await transaction.rollback()
        assert (await earlier.state()).input == b'{"text":"old"}'
        async with connection.transaction():
            with pytest.raises(DuplicateKeyError) as refused:
                await app.enqueue(echo("x"), key="k", key_policy="error", tx=connection)
            assert (refused.value.id, refused.value.key) == (earlier.id, "k")
            await app.enqueue(echo("new"), key="k", key_policy="replace", delay=3600, tx=connection)
    assert (await earlier.state()).input == b'{"text":"new"}'
    await app.stop()


async def test_a_policy_in_the_callers_transaction_on_sqlite(tmp_path: Path) -> None:
    """As on PostgreSQL."""
    path = tmp_path / "work.db"
    app = Treadle(f"sqlite:///{path}", work=[echo])
    earlier = await app.enqueue(echo("old"), key="k", delay=3600)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        await app.enqueue(echo("lost"), key="k", key_policy="replace", delay=3600, tx=connection)
        connection.execute("ROLLBACK")
        assert (await earlier.state()).input == b'{"text":"old"}'
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(DuplicateKeyError) as refused:
            await app.enqueue(echo("x"), key="k", key_policy="error", tx=connection)
        assert (refused.value.id, refused.value.key) == (earlier.id, "k")
        await app.enqueue(echo("new"), key="k", key_policy="replace", delay=3600, tx=connection)
        connection.execute("COMMIT")
    assert (await earlier.state()).input == b'{"text":"new"}'
    await app.stop()


def test_unique_ignores_the_order_of_keys_that_are_no_text() -> None:
    @work(name="any")
    async def anything(value: Any) -> None: ...

    def key(value: object) -> str:
        return unique_key(anything, anything(value).input)

    assert key({1: 2, 3: {5: {7, 8}}}) == key({3: {5: {8, 7}}, 1: 2})
    assert key({(1, 2): 3, (4, 5): 6}) == key({(4, 5): 6, (1, 2): 3})
    assert key({1: 2, 3: 4}) != key({1: 4, 3: 2})
