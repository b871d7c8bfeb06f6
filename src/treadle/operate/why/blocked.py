"""Blocked: what an item waits for, and what it waits for in vain."""

from __future__ import annotations

from typing import assert_never

from treadle.base.wording import listed, plain, plural
from treadle.item import GROUP_MARK, TERMINAL
from treadle.item_facts import Explanation, Prerequisite
from treadle.why import Reason

from .facts import ItemFacts
from .fleet import WorkerFleet
from .wording import command, item_name, run_again, since_text, tenant_option


def blocked_reasons(explained: Explanation) -> list[Reason]:
    """The reasons of an item that waits for others."""
    missing = _missing(explained)
    submitted = any(each.status != "missing" for each in explained.prerequisites)
    dependency = [_dependency(explained)] if submitted or not explained.item.waiting_for else []
    if not missing:
        return dependency
    not_submitted = _not_submitted(explained, missing)
    could_come = explained.open - len(missing)
    if explained.met + could_come < explained.need:  # those that are submitted are not enough
        return [not_submitted, *dependency]
    return [*dependency, not_submitted]


def _missing(explained: Explanation) -> list[str]:
    missing = [each.id for each in explained.prerequisites if each.status == "missing"]
    return missing or list(explained.item.waiting_for)


def open_prerequisites(explained: Explanation) -> list[Prerequisite]:
    """What it waits for and that has not ended, as far as it is listed."""
    ended = (*TERMINAL, "missing")
    return [each for each in explained.prerequisites if each.status not in ended]


def _dependency(explained: Explanation) -> Reason:
    waits_for = open_prerequisites(explained)
    total = len(explained.item.after)
    counts = "succeeded" if explained.counting == "success" else "ended"
    text = f"{explained.met:,} of {plural(total, 'prerequisite')} {counts}, needs {explained.need:,}"
    if waits_for:
        names = [item_name(each.id, each.type, each.status) for each in waits_for]
        # `open` counts all that can still count, those that were never submitted included.
        total_open = max(len(waits_for), explained.open - len(_missing(explained)))
        text += f"; waits for {listed(names, total=total_open)}"
    lost = [each for each in explained.prerequisites if _ended_in_vain(explained, each)]
    if lost:
        text += f"; not counted: {listed(item_name(each.id, each.type, each.status) for each in lost)}"
    return Reason(kind="dependency", text=text, refs=tuple(_id(each.id) for each in waits_for))


def _ended_in_vain(explained: Explanation, each: Prerequisite) -> bool:
    return each.status in ("dead", "cancelled") and explained.counting == "success"


def _not_submitted(explained: Explanation, missing: list[str]) -> Reason:
    item = explained.item
    names = listed(item_name(id) for id in missing)
    text = f"waits for {names}: {_was(missing)} never submitted, or pruned before this item was submitted"
    if item.deadline is None:
        text += "; it has no deadline, so it waits for as long as that takes"
    fix = f"submit {plain(_id(missing[0]))}, or give up: {_cancel(explained)}"
    return Reason(
        kind="not_submitted",
        text=text,
        until=item.deadline,
        refs=tuple(_id(each) for each in missing),
        fix=fix,
    )


def _was(names: list[str]) -> str:
    return "it was" if len(names) == 1 else "they were"


def doomed_reasons(facts: ItemFacts) -> list[Reason]:
    """The reasons of an item that can only end dead: also who could settle it."""
    return [_doomed(facts), *_unsettled(facts.explained)]


def _doomed(facts: ItemFacts) -> Reason:
    explained = facts.explained
    item, now, verdict = explained.item, explained.now, explained.verdict
    waits = "it can only end dead, and waits for a worker to settle it"
    match verdict:
        case "expired" | None:
            passed = "" if item.deadline is None else f" {since_text(now, item.deadline)}"
            return Reason(kind="doomed", text=f"its deadline passed{passed}: {waits}")
        case "unsatisfiable":
            lost = [each for each in explained.prerequisites if _ended_in_vain(explained, each)]
            names = listed(item_name(each.id, each.type, each.status) for each in lost)
            text = f"what it waits for can no longer come{f': {names}' if lost else ''}; {waits}"
            ids = tuple(_id(each.id) for each in lost)
            cause = facts.root or next(iter(lost), None)
            fix = "" if cause is None else run_again(cause, tenant_option(item.tenant))
            return Reason(kind="doomed", text=text, refs=ids, fix=fix)
        case "unknown_type":
            text = f"no live worker had {plain(item.type)} for too long (unknown_type): {waits}"
            return Reason(kind="doomed", text=text, refs=(item.type,))
        case _:  # pragma: no cover
            assert_never(verdict)


def _unsettled(explained: Explanation) -> list[Reason]:
    """Doomed items are settled by a worker that has their type or, if none has, by any: of their queue and
    tenant. A pause does not matter."""
    item, fleet = explained.item, WorkerFleet(explained.workers, explained.now)
    if not fleet.taking:
        return [fleet.no_worker()]
    having = fleet.serving(type=item.type)
    _, missing = fleet.not_serving(
        having or fleet.taking, item.type if having else "", item.queue, item.tenant
    )
    return [] if missing is None else [missing]


def _cancel(explained: Explanation) -> str:
    return command("cancel", explained.item.id, tenant=tenant_option(explained.item.tenant))


def _id(name: str) -> str:
    return name.removeprefix(GROUP_MARK)
