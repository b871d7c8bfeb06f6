"""Ended: how an item ended, and which members keep its group open. Also: there is no such item."""

from __future__ import annotations

from typing import assert_never

from treadle.base.wording import first_line, listed, plain, plural
from treadle.item import GROUP_MARK, GROUP_TYPE, LIMIT_REACHED, DeathReason, ItemState, StepRecord
from treadle.store.rules.watching import died_unrun
from treadle.why import Reason

from .facts import GroupFacts, ItemFacts, NoItem
from .fleet import FIX
from .wording import command, item_name, killed_text, run_again, since_text, tenant_option, worker_name


def ended_reasons(facts: ItemFacts) -> list[Reason]:
    """The reasons of an item that has ended, and of its group if that is open or has failed."""
    reasons = [_ended(facts)]
    if facts.group is not None:
        reasons += group_reasons(facts.group)
    return reasons


def _ended(facts: ItemFacts) -> Reason:
    explained = facts.explained
    item, now = explained.item, explained.now
    when = "" if item.ended_at is None else f" {since_text(now, item.ended_at)}"
    where = "" if item.worker is None else f" on {worker_name(item.worker, explained.workers)}"
    match item.status:
        case "success":
            by = (
                f"{where}, attempt {max(1, item.attempt):,}" if item.worker is not None else " by an operator"
            )
            return Reason(kind="ended", text=f"it succeeded{when}{by}")
        case "cancelled":
            text = f"it was cancelled{when}"
            if item.error is not None:
                because = item.error_type == LIMIT_REACHED
                text += f"{':' if because else '; its last attempt had failed:'} {first_line(item.error)}"
            again = command("requeue --cancelled", item.id, tenant=tenant_option(item.tenant))
            return Reason(kind="ended", text=text, fix=f"to run it again: {again}")
        case _:
            death = _death(item) if facts.unreadable is None else _unreadable(facts.unreadable)
            text = f"it died{when}{'' if died_unrun(item) else where}: {death}"
            own = GROUP_MARK + item.id  # the item that closes a nested group waits for that group
            causes = [each for each in facts.causes if each.id != own]
            names = listed(item_name(each.id, each.type, each.status) for each in causes)
            text += f": {names}" if causes else ""
            killed = _killed_workers(item)
            text += f": {listed(worker_name(each, explained.workers) for each in killed)}" if killed else ""
            if item.error is not None and not facts.causes and item.reason != "lease_lost":
                text += f"; the last error: {first_line(item.error)}"
            text += f"; {facts.releases}" if facts.releases else ""
            text += _undone(facts)
            undos = (each.id for each in facts.dead_undos)
            refs = (*(each.id.removeprefix(GROUP_MARK) for each in causes), *killed, *undos)
            return Reason(kind="ended", text=text, refs=refs, fix=_requeue(facts))


def _killed_workers(item: ItemState) -> list[str]:
    """The workers that died while they ran an item that is dead because of that: the last one first."""
    if item.reason != "lease_lost":
        return []
    lost = [each.worker for each in reversed(item.history[:-1]) if each.error_type == "LeaseLost"]
    return list(dict.fromkeys(each for each in lost[: item.losses] if each))


def _death(item: ItemState) -> str:
    reason: DeathReason = item.reason or "aborted"
    match reason:
        case "exhausted":
            return (
                f"all of its {plural(item.failures, 'attempt')} failed" if item.failures > 1 else "it failed"
            )
        case "aborted":
            return "its handler, or `on_failure`, said not to try again"
        case "expired":
            return "its deadline passed"
        case "lease_lost":
            return killed_text(item.losses)
        case "unsatisfiable" if item.type == GROUP_TYPE:
            return "its group has failed"
        case "unsatisfiable":
            return "what it waited for can no longer come"
        case "undecodable":
            return "its input or its result cannot be read or written"
        case "bad_result" if item.error_type in ("StepError", "TooManySteps"):
            return "its handler used steps in a way that cannot work"
        case "bad_result":
            return "its handler returned something that is no result"
        case "unknown_type":
            return f"no live worker had {plain(item.type)} for too long"
        case _:  # pragma: no cover
            assert_never(reason)


def _unreadable(step: StepRecord) -> str:
    if step.kind == "signal":
        return f"the value of the signal {plain(step.signal)} is not of the type that its handler waits for"
    return f"the code cannot read what its step {plain(step.name)} recorded"


