"""The settings of an app (SPEC §4). Mistakes are refused at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from treadle import Client, InputError, MemoryBackend, Treadle


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"poll_intervall": 1}, "no setting 'poll_intervall': did you mean 'poll_interval'"),
        ({"xyz": 1}, "no setting 'xyz': there are .*clock, codec"),
    ],
)
@pytest.mark.parametrize("kind", [Client, Treadle])
def test_an_unknown_setting_is_refused(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        kind(**settings)


@pytest.mark.parametrize(
    ("name", "close"),
    [("queue", "queues"), ("thread", "threads"), ("lifespn", "lifespan"), ("works", "work")],
)
def test_a_setting_of_the_worker_is_suggested_too(name: str, close: str) -> None:
    settings: Any = {name: 1}
    with pytest.raises(TypeError, match=f"no setting {name!r}: did you mean {close!r}"):
        Treadle(**settings)
    if close != "work":  # a client has none of these
        with pytest.raises(TypeError, match=f"no setting {name!r}: there are "):
            Client("memory://", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heartbeat": 6}, "heartbeat=6 is more than half of lease=10"),
        ({"lease": 0}, "lease=0.0 must be more than zero"),
        ({"poll_interval": -1}, "poll_interval=-1 must not be negative"),
        ({"drain": "5"}, "drain='5' must be seconds or a timedelta"),
        ({"notify": "redis://localhost"}, "notify='redis://localhost' is only for PostgreSQL"),
        ({"notify": "redis://:secret@host"}, r"notify='redis://:\*\*\*@host' is only for PostgreSQL"),
        (
            {"backend": "postgresql://host/db", "notify": "amqp://app:secret@host"},
            r"notify='amqp://app:\*\*\*@host' must be a URL of Redis \(redis://\) or NATS",
        ),
        ({"backend": "postgresql://host/db", "notify": 5}, "notify=5 must be True, False, a URL or a PubSub"),
        ({"backend": MemoryBackend(), "notify": "redis://host"}, "give it to the backend itself"),
    ],
)
def test_a_bad_setting_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Treadle(**settings)


def test_the_default_heartbeat_is_a_fifth_of_the_lease() -> None:
    assert Treadle(lease=timedelta(minutes=1))._core.settings.heartbeat == 12
    assert Treadle()._core.settings.heartbeat == 2
