"""PostgreSQL whose wake-ups go through Redis or NATS.

`make notify` runs the whole contract with each. Here are the cases that concern wake-ups, and a notifier that
goes away: work goes on by polling.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.backends.postgres_store import connected, opened, wake_channel
from tests.backends.test_postgres import PostgresSubject, shared_database, shared_url
from tests.support.nats import NatsServer
from tests.support.pooler import Pooler
from tests.support.valkey import ValkeyServer
from treadle import InputError, Treadle, work
from treadle.backend import Backend, carries_results
from treadle.backends.postgres import PostgresBackend
from treadle.backends.postgres import wakeups as postgres_wakeups
from treadle.backends.postgres.wakeups import WakeSignature
from treadle.errors import WakeupsLost
from treadle.item import Wake, WakeResult
from treadle.ports import MemoryPubSub, NatsPubSub, PubSub, RedisPubSub, memory_pubsub
from treadle.testing.contract import BackendContract, WorkerContract
from treadle.testing.contract.engine_fleet import EngineSharingCases
from treadle.testing.contract.fleet import Apps
from treadle.testing.contract.lifecycle import LifecycleCases
from treadle.testing.contract.subject import Subject
from treadle.testing.contract.wakeups import WakeRecorder, WakeupCases

__all__ = ["shared_database", "shared_url"]

Server = ValkeyServer | NatsServer

NEVER = 300.0
"""A poll interval that is longer than a test lasts: only a wake-up can start work."""
_names = (f"test.{os.getpid()}.{n}" for n in count())


@work(name="notify.double")
async def double(n: int) -> int:
    return 2 * n


@pytest.fixture(params=["redis", "nats"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def notify_url(kind: str, request: pytest.FixtureRequest) -> str:
    """The notifier of the run."""
    url: str = request.getfixturevalue("valkey" if kind == "redis" else "nats_url")
    return url


@pytest.fixture
def prefix() -> str:
    """A schema of this test only, so a channel of this test only."""
    return f"notify_{os.getpid()}_{next(_numbers)}"


_numbers = count()


@pytest.fixture
def server(kind: str, run_directory: Path) -> Iterator[Server]:
    """A notifier of this test only. It is running."""
    home = run_directory / f"{'valkey' if kind == 'redis' else 'nats'}-{next(_names)}"
    made: Server = ValkeyServer(home) if kind == "redis" else NatsServer(home)
    made.start()
    yield made
    made.remove()


# ---------------------------------------------------------------------------------------------- the contract


class NotifySubject(PostgresSubject):
    """Each backend has a PubSub of its own, all on one channel of this subject."""

    def __init__(self, url: str, kind: str, notify_url: str) -> None:
        super().__init__(url)
        self._kind, self._notify_url, self._channel = kind, notify_url, next(_names)

    async def another(self) -> PostgresBackend:
        pubsub: PubSub = (
            RedisPubSub(self._notify_url, channel=self._channel)
            if self._kind == "redis"
            else NatsPubSub(self._notify_url, subject=self._channel)
        )
        backend = PostgresBackend(self._url, notify=pubsub, close_notify=True)
        await backend.open()
        self._stack.push_async_callback(backend.close)
        return backend


class NotifyFixtures:
    @pytest.fixture
    async def subject(
        self, shared_url: str, kind: str, notify_url: str, another_form: None
    ) -> AsyncIterator[NotifySubject]:
        async with NotifySubject(shared_url, kind, notify_url) as subject:
            yield subject

    @pytest.fixture
    def backend(self, subject: Subject) -> Backend:
        return subject.backend

    @pytest.fixture
    async def fleet(self, subject: Subject) -> AsyncIterator[Apps]:
        fleet = Apps(subject)
        yield fleet
        await fleet.stop()


class TestNotifyCases(NotifyFixtures, WakeupCases, LifecycleCases, EngineSharingCases):
    """What concerns wake-ups most."""


if os.environ.get("TREADLE_TEST_NOTIFY"):

    class TestNotifyContract(NotifyFixtures, BackendContract):
        pass

    class TestNotifyWorkers(NotifyFixtures, WorkerContract):
        pass


# ------------------------------------------------------------------------------------------------- the engine


async def test_an_app_wakes_another(postgres_url: str, notify_url: str, prefix: str) -> None:
    """Neither polls while this test lasts."""
    settings: dict[str, Any] = {"prefix": prefix, "notify": notify_url, "poll_interval": NEVER}
    worker = Treadle(postgres_url, work=[double], **settings)
    client = Treadle(postgres_url, work=[double], **settings)
    async with worker:
        await client.connect()
        for n in range(3):
            assert await (await client.enqueue(double(n))).result(10) == 2 * n
        await client.stop()


def test_the_sync_side(postgres_url: str, notify_url: str, prefix: str) -> None:
    app = Treadle(postgres_url, work=[double], prefix=prefix, notify=notify_url, poll_interval=NEVER)
    with app.sync:
        handle = app.sync.enqueue(double(4))
        asyncio.run(_run_one(handle.id, postgres_url, notify_url, prefix))
        assert handle.result(10) == 8


async def _run_one(id: str, url: str, notify_url: str, prefix: str) -> None:
    async with Treadle(url, work=[double], prefix=prefix, notify=notify_url) as app:
        await app.handle(id).result(10)


def test_one_app_on_two_event_loops(postgres_url: str, notify_url: str, prefix: str) -> None:
    """The first loop is closed without stopping the app. No warning is raised."""
    app = Treadle(postgres_url, work=[double], prefix=prefix, notify=notify_url)

    async def use() -> None:
        await app.connect()
        await app.enqueue(double(1))

    asyncio.run(use())
    asyncio.run(use())

    async def end() -> None:
        await use()
        await app.stop()

    asyncio.run(end())
    gc.collect()


async def test_behind_a_pooler(prepared_url: str, notify_url: str, kind: str) -> None:
    """No connection past the pooler is needed, and nothing is polled for."""
    channel = next(_names)

    def app(pooler: Pooler) -> Treadle:
        pubsub: PubSub = (
            RedisPubSub(notify_url, channel=channel)
            if kind == "redis"
            else NatsPubSub(notify_url, subject=channel)
        )
        backend = PostgresBackend(pooler.url, prepare=False, pool_size=4, notify=pubsub, close_notify=True)
        return Treadle(backend, work=[double], poll_interval=NEVER)

    async with Pooler(prepared_url) as pooler:
        worker, client = app(pooler), app(pooler)
        async with worker:
            await client.connect()
            assert await (await client.enqueue(double(4))).result(10) == 8
            await client.stop()
        assert pooler.shared


async def test_in_a_transaction_of_the_user(prepared_url: str, notify_url: str) -> None:
    """The database cannot tell the notifier: the next poll finds the item. Nothing is sent by NOTIFY."""
    heard: list[object] = []
    async with (
        connected(prepared_url) as user,
        Treadle(prepared_url, work=[double], notify=notify_url, poll_interval=0.05) as app,
    ):
        await user.add_listener(await wake_channel(user), lambda *got: heard.append(got))
        async with user.transaction():
            handle = await app.enqueue(double(4), tx=user)
        assert await handle.result(10) == 8
        await user.fetchval("select 1")
    assert heard == []


# ----------------------------------------------------------------------------------------------- who is woken


async def test_other_prefixes_are_not_woken(postgres_url: str, notify_url: str, prefix: str) -> None:
    """On one notifier."""
    backends = [
        Treadle(postgres_url, prefix=f"{prefix}{name}", notify=notify_url)._core.backend for name in "ab"
    ]
    recorders = [WakeRecorder(), WakeRecorder()]
    for backend, recorder in zip(backends, recorders, strict=True):
        await backend.open()
        await backend.subscribe(recorder)
    for backend, name in zip(backends, "ab", strict=True):
        await backend.publish(Wake(items=(("t", name),)))
    for recorder, name in zip(recorders, "ab", strict=True):
        await recorder.wait_for({("t", name)})
    assert [[wake.items for wake in each.wakes] for each in recorders] == [[(("t", "a"),)], [(("t", "b"),)]]
    for backend in backends:
        await backend.close()


async def test_other_databases_are_not_woken(prepared_url: str, postgres_url: str) -> None:
    """They may have the same prefix, so the same channel. Each has a key of its own, as strangers have."""
    pubsub = memory_pubsub()
    async with opened(prepared_url, notify=pubsub) as one, opened(postgres_url, notify=pubsub) as other:
        recorder = WakeRecorder()
        await one.subscribe(recorder)
        await other.publish(Wake(items=(("t", "other"),)))
        await one.publish(Wake(items=(("t", "mine"),)))
        await recorder.wait_for({("t", "mine")})
        assert [wake.items for wake in recorder.wakes] == [(("t", "mine"),)]


async def test_a_pubsub_that_two_apps_share(prepared_url: str) -> None:
    """It belongs to the caller: an app that stops does not close it."""
    pubsub, recorder = ClosablePubSub(), WakeRecorder()
    async with opened(prepared_url, notify=pubsub) as stays:
        await stays.subscribe(recorder)
        async with opened(prepared_url, notify=pubsub) as goes:
            await goes.subscribe(WakeRecorder())
        assert not pubsub.closed
        await stays.publish(Wake(items=(("t", "a"),)))
        await recorder.wait_for({("t", "a")})
    async with opened(prepared_url, notify=pubsub, close_notify=True):
        pass
    assert pubsub.closed


async def test_a_stranger_at_the_notifier(prepared_url: str, notify_url: str, kind: str) -> None:
    """It hears ids, and no results. What it makes or changes is ignored. What it repeats says nothing new."""
    channel = next(_names)
    make = partial(RedisPubSub, channel=channel) if kind == "redis" else partial(NatsPubSub, subject=channel)
    stranger, heard = make(notify_url), list[str]()
    recorder, seen = WakeRecorder(), asyncio.Event()
    items = (("acme", "invoice-42"),)
    sent = Wake(sender="s", items=items, results=(WakeResult("bill", 1.5, b"iban 7", ends_group=True),))

    def hear(text: str) -> None:
        heard.append(text)
        if "invoice-42" in text:
            seen.set()

    async with opened(prepared_url, notify=make(notify_url), close_notify=True) as backend:
        assert not carries_results(backend)
        await backend.subscribe(recorder)
        await stranger.subscribe(hear)
        await backend.publish(sent)
        async with asyncio.timeout(10):
            await seen.wait()
        assert not [name for name in ("bill", "iban", "results") if name in "".join(heard)]
        real = heard[-1]
        for text in (real[64:], real.replace("42", "43"), "0" * 64 + real[64:], real[:-1], '{"ready":true}'):
            await stranger.publish(text)
        await stranger.publish(real)
        await recorder.wait_until(lambda: len(recorder.wakes) == 2)
        assert recorder.wakes == [Wake(sender="s", items=items)] * 2
    await stranger.close()


def test_a_signature_holds() -> None:
    one, reader, other = WakeSignature(), WakeSignature(), WakeSignature()
    one.use("one")
    reader.use("one")
    other.use("other")
    message = one.signed('{"ready":true}')
    assert reader.checked(message) == '{"ready":true}'
    assert other.checked(message) is None
    assert reader.checked(message[:-1]) is None
    for hostile in ("", "x", "é" * 64, "\ud800" * 70, message[:64], message[64:], message.upper()):
        assert reader.checked(hostile) is None


class ClosablePubSub(MemoryPubSub):
    closed = False

    async def close(self) -> None:
        self.closed = True


# ------------------------------------------------------------------------------------ a notifier that is away


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def is_absent(backend: Backend) -> bool:
    """Whether it has found that wake-ups do not arrive."""
    assert isinstance(backend, PostgresBackend)
    wakeups = backend._wakeups  # pyright: ignore[reportPrivateUsage]
    assert isinstance(wakeups, postgres_wakeups.PubSubWakeups)
    return wakeups._absence.lasts  # pyright: ignore[reportPrivateUsage]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)


async def test_a_notifier_that_is_killed_and_comes_back(
    postgres_url: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Work goes on by polling. Wake-ups come back by themselves. Each is one line in the log."""
    app = Treadle(postgres_url, work=[double], notify=server.url, poll_interval=0.05)
    other = Treadle(postgres_url, work=[double], notify=server.url, poll_interval=0.05)
    async with app:
        await other.connect()
        recorder = WakeRecorder()
        await app._core.backend.subscribe(recorder)
        server.kill()
        assert await (await other.enqueue(double(1))).result(10) == 2
        await until(lambda: len(warnings_in(caplog)) == 2)  # one of each app
        assert await (await other.enqueue(double(2))).result(10) == 4
        assert all("wake-ups do not arrive by" in each for each in warnings_in(caplog))
        backend = app._core.backend
        assert isinstance(backend, PostgresBackend)
        (problem,) = await backend.inspect()
        assert isinstance(problem, WakeupsLost)
        assert problem.carrier == server.url
        assert await backend.inspect() == []

        caplog.clear()
        recorder.wakes.clear()
        server.start()
        await until(lambda: len(warnings_in(caplog)) == 2)
        assert all("wake-ups arrive again by" in each for each in warnings_in(caplog))
        await recorder.wait_until(lambda: any(wake.everything for wake in recorder.wakes))
        recorder.wakes.clear()
        await other._core.backend.publish(Wake(items=(("t", "a"),)))
        await recorder.wait_until(lambda: any(wake.items == (("t", "a"),) for wake in recorder.wakes))
        assert await backend.inspect() == []
        await other.stop()