def _undone(facts: ItemFacts) -> str:
    if not facts.undone:
        return ""
    steps = f"{'step' if len(facts.undone) == 1 else 'steps'} {listed(facts.undone)}"
    text = f"; undos were queued for its {steps}, which a requeue runs again"
    if facts.dead_undos:
        text += f"; of these undos died {listed(item_name(each.id, each.type) for each in facts.dead_undos)}"
    return text


def _read_again(item: ItemState, step: StepRecord) -> str:
    """How an item goes on that died because a step cannot be read."""
    tenant = tenant_option(item.tenant)
    again = command("requeue", item.id, tenant=tenant, from_step=step.name)
    if step.kind == "signal":
        return (
            f"{again}; then send it again: {command('signal', item.id, step.signal, 'JSON', tenant=tenant)}"
        )
    plainly = command("requeue", item.id, tenant=tenant)
    upcast = f"turn old values into those of today, with Step(upcast=...), then: {plainly}"
    return f"{upcast}; or run that step and all after it again: {again}"


def _requeue(facts: ItemFacts) -> str:
    fix = _requeue_item(facts)
    if not facts.dead_undos:
        return fix
    first = facts.dead_undos[0]
    return f"undo it first: {command('requeue', first.id, tenant=tenant_option(first.tenant))}; then: {fix}"


def _requeue_item(facts: ItemFacts) -> str:
    item = facts.explained.item
    tenant = tenant_option(item.tenant)
    cause = facts.root or next(iter(facts.causes), None)
    again = command("requeue", item.id, tenant=tenant)
    if cause is not None:
        first = f"run what died first: {run_again(cause, tenant)}"
        return first if item.reason == "unsatisfiable" else f"{first}; then: {again}"
    if item.reason == "lease_lost":
        return f"it may end the next worker too: see the logs of these workers before you run {again}"
    if facts.unreadable is not None:
        return _read_again(item, facts.unreadable)
    if item.reason == "undecodable":
        return f"{FIX}; then: {again}"
    alike = command("dead requeue --mark", item.mark, tenant=tenant) if item.mark else ""
    return f"{again}; all that died alike: {alike}" if alike else again


def group_reasons(group: GroupFacts) -> list[Reason]:
    """Why a group is open, or has failed."""
    failed = [_group_failed(group, group.cause)] if group.failed and group.cause is not None else []
    return [*failed, _open(group)] if group.open else failed or [_gone(group)]


def _group_failed(group: GroupFacts, cause: ItemState) -> Reason:
    died = f"{plural(group.failed, 'member')} died, first" if group.failed > 1 else "a member died:"
    text = f"group {plain(group.id)} has failed: {died} {item_name(cause.id, cause.type)}: {_death(cause)}"
    if cause.error is not None:
        text += f"; {first_line(cause.error)}"
    fix = f"to run what died again: {command('repair', group.id, tenant=tenant_option(group.tenant))}"
    return Reason(kind="group_failed", text=text, refs=(cause.id,), fix=fix)


def _gone(group: GroupFacts) -> Reason:
    when = "" if group.ended_at is None else f" {since_text(group.now, group.ended_at)}"
    return Reason(kind="ended", text=f"group {plain(group.id)} ended{when}; its root is not stored any more")


def _open(group: GroupFacts) -> Reason:
    names = listed((item_name(each.id, each.type, each.status) for each in group.members), total=group.open)
    text = f"group {plain(group.id)} is open: {plural(group.open, 'member')} "
    text += f"{'has' if group.open == 1 else 'have'} not ended: {names}"
    fix = command("group", group.id, tenant=tenant_option(group.tenant))
    return Reason(kind="open", text=text, refs=tuple(each.id for each in group.members), fix=fix)


def no_item_reasons(facts: NoItem) -> list[Reason]:
    """No item has this id."""
    whose = "no item" if facts.tenant is None else f"no item of tenant {plain(facts.tenant)}"
    if facts.away:
        text = f"{whose} in the stores that answer has the id {plain(facts.id)}: "
        text += f"{listed(sorted(facts.away))} may have it"
        return [Reason(kind="unknown", text=text, refs=(facts.id,), fix="treadle stores")]
    text = f"{whose} has the id {plain(facts.id)}: it never existed, is another tenant's, was pruned "
    text += "or deleted, or the transaction that submits it has not been committed"
    return [Reason(kind="unknown", text=text, refs=(facts.id,), fix="check the id, the tenant and the store")]
