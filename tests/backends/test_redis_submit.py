"""Submitting to Redis: the short way of plain items, large submissions, and what a refused one leaves."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.redis_store import RedisSubject
from tests.support.valkey import Client, ValkeyServer
from treadle.backends.redis import RedisBackend
from treadle.backends.redis import submit as submit_module
from treadle.errors import InputError, StoreFull, UnsupportedError
from treadle.item import Heartbeat, Item, Rejected, Submission, Submitted


@pytest.fixture
async def subject(valkey_url: str) -> AsyncIterator[RedisSubject]:
    subject = RedisSubject(valkey_url)
    await subject.backend.open()
    await subject.stand_still()
    yield subject
    await subject.close()
    assert subject.audit() == []


def item(id: str, type: str = "work", **fields: Any) -> Item:
    return Item(id=id, type=type, input=b"", **fields)


def together(*items: Item) -> Submission:
    return Submission(items)


def all_keys(subject: RedisSubject) -> dict[str, Any]:
    """Everything that the namespace holds, by the names of its keys."""
    names = subject.keys()
    with subject.client() as client:
        return {name: content(client, f"{{{subject.prefix}}}:{name}") for name in names}


def content(client: Client, key: str) -> Any:
    kind = client.call("TYPE", key)
    if kind in (b"string", "string"):
        return client.call("GET", key)
    read = ("HGETALL", key) if kind in (b"hash", "hash") else ("ZRANGE", key, 0, -1, "WITHSCORES")
    found = client.call(*read)
    return dict(zip(found[::2], found[1::2], strict=True))


class TestPlainItems:
    @pytest.mark.parametrize("seed", range(3))
    async def test_both_ways_leave_the_same_keys(
        self, seed: int, subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also for plain items, the general script decides what is right."""
        calls = [random_submissions(random.Random(f"{seed}-{call}"), call) for call in range(5)]
        answers = [await subject.backend.submit(each) for each in calls]
        found = all_keys(subject)
        with subject.client() as client:
            for name in set(found) - {"meta", "shift"}:
                client.call("DEL", f"{{{subject.prefix}}}:{name}")
        monkeypatch.setattr(submit_module, "_is_plain", lambda submission: False)
        assert [await subject.backend.submit(each) for each in calls] == answers
        assert all_keys(subject) == found

    async def test_an_id_that_exists_refuses_one_of_many(self, subject: RedisSubject) -> None:
        await subject.backend.submit([together(item("b"))])
        first, second, third = await subject.backend.submit([together(item(id)) for id in "abc"])
        assert isinstance(first, tuple)
        assert second == Rejected("duplicate_id", ("b",))
        assert isinstance(third, tuple)

    async def test_an_id_that_comes_twice_is_refused_the_second_time(self, subject: RedisSubject) -> None:
        stored, refused = await subject.backend.submit([together(item("a")), together(item("a"))])
        assert isinstance(stored, tuple)
        assert refused == Rejected("duplicate_id", ("a",))

    async def test_answers_keep_the_order_of_mixed_submissions(self, subject: RedisSubject) -> None:
        items = [item(f"i{n}", key=f"k{n // 2}" if n % 3 == 0 else None, delay=n % 5) for n in range(700)]
        answers = await subject.backend.submit([together(each) for each in items])
        ids = [answer[0].id for answer in answers if isinstance(answer, tuple)]
        assert ids == [each.id for each in items]

    async def test_more_kinds_than_one_call_takes(self, subject: RedisSubject) -> None:
        items = [item(f"i{n}", lane=f"lane{n}") for n in range(250)]
        (answer,) = await subject.backend.submit([together(*items)])
        assert len(answer) == 250  # type: ignore[arg-type]


def random_submissions(roll: random.Random, call: int) -> list[Submission]:
    def one(n: int) -> Item:
        return item(
            f"i{call}-{n}",
            roll.choice("abc"),
            tenant=roll.choice(("default", "acme")),
            queue=roll.choice(("default", "a")),
            lane=roll.choice(("", "a", "b")),
            priority=roll.choice((0, 5, -3)),
            keep_dead=roll.choice((None, 5.0)),
            attempts=roll.choice((None, 3)),
        )

    return [
        together(*(one(3 * n + m) for m in range(roll.randint(1, 3)))) for n in range(roll.randint(1, 40))
    ]