async def test_a_notifier_that_is_not_there_at_the_start(
    prepared_url: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The app starts, and works."""
    server.kill()
    async with Treadle(prepared_url, work=[double], notify=server.url, poll_interval=0.05) as app:
        assert await (await app.enqueue(double(1))).result(10) == 2
        assert len(warnings_in(caplog)) == 1
        server.start()
        await until(lambda: len(warnings_in(caplog)) == 2)
        assert "arrive again" in warnings_in(caplog)[1]


async def test_a_notifier_that_hangs(
    prepared_url: str, run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts connections and answers nothing. Publishing ends all the same, and work goes on."""
    monkeypatch.setattr(postgres_wakeups, "ANSWER_SECONDS", 0.1)
    server = ValkeyServer(run_directory / f"valkey-{next(_names)}")
    server.start()
    try:
        async with Treadle(prepared_url, work=[double], notify=server.url, poll_interval=0.05) as app:
            server.freeze()
            await app._core.backend.publish(Wake(ready=True))
            assert await (await app.enqueue(double(1))).result(10) == 2
            await until(lambda: is_absent(app._core.backend))
            server.thaw()
    finally:
        server.remove()


class DeafPubSub(MemoryPubSub):
    """Accepts messages. Delivers none while it is deaf, and does not tell."""

    deaf = False
    subscriptions = 0

    def publish(self, message: str, /) -> None:
        if not self.deaf:
            super().publish(message)

    def subscribe(self, receive: Callable[[str], None], /) -> Callable[[], None]:
        self.subscriptions += 1
        return super().subscribe(receive)


async def test_messages_that_are_lost_without_a_sign(
    prepared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process checks, now and then, that what it publishes arrives. If not, it subscribes anew."""
    monkeypatch.setattr(postgres_wakeups, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(postgres_wakeups, "PROBE_SECONDS", 0.05)
    pubsub, recorder = DeafPubSub(), WakeRecorder()
    async with opened(prepared_url, notify=pubsub) as backend:
        await backend.subscribe(recorder)
        pubsub.deaf, pubsub.subscriptions = True, 0
        await until(lambda: is_absent(backend) and pubsub.subscriptions > 0)
        (problem,) = await backend.inspect()
        assert isinstance(problem, WakeupsLost)
        pubsub.deaf = False
        await recorder.wait_until(lambda: any(wake.everything for wake in recorder.wakes))
        assert await backend.inspect() == []


class LatePubSub(MemoryPubSub):
    """Delivers each message when the next one is published."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[str] = []

    def publish(self, message: str, /) -> None:
        self.kept.append(message)
        if len(self.kept) > 1:
            super().publish(self.kept.pop(0))


async def test_messages_that_arrive_after_others_were_published(
    prepared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server is farther away than two wake-ups are apart. All arrive, so nothing is wrong."""
    pubsub, recorder = LatePubSub(), WakeRecorder()
    async with opened(prepared_url, notify=pubsub) as backend:
        subscribing = asyncio.ensure_future(backend.subscribe(recorder))
        await until(lambda: bool(pubsub.kept))
        await backend.publish(Wake(items=(("t", "a"),)))
        await backend.publish(Wake(items=(("t", "b"),)))
        await subscribing
        assert not is_absent(backend)
        await recorder.wait_until(lambda: any(wake.items == (("t", "a"),) for wake in recorder.wakes))
    assert warnings_in(caplog) == []


class BrokenPubSub:
    def publish(self, message: str, /) -> None:
        raise ValueError("broken")

    def subscribe(self, receive: Callable[[str], None], /) -> Callable[[], None]:
        raise ValueError("broken")


async def test_a_pubsub_that_raises(prepared_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it raises: nothing but latency is lost."""
    backend = PostgresBackend(prepared_url, notify=BrokenPubSub())
    async with Treadle(backend, work=[double], poll_interval=0.05) as app:
        await backend.publish(Wake(ready=True))
        assert await (await app.enqueue(double(1))).result(10) == 2
    assert warnings_in(caplog) == [
        "wake-ups do not arrive by BrokenPubSub, polling goes on: ValueError: broken"
    ]


async def test_without_a_notifier(prepared_url: str) -> None:
    """None is the same as False: polling."""
    async with Treadle(prepared_url, work=[double], notify=None, poll_interval=0.05) as app:
        assert await (await app.enqueue(double(1))).result(10) == 2
        backend = app._core.backend
        assert isinstance(backend, PostgresBackend)
        assert backend.wakeup_carrier is None


@pytest.mark.parametrize("url", ["memory://", "sqlite:///work.db"])
def test_other_stores_refuse_a_notifier(url: str) -> None:
    with pytest.raises(InputError, match="only for PostgreSQL"):
        Treadle(url, notify=memory_pubsub())
