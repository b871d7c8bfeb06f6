"""The command lines that `app.why` proposes are commands of the shell."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from tests.cli.calling import all_commands
from treadle.item import (
    GROUP_MARK,
    NEVER,
    Count,
    ItemState,
    Order,
    Schedule,
    Status,
    StepRecord,
    WorkerState,
)
from treadle.item_facts import Explanation, Overview, Prerequisite
from treadle.operate.why.facts import GroupFacts, ItemFacts, QueueFacts, ScheduleFacts
from treadle.operate.why.fleet import WorkerFleet
from treadle.operate.why.meaning import reasons_of
from treadle.problems import find_problems
from treadle.worker_info import WorkerInfo

NOW = 1_794_820_000.0
COMMAND = re.compile(r"treadle [a-z].*?(?=; |$)")


def item(status: Status, **fields: Any) -> ItemState:
    return ItemState(**{"id": "a1", "type": "mail.send", "tenant": "acme", "status": status, **fields})


def facts(status: Status, *, workers: tuple[WorkerState, ...] = (), **given: Any) -> ItemFacts:
    known = {name: given.pop(name) for name in list(given) if name in Explanation.__struct_fields__}
    own = {name: given.pop(name) for name in list(given) if name in ("causes", "group", "waits", "paused")}
    explained = Explanation(now=NOW, item=item(status, **given), workers=workers, **known)
    return ItemFacts(explained=explained, **own)


def worker(**info: Any) -> WorkerState:
    return WorkerState("w1", NOW + 9, ("mail.send",), 1, WorkerInfo(**info))


PAUSES = tuple(
    Order(kind="pause", **given)
    for given in (
        {"queue": "mail"},
        {"queue": "mail", "tenant": "acme"},
        {"type": "mail.send"},
        {"type": "mail.send", "tenant": "acme"},
        {"tenant": "acme"},
    )
)
SCHEDULE = Schedule(name="nightly", next_at=NOW + 9, paused=True)
LOST = Prerequisite("p1", "dead", "page")
FACTS: list[Any] = [
    facts("ready"),
    facts("ready", paused=PAUSES),
    facts("ready", workers=(worker(queues=("defualt",)),)),
    facts("ready", workers=(worker(tenants=("beta",)),)),
    facts("ready", workers=(worker(),), lane_holder="b1"),
    facts("scheduled", due_at=NOW + 9),
    facts("scheduled", due_at=NOW + 9, losses=3, freed=True),
    facts("scheduled", due_at=NOW + 9, waits=(StepRecord(name="nap", kind="sleep", until=NOW + 9),)),
    facts("scheduled", due_at=NEVER, waits=(StepRecord(name="a", kind="signal", signal="it is ok"),)),
    facts("blocked", waiting_for=("p1",), prerequisites=(Prerequisite("p1", "missing"),)),
    facts("blocked", verdict="unsatisfiable", prerequisites=(LOST,)),
    facts("running", workers=(worker(),), worker="w1"),
    facts("running", workers=(worker(blocked_since=NOW - 9),), worker="w1"),
    facts("cancelled"),
    facts("dead", reason="exhausted", mark="f00d"),
    facts("dead", reason="undecodable", mark="f00d"),
    facts("dead", reason="unsatisfiable", causes=(LOST,)),
    facts("dead", reason="unsatisfiable", causes=(Prerequisite("p2", "cancelled"),)),
    facts("dead", reason="unsatisfiable", causes=(Prerequisite(f"{GROUP_MARK}g1", "dead"),)),
    GroupFacts(id="g1", tenant="acme", open=1, members=(item("ready"),)),
    GroupFacts(id="g1", tenant="acme", open=0, failed=1, cause=item("dead", reason="exhausted")),
    QueueFacts(name="mail", now=NOW, paused=PAUSES),
    ScheduleFacts(name="nightly", tenant="acme", now=NOW, stored=SCHEDULE, orphaned=True),
]
FLOODS = [
    Overview(
        now=NOW,
        counts=(
            Count("acme", "q", "a b", "ready", 9_000),
            Count(tenant, "q", type, "ready", 10),
        ),
        workers=(WorkerState("w1", NOW + 9, None, 0),),
    )
    for tenant, type in (("beta", "a b"), ("acme", "c"))
]
FLOOD_FIXES = [
    problem.fix
    for each in FLOODS
    for problem in find_problems(each, WorkerFleet(each.workers, NOW), 300.0, waits={"q": 99.0})
]
FIXES = sorted(
    {line for each in FACTS for reason in reasons_of(each) for line in COMMAND.findall(reason.fix)}
    | {line for fix in FLOOD_FIXES for line in COMMAND.findall(fix)}
)


def test_enough_of_them_are_looked_at() -> None:
    verbs = {shlex.split(line)[1] for line in FIXES}
    assert verbs == {
        *("cancel", "check", "dead", "group", "repair", "requeue", "resume", "schedules", "signal"),
        *("hold", "trigger", "why", "worker", "pause", "update"),
    }


@pytest.mark.parametrize("line", FIXES)
def test_a_proposed_command_can_be_called(line: str) -> None:
    _, *words = shlex.split(line)
    found = all_commands()
    while hasattr(found, "commands") and words[0] in found.commands:
        found, words = found.commands[words[0]], words[1:]
    found.make_context(line, words)
