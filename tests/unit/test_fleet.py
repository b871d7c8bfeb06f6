"""Fleet: who is alive, who claims items, and who serves what."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from treadle.item import WorkerState
from treadle.store.fleet import Fleet, last_beat
from treadle.worker_info import WorkerInfo

NOW = 1_800_000_000.0


def worker(
    id: str, *, until: float = 8.0, types: tuple[str, ...] | None = ("a",), **info: Any
) -> WorkerState:
    return WorkerState(id, NOW + until, types, 0, WorkerInfo(lease=10.0, **info) if info else None)


FLEET = Fleet(
    [
        worker("plain"),
        worker("mail", types=None, queues=("mail",), tenants=("acme",)),
        worker("stops", draining=True, queues=("bulk",)),
        worker("by hand", manual=True),
        worker("pressed", types=("b",), pressed_until=NOW + 1),
        worker("pressed before", types=(), pressed_until=NOW),
        worker("blocked", types=(), blocked_since=NOW - 9, draining=True),
        worker("lapsed", until=0.0, types=("c",)),
    ],
    NOW,
)


def ids(workers: list[WorkerState]) -> list[str]:
    return [each.id for each in workers]


def test_each_worker_stands_in_one_way() -> None:
    assert {each.id: FLEET.standing(each) for each in FLEET.workers} == {
        "plain": "alive",
        "mail": "alive",
        "stops": "draining",
        "by hand": "manual",
        "pressed": "pressed",
        "pressed before": "alive",
        "blocked": "blocked",
        "lapsed": "silent",
    }


def test_those_that_stop_and_manual_leases_are_alive_but_claim_nothing() -> None:
    assert ids(FLEET.silent) == ["lapsed"]
    assert ids(FLEET.blocked) == ["blocked"]
    assert ids(FLEET.live) == ids(list(FLEET.workers[:-1]))
    assert ids(FLEET.taking) == ["plain", "mail", "pressed", "pressed before"]


def test_a_worker_that_does_not_say_what_it_serves_may_serve_anything() -> None:
    assert ids(FLEET.serving(type="a")) == ["plain", "mail"]
    assert ids(FLEET.serving(type="a", queue="bulk")) == ["plain"]
    assert ids(FLEET.serving(type="a", queue="mail", tenant="beta")) == ["plain"]
    assert ids(FLEET.serving(type="c")) == ["mail"]
    assert not FLEET.serves(type="c", tenant="beta")
    assert FLEET.serves(queue="bulk")


def test_the_last_heartbeat_came_a_lease_before_it_lapses() -> None:
    found = {each.id: last_beat(each) for each in FLEET.workers}
    assert (found["plain"], found["mail"], found["lapsed"]) == (None, NOW - 2, None)


def test_what_is_left_behind_by_workers_that_stop() -> None:
    assert FLEET.left_behind(["pressed"]) == ""  # `mail` has every type
    assert FLEET.left_behind(["by hand"]) == ""  # it claims nothing more anyway
    a, b = worker("a", types=("a", "treadle.group")), worker("b", types=("b",), queues=("mail",))
    two = Fleet([a, b, worker("gone", until=-1.0)], NOW)
    assert two.left_behind(["a"]) == "no other worker has a; the others serve only queue mail"
    assert two.left_behind(["b"]) == "no other worker has b"
    assert two.left_behind(["a", "b"]) == "no other worker takes items"
    mail, bulk = worker("a", queues=("mail",)), worker("b", queues=("bulk",))
    assert Fleet([mail, bulk], NOW).left_behind(["b"]) == "no other worker serves queue bulk"
    assert Fleet([a, a], NOW).left_behind(["none"]) == ""


FIRST_READERS = """
import threading
import msgspec._utils as fields
from treadle.worker_info import UndecodableType, WorkerInfo, decode_worker_info, encode_worker_info

data = encode_worker_info(WorkerInfo(undecodable={"add": UndecodableType(1, "", 0.0)}))
read, between, may_go_on = [], threading.Event(), threading.Event()
of_a_field = fields._forward_ref

def slowly(value):
    read.append(value)
    if len(read) > len(WorkerInfo.__annotations__):
        between.set()
        may_go_on.wait(0.1)
    return of_a_field(value)

fields._forward_ref = slowly
first = threading.Thread(target=decode_worker_info, args=[data])
first.start()
while first.is_alive() and not between.wait(0.01):
    pass
assert decode_worker_info(data)
may_go_on.set()
first.join()
"""


@pytest.mark.usefixtures("processes")
def test_threads_may_read_what_workers_say_for_the_first_time_at_once() -> None:
    """msgspec reads the fields of a class when it is first used. A second thread that comes in between finds
    half of them, and the process crashes: each of several stores reads in a thread of its own."""
    subprocess.run([sys.executable, "-c", FIRST_READERS], check=True, timeout=50)
