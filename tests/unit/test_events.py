"""Events are frozen values, compared by value and matched by class. All item events share some fields."""

from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import get_args

import pytest

from treadle import events
from treadle.events import Event, ItemEvent, from_lease
from treadle.item import Lease

COMMON = ("id", "type", "group_id", "tenant", "attempt", "parent", "dependencies", "at")

EXTRA: dict[type[ItemEvent], dict[str, object]] = {
    events.Queued: {},
    events.Released: {},
    events.Started: {},
    events.Suspended: {"until": 20.0, "signal": "approval"},
    events.Resumed: {},
    events.Succeeded: {"result": 3},
    events.Failed: {"error": KeyError("k"), "will_retry": True},
    events.Deferred: {"run_at": 20.0},
    events.Expired: {"deadline": 9.0},
    events.Dead: {"reason": "exhausted", "error": KeyError("k"), "text": "ValueError: no"},
    events.Cancelled: {"error": "LimitReached: no room"},
    events.LeaseLost: {"reason": "cancelled"},
    events.GroupDone: {"result": [1], "failed": 2},
}

LEASE = Lease(
    id="b",
    tenant="acme",
    token=7,
    type="math.add",
    input=b"",
    attempt=2,
    group_id="a",
    parent="p",
    after=("c",),
)


def test_the_union_names_every_event() -> None:
    workers = {events.WorkerStarted, events.WorkerStopping, events.WorkerStopped}
    assert set(get_args(Event)) == set(EXTRA) | workers


@pytest.mark.parametrize("cls", EXTRA, ids=lambda cls: cls.__name__)
def test_an_event_of_a_lease_has_its_fields(cls: type[ItemEvent]) -> None:
    event = from_lease(cls, LEASE, 10.0, **EXTRA[cls])
    assert [getattr(event, name) for name in COMMON] == ["b", "math.add", "a", "acme", 2, "p", ("c",), 10.0]
    assert {name: getattr(event, name) for name in EXTRA[cls]} == EXTRA[cls]
    assert tuple(field.name for field in fields(event)) == (*COMMON, *EXTRA[cls])
    assert event == from_lease(cls, LEASE, 10.0, **EXTRA[cls])


@pytest.mark.parametrize("cls", get_args(Event), ids=lambda cls: cls.__name__)
def test_events_are_frozen_and_slotted(cls: type[object]) -> None:
    assert is_dataclass(cls)
    extra = EXTRA.get(cls)  # type: ignore[call-overload]
    event = cls("w", 1.0) if extra is None else from_lease(cls, LEASE, 1.0, **extra)  # type: ignore[call-arg, type-var]
    assert not hasattr(event, "__dict__")
    with pytest.raises(FrozenInstanceError):
        event.at = 2.0


def test_a_hook_can_match_on_events() -> None:
    error = ValueError("boom")
    event: Event = from_lease(events.Failed, LEASE, 1.0, error=error, will_retry=False)
    match event:
        case events.Failed(id=id, will_retry=False, error=seen):
            assert (id, seen) == ("b", error)
        case _:
            pytest.fail("not matched")
