"""The sync side has every verb of the async side, with the same arguments."""

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from treadle import Client, Handle, Treadle
from treadle.manual_lease import ClaimedLease
from treadle.operate.bulk import Bulk
from treadle.operate.dead_letters import DeadLetters
from treadle.operate.operator import Operator
from treadle.schedule import ScheduleHandle, Schedules
from treadle.sync import (
    BlockingVerb,
    SyncApp,
    SyncBulk,
    SyncClaimedLease,
    SyncClient,
    SyncDeadLetters,
    SyncHandle,
    SyncOperator,
    SyncScheduleHandle,
    SyncSchedules,
)

PAIRS: list[tuple[type[Any], type[Any]]] = [
    (Operator, SyncOperator),
    (Client, SyncClient),
    (Treadle, SyncApp),
    (Handle, SyncHandle),
    (DeadLetters, SyncDeadLetters),
    (Bulk, SyncBulk),
    (Schedules, SyncSchedules),
    (ScheduleHandle, SyncScheduleHandle),
    (ClaimedLease, SyncClaimedLease),
]

# Plain attributes and methods: code that is not async uses them as they are.
PLAIN: dict[type[Any], set[str]] = {
    Operator: {"has_limit", "store_clock", "stores_away", "values"},
    Client: {
        *("backend", "elsewhere", "has_limit", "metrics", "register", "store_clock", "stores_away", "sync"),
        *("types", "values"),
    },
    Treadle: {
        *("active", "backend", "elsewhere", "has_limit", "metrics", "register", "replace", "stats"),
        *("store_clock", "stores_away", "sync", "types", "values"),
    },
    Schedules: {"add", "remove", "run_now"},  # of the package
    ClaimedLease: {"attempt", "headers", "id", "tenant", "type"},  # attributes of the instance
    Handle: {"existing", "id"},
    ScheduleHandle: {"name"},
}


def verbs() -> Iterator[Any]:
    for asynchronous, sync in PAIRS:
        names = {name for name in dir(asynchronous) if not name.startswith("_")}
        for name in sorted(names - PLAIN.get(asynchronous, set())):
            yield pytest.param(asynchronous, sync, name, id=f"{asynchronous.__name__}.{name}")


@pytest.mark.parametrize(("asynchronous", "sync", "name"), list(verbs()))
def test_a_verb_has_a_sync_side(asynchronous: type[Any], sync: type[Any], name: str) -> None:
    hint = f"add `{name} = blocking({asynchronous.__name__}.{name})` to {sync.__name__} in treadle/sync.py"
    assert hasattr(sync, name), hint
    ours, theirs = inspect.getattr_static(asynchronous, name), inspect.getattr_static(sync, name)
    properties = (property, functools.cached_property)
    assert isinstance(theirs, properties) == isinstance(ours, properties)
    if isinstance(ours, properties):
        return
    if isinstance(theirs, BlockingVerb):
        assert theirs.verb is ours, f"{sync.__name__}.{name} calls another verb"
        return
    wanted, own = inspect.signature(ours).parameters.values(), inspect.signature(theirs).parameters.values()
    assert [(each.name, each.kind, each.default) for each in own] == [
        (each.name, each.kind, each.default) for each in wanted
    ]


def test_no_verb_is_left_async() -> None:
    for _, sync in PAIRS:
        for name in dir(sync):
            assert not inspect.iscoroutinefunction(inspect.getattr_static(sync, name)), name


def test_all_pairs_are_known() -> None:
    """A new class with async methods that users get needs a sync side too."""
    app = Treadle()
    for name in dir(app):
        if not name.startswith("_") and name not in PLAIN[Treadle] | {"worker", "work"}:
            value = getattr(app, name)
            assert callable(value) or type(value) in [pair[0] for pair in PAIRS], name
