"""Redis wake-ups: sent behind the work, received again after an outage, harmless if they are not ours."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.engine.kit import PATIENCE, until
from tests.support.valkey import ValkeyServer
from treadle.backends.redis import RedisBackend, wakeups
from treadle.backends.redis.wakeups import MOST_BYTES, SubscribedConnection, short_wake
from treadle.item import Wake
from treadle.store import listening as listening_module
from treadle.store.wakeups import decode_wake
from treadle.testing.contract.wakeups import WakeRecorder

CHANNEL = "{treadle}:wake"


@pytest.fixture
def server(valkey_home: Path) -> Generator[ValkeyServer]:
    server = ValkeyServer(valkey_home / "valkey")
    server.start()
    yield server
    server.remove()


@asynccontextmanager
async def listening(url: str, recorder: WakeRecorder, *, notify: bool = True) -> AsyncGenerator[RedisBackend]:
    backend = RedisBackend(url, notify=notify)
    await backend.open()
    await backend.subscribe(recorder)
    try:
        yield backend
    finally:
        await backend.close()


async def test_a_listener_returns_after_a_crash_of_the_server(server: ValkeyServer) -> None:
    """It may have missed something, so it says that everything may have changed."""
    recorder = WakeRecorder()
    async with listening(server.url, recorder) as backend:
        for _ in range(2):
            recorder.wakes.clear()
            server.kill()
            await backend.publish(Wake(ready=True))
            server.start()
            await recorder.wait_until(lambda: Wake(ready=True, everything=True) in recorder.wakes)
            await backend.publish(Wake(items=(("t", "a"),)))
            await recorder.wait_until(lambda: recorder.wakes[-1].items == (("t", "a"),))


async def test_a_listener_begins_before_the_server(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A line tells that wake-ups do not arrive, and one that they do again."""
    server.kill()
    backend, recorder = RedisBackend(server.url), WakeRecorder()
    try:
        await backend.subscribe(recorder)
        assert [each.levelno for each in caplog.records] == [logging.WARNING]
        assert "cannot listen for wake-ups, polling goes on" in caplog.text
        server.start()
        await recorder.wait_until(lambda: bool(recorder.wakes))
        assert "listening for wake-ups again" in caplog.text
    finally:
        await backend.close()


async def test_a_silent_connection_is_checked(server: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening_module, "PROBE_SECONDS", 0.02)
    probe, answers, unanswered = SubscribedConnection.probe, 0, asyncio.Event()

    async def counted(self: SubscribedConnection) -> None:
        nonlocal answers
        try:
            await probe(self)
        except BaseException:
            unanswered.set()
            raise
        answers += 1

    monkeypatch.setattr(SubscribedConnection, "probe", counted)
    recorder = WakeRecorder()
    async with listening(server.url, recorder) as backend:
        await until(lambda: answers >= 3)
        await backend.publish(Wake(ready=True))
        await recorder.wait_until(lambda: recorder.wakes == [Wake(ready=True)])
        server.freeze()
        monkeypatch.setattr(listening_module, "ANSWER_SECONDS", 0.3)
        async with asyncio.timeout(PATIENCE):
            await unanswered.wait()
        server.thaw()
        await recorder.wait_until(lambda: any(wake.everything for wake in recorder.wakes))


async def test_what_others_publish_does_no_harm(server: ValkeyServer) -> None:
    recorder = WakeRecorder()
    async with listening(server.url, recorder):
        for text in (b"", b"\xff\x00", b"[" * 100_000, b"null", b'{"items": 3}', b'{"items": [["a"]]}', b"{"):
            server.call("PUBLISH", CHANNEL, text)
        server.call("PUBLISH", CHANNEL, b'{"ready": true, "of_a_later_version": [1]}')
        await recorder.wait_until(lambda: recorder.wakes == [Wake(ready=True)])


async def test_databases_and_prefixes_have_wake_ups_of_their_own(server: ValkeyServer) -> None:
    """Redis itself sends a message to every database of a server."""
    first, second, third = WakeRecorder(), WakeRecorder(), WakeRecorder()
    other = RedisBackend(f"{server.url}?db=1", prefix="other")
    async with listening(f"{server.url}?db=1", first) as backend, listening(server.url, second):
        await other.subscribe(third)
        await backend.publish(Wake(ready=True))
        await first.wait_until(lambda: bool(first.wakes))
        server.call("PUBLISH", "{other}:wake:1", b'{"everything":true}')
        await third.wait_until(lambda: bool(third.wakes))
        assert (len(first.wakes), second.wakes, len(third.wakes)) == (1, [], 1)
        await other.close()


async def test_without_notify_only_this_process_is_woken(server: ValkeyServer) -> None:
    first, second = WakeRecorder(), WakeRecorder()
    async with listening(server.url, first, notify=False) as backend, listening(server.url, second):
        await backend.publish(Wake(ready=True))
        await backend._link.command(b"PUBLISH", CHANNEL.encode(), b'{"everything":true}')
        await second.wait_until(lambda: bool(second.wakes))
        assert (first.wakes, second.wakes) == ([Wake(ready=True)], [Wake(everything=True)])


async def test_publishing_needs_no_answer(server: ValkeyServer) -> None:
    """Also if the server does not answer at all. A refusal is not noticed."""
    backend = RedisBackend(server.url)
    await backend.publish(Wake(ready=True))
    await backend.open()
    server.freeze()
    async with asyncio.timeout(2):
        for _ in range(20):
            await backend.publish(Wake(ready=True))
    server.thaw()
    assert await backend.now() > 0
    assert server.call("INFO", "commandstats").count(b"cmdstat_publish:calls=20,") == 1
    await backend.close()


async def test_a_wake_up_that_is_combined_of_many_makes_room_for_others(server: ValkeyServer) -> None:
    """The caller collects what changes while it waits."""
    backend = RedisBackend(server.url)
    await backend.open()
    began = asyncio.get_running_loop().time()
    for _ in range(11):
        await backend.publish(Wake(ready=True, times=100))
    assert asyncio.get_running_loop().time() - began > 10 / wakeups.WHEN_BUSY * 0.9
    await backend.close()


def test_a_long_wake_up_becomes_a_short_one() -> None:
    long = Wake(sender="me", items=tuple(("t", f"item-{number}") for number in range(5000)))
    assert len(short_wake(long)) < 100 < MOST_BYTES
    assert decode_wake(short_wake(long)) == Wake(sender="me", ready=True, everything=True)
    assert msgspec.json.decode(short_wake(Wake(ready=True))) == {"ready": True}


def test_a_few_lone_wake_ups_are_sent_at_once() -> None:
    """None of them is suspended."""
    sent: list[bytes] = []

    async def send(payload: bytes) -> None:
        sent.append(payload)

    publisher = wakeups.redis_publisher(send)
    for _ in range(wakeups.AT_ONCE):
        with pytest.raises(StopIteration):
            publisher.publish(Wake(ready=True)).send(None)
    assert len(sent) == wakeups.AT_ONCE
