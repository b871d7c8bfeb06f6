"""Wake-ups that treadle did not write: any role that may write to the channel can send them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from treadle.backends.postgres.pubsub_wakeups import PubSubWakeups
from treadle.backends.postgres.sealing import UNSEALED_WAKE, WakeSeal
from treadle.backends.postgres.wakeups import PostgresListener
from treadle.backends.sqlite.wakeups import _wakes  # pyright: ignore[reportPrivateUsage]
from treadle.engine.run.built_in import met_dependency
from treadle.errors import DecodeError
from treadle.item import Lease, Wake
from treadle.ports import memory_pubsub
from treadle.ports.pointers import read_pointer
from treadle.ports.wakeups import PortsSubscription
from treadle.testing.contract.wakeups import WakeRecorder

HOSTILE = {
    "arrays": "[" * 7900,
    "objects": '{"a":' * 1500,
    "deep field": '{"other":' + "[" * 3900 + "]" * 3900 + "}",
    "deep ref": '{"items":[' + "[" * 3900 + "]" * 3900 + "]}",
    "wrong type": '{"items":7}',
    "no JSON": "\x00",
}


@pytest.fixture(params=HOSTILE.values(), ids=HOSTILE.keys())
def hostile(request: pytest.FixtureRequest) -> str:
    text: str = request.param
    return text


async def test_a_hostile_notification_is_ignored(hostile: str) -> None:
    """The listener goes on, and delivers what was sealed with the key of the schema."""
    received: list[Wake] = []
    seal = WakeSeal()
    seal.use("key")
    listener = PostgresListener(_no_connection, "treadle", seal)
    listener._receivers.add(received.append)  # pyright: ignore[reportPrivateUsage]
    notify: Callable[[object, int, str, object], None] = listener._on_notify  # pyright: ignore[reportPrivateUsage]
    notify(None, 1, "treadle", hostile)
    assert received == []
    notify(None, 1, "treadle", UNSEALED_WAKE)
    notify(None, 1, "treadle", seal.sealed(Wake(items=(("t", "a"),))))
    assert received == [Wake(ready=True), Wake(items=(("t", "a"),))]


async def test_a_hostile_message_of_another_server_is_ignored(hostile: str) -> None:
    """Nobody but treadle sends wake-ups there, so not even an unsealed one is read."""
    seal, pubsub = WakeSeal(), memory_pubsub()
    seal.use("key")
    wakeups = PubSubWakeups(pubsub, seal, owned=False)
    recorder = WakeRecorder()
    await wakeups.subscribe(recorder)
    for text in (hostile, UNSEALED_WAKE, "x" * 10_000_000):
        pubsub.publish(text)
    await wakeups.publish(Wake(items=(("t", "a"),)))
    await recorder.wait_for({("t", "a")})
    assert recorder.wakes == [Wake(items=(("t", "a"),))]
    await wakeups.close()


async def _no_connection() -> None:  # type: ignore[misc]
    raise AssertionError("it does not listen")


def test_a_hostile_message_in_a_pipe_is_ignored(hostile: str) -> None:
    assert _wakes([hostile.encode(), b'{"ready":true}']) == [Wake(ready=True)]


async def test_a_hostile_message_of_a_port_is_ignored(hostile: str) -> None:
    received: list[Wake] = []
    subscription = PortsSubscription(received.append)
    subscription.receive(hostile)
    subscription.receive('{"ready":true}')
    await asyncio.sleep(0)
    assert received == [Wake(ready=True)]
    assert read_pointer(hostile) is None


def test_a_hostile_dependency_cannot_be_decoded(hostile: str) -> None:
    """A worker settles it as undecodable. It used to stop the claims of the worker."""
    lease = Lease("a", "default", 1, "treadle.dependency", hostile.encode(), 1, "a")
    with pytest.raises(DecodeError):
        met_dependency(lease)