class TestRefusals:
    @pytest.mark.parametrize(
        "fields",
        [
            {"id": "known", "queue": "new"},
            {"id": "new", "lane": "new", "must_exist": ("missing",), "after": ("missing",)},
            {"id": "new", "tenant": "new", "after": ("new",), "need": 1},
        ],
    )
    async def test_a_refused_submission_leaves_nothing(
        self, fields: dict[str, Any], subject: RedisSubject
    ) -> None:
        """Not even the kind of its items."""
        await subject.backend.submit([together(item("known"))])
        before = all_keys(subject)
        (answer,) = await subject.backend.submit([together(item("fine", "other"), item(**fields))])
        assert isinstance(answer, Rejected)
        assert all_keys(subject) == before

    async def test_a_taken_key_leaves_nothing(self, subject: RedisSubject) -> None:
        await subject.backend.submit([together(item("known", key="k"))])
        before = all_keys(subject)
        (answer,) = await subject.backend.submit(
            [together(item("fine", "other"), item("new", key="k", key_policy="error", lane="new"))]
        )
        assert answer == Rejected("duplicate_key", ("known",), ("k",))
        assert all_keys(subject) == before

    async def test_a_kind_is_forgotten_when_its_last_item_moves(self, subject: RedisSubject) -> None:
        await subject.backend.submit([together(item("one", key="k", lane="first"))])
        await subject.backend.submit([together(item("two", key="k", key_policy="replace", lane="second"))])
        assert len(all_keys(subject)["kinds"]) == 1

    async def test_a_transaction_is_refused(self, subject: RedisSubject) -> None:
        with pytest.raises(UnsupportedError):
            await subject.backend.submit([together(item("a"))], tx=object())


class TestLargeSubmissions:
    @pytest.mark.parametrize("fields", [{}, {"workflow": "flow"}])
    async def test_thousands_of_items_are_stored_together(
        self, fields: dict[str, Any], subject: RedisSubject
    ) -> None:
        items = [item(f"i{n}", **fields) for n in range(2500)]
        await subject.backend.submit([together(item("i2499"))])
        (refused,) = await subject.backend.submit([together(*items)])
        assert refused == Rejected("duplicate_id", ("i2499",))
        (stored,) = await subject.backend.submit([together(*items[:-1])])
        assert isinstance(stored, tuple)
        assert [answer.id for answer in stored] == [each.id for each in items[:-1]]
        counts = await subject.backend.counts()
        assert [count.count for count in counts] == [2500]

    async def test_more_than_one_call_can_take_is_refused(
        self, subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(submit_module, "MOST_PLAIN", 2)
        with pytest.raises(InputError, match="items=3"):
            await subject.backend.submit([together(item("a"), item("b"), item("c"))])

    async def test_items_that_are_not_plain_are_refused_sooner(
        self, subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(submit_module, "MOST_GENERAL", 2)
        await subject.backend.submit([together(item("a"), item("b"), item("c"))])
        with pytest.raises(InputError, match="if some of them have a key, a prerequisite, a time"):
            await subject.backend.submit([together(item("d"), item("e"), item("f", delay=1.0))])


# ---------------------------------------------------------------------------------------- a server of its own


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path / "valkey")
    server.start()
    yield server
    server.remove()


@pytest.fixture
async def backend(server: ValkeyServer) -> AsyncIterator[RedisBackend]:
    backend = RedisBackend(server.url)
    await backend.open()
    yield backend
    await backend.close()


def commands(server: ValkeyServer) -> int:
    """How many commands scripts have sent so far. One script is one more."""
    stats = server.call("INFO", "commandstats").decode().split()
    counted = [line for line in stats if line.startswith("cmdstat_") and "info" not in line]
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in counted)


@pytest.mark.usefixtures("processes")
async def test_a_plain_item_takes_few_commands(server: ValkeyServer, backend: RedisBackend) -> None:
    """Its script counts as one. In a line that is not empty it sends 11, for any number of items."""
    await backend.submit([together(item("first"))])
    before = commands(server)
    await backend.submit([together(item("second"))])
    assert commands(server) - before == 12
    before = commands(server)
    await backend.submit([together(*(item(f"i{n}") for n in range(300)))])
    assert commands(server) - before == 12


@pytest.mark.usefixtures("processes")
async def test_a_full_server_refuses_new_items_only(server: ValkeyServer, backend: RedisBackend) -> None:
    await backend.beat(Heartbeat(worker="w", lease=60.0))
    server.call("CONFIG", "SET", "maxmemory", "1")
    for fields in ({}, {"key": "k"}):
        with pytest.raises(StoreFull):
            await backend.submit([together(item("a", **fields))])
    assert not (await backend.beat(Heartbeat(worker="w", lease=60.0))).fresh
    server.call("CONFIG", "SET", "maxmemory", "0")
    (answer,) = await backend.submit([together(item("a"))])
    assert isinstance(answer, tuple)
    assert isinstance(answer[0], Submitted)
