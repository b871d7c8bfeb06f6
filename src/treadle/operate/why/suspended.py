"""Suspended: what an item waits for whose handler sleeps, or waits for a signal or for its children."""

from __future__ import annotations

from treadle.base.wording import counted_names, duration, listed, plain
from treadle.item import StepRecord
from treadle.why import Reason

from .blocked import open_prerequisites
from .facts import ItemFacts
from .wording import command, item_name, tenant_option, until_text


def suspended_reasons(facts: ItemFacts) -> list[Reason]:
    """A reason for each wait that is not over."""
    return [_reason(facts, wait) for wait in facts.waits]


def _reason(facts: ItemFacts, wait: StepRecord) -> Reason:
    item, now = facts.explained.item, facts.explained.now
    tenant, name = tenant_option(item.tenant), plain(wait.name)
    if wait.kind == "sleep":
        until = now if wait.until is None else wait.until
        text = f"it sleeps (step {name}) and goes on {until_text(now, until)}"
        fix = command("trigger", item.id, tenant=tenant)
        return Reason(kind="sleeps", text=text, until=wait.until, refs=(wait.name,), fix=fix)
    since = duration(max(now - wait.at, 0.0))
    if wait.kind == "children":
        text = f"it has waited for its children (step {name}) for {since}"
        join = facts.joins.get(wait.signal)
        if join is None:
            return Reason(kind="dependency", text=text)
        open = open_prerequisites(join)
        text += f": {join.met:,} of {len(join.item.after):,} ended"
        if open:
            text += f", waits for {listed(item_name(each.id, each.type, each.status) for each in open)}"
        return Reason(kind="dependency", text=text, refs=tuple(each.id for each in open))
    limit = "without a limit"
    if wait.until is not None:
        limit = f"and goes on without it {until_text(now, wait.until)}"
    text = f"it has waited for the signal {plain(wait.signal)} for {since}, {limit}"
    if facts.mailbox:
        text += f"; in its mailbox, under other names: {counted_names(facts.mailbox)}"
    fix = command("signal", item.id, wait.signal, "JSON", tenant=tenant)
    return Reason(kind="waits_for_signal", text=text, until=wait.until, refs=(wait.signal,), fix=fix)
