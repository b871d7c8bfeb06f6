"""`treadle bulk`, and `--background`: bulk actions, which go on without the command that started them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final, cast

import typer

from treadle.base.wording import capped, plural
from treadle.bulk_action import ActionVerb, BulkState
from treadle.bulk_runner import BulkRunner
from treadle.errors import InputError, NotFound
from treadle.item import Filter
from treadle.operate.bulk_portion import VERBS
from treadle.operate.fleet_json import bulk_json
from treadle.operate.portions import WantedItem
from treadle.operate.why.wording import command, tenant_option

from .bulk_verb import BulkVerb, skipped_text
from .exit_codes import REFUSED
from .filters import ItemFilters
from .selection import Selection, read_rate
from .shell import Shell, operator_command, operator_group
from .text import Cell, ago

COLOURS: Final = {"done": "green", "held_back": "red", "failed": "red", "stopped": "yellow"}
MOST_IDS: Final = 20

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="the id of a bulk action")]


def register(commands: typer.Typer) -> None:
    group = operator_group(commands, "bulk")(bulk)
    operator_command(group, "show")(bulk_show)
    operator_command(group, "run")(bulk_run)
    operator_command(group, "stop", changes=True)(bulk_stop)


# ------------------------------------------------------------------------------------------------ start


def check_background(verb: BulkVerb, selection: Selection) -> None:
    """Raise InputError if this cannot be a bulk action."""
    wrong = verb.foreground or ("" if verb.name in VERBS else verb.name)
    if wrong or selection.limit is not None:
        raise InputError(f"--background cannot be used with {wrong or '--limit'}")


async def start_background(
    shell: Shell,
    verb: BulkVerb,
    which: Filter | Sequence[WantedItem],
    selection: Selection,
    filters: ItemFilters,
    canary: int,
    canary_wait: float,
) -> int | None:
    """Start a bulk action for these items, and say how to follow it."""
    name = cast("ActionVerb", verb.name)
    where: dict[str, Any] = {}
    if isinstance(which, Filter):
        names = ("type", "queue", "workflow", "group_id", "key", "reason", "mark", "since")
        where = {name: value for name in names if (value := getattr(which, name)) is not None}
        where["everything"] = selection.everything
        if filters.until is not None:  # otherwise the action fixes it itself
            where["until"] = which.until
        if which.status != VERBS[name].usual or filters.status:
            where["status"] = which.status
    else:
        where = {"ids": which, "open": name == "delete"}
    if canary:
        where["canary_wait"] = canary_wait
    rate = read_rate(selection.rate)
    action = await shell.client.bulk.start(name, rate=rate, canary=canary, **where)
    if shell.json:
        shell.emit(bulk_json(action))
        return None
    shell.print(f"started {action.id}: {action.verb} {plural(action.total, 'item', action.more)}")
    shell.print(f"follow it with `{command('bulk show', action.id, tenant=_tenant(shell))}`", "dim")
    if action.waits:
        shell.warn(_waits_text(shell, action))
    return None


def _waits_text(shell: Shell, action: BulkState) -> str:
    return f"it waits: {action.waits}. `{command('bulk run', tenant=_tenant(shell))}` runs it here"


def _tenant(shell: Shell) -> str | None:
    return None if shell.tenant is None else tenant_option(shell.tenant)


# ------------------------------------------------------------------------------------------------- look


async def bulk(
    shell: Shell,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="the most bulk actions")] = 20,
) -> None:
    """List bulk actions, newest first: what `--background` and the dashboard have started."""
    actions = await shell.client.bulk.list(limit)
    if shell.json:
        for action in actions:
            shell.emit(bulk_json(action))
        return
    if not actions:
        shell.print("no bulk actions")
        return
    now = await shell.now()
    shell.table(
        ("ID", "VERB", "STATE", "CHANGED", "OF", "STARTED", "ACTOR", "WHICH"),
        [
            (
                action.id,
                action.verb,
                Cell(action.state, _colour(action)),
                f"{action.changed:,}",
                capped(action.total, action.more),
                ago(action.started_at, now),
                action.actor,
                action.where,
            )
            for action in actions
        ],
        numbers=("CHANGED", "OF"),
        keep=("ID", "STATE", "CHANGED"),
    )


def _colour(action: BulkState) -> str:
    return "yellow" if action.in_vain else COLOURS.get(action.state, "")


async def bulk_show(shell: Shell, id: IdArgument) -> int | None:
    """Show how far a bulk action is."""
    action = await shell.client.bulk.state(id)
    if action is None:
        raise NotFound(id, "bulk action")
    await _show(shell, action)
    return REFUSED if action.in_vain or action.state in ("failed", "held_back") else None


async def bulk_run(shell: Shell) -> None:
    """Run the bulk actions that have not ended, and return when all have: for fleets whose workers serve
    other queues or tenants."""
    await BulkRunner(shell.client).run(until_done=True)
    shell.print("all bulk actions have ended")


async def bulk_stop(shell: Shell, id: IdArgument) -> None:
    """End a bulk action. What it has changed stays changed, the rest stays as it is."""
    await _show(shell, await shell.client.bulk.stop(id))


async def _show(shell: Shell, action: BulkState) -> None:
    if shell.json:
        shell.emit(bulk_json(action))
        return
    now = await shell.now()
    shell.print(f"{action.id}  {action.verb} {action.where}")
    by = f" by {action.actor}" if action.actor else ""
    reason = f" ({action.reason})" if action.reason else ""
    shell.print(f"started {ago(action.started_at, now)}{by}{reason}")
    total = capped(action.total, action.more)
    text = f"{action.state.replace('_', ' ')}: {action.matched:,} of {total} looked at"
    text += f", {action.changed:,} changed{skipped_text(', skipped', Counter(dict(action.skipped)))}"
    shell.print(text, _colour(action))
    if action.waits:
        shell.print(_waits_text(shell, action), "yellow")
    if action.error:
        shell.print(f"error: {action.error}", "red")
    if action.held_back_by:
        ids = [each.id for each in action.held_back_by[:MOST_IDS]]
        shell.print(f"not succeeded: {', '.join(ids)}", "red")
    for each in action.refused:
        shell.print(f"  {each.id}  {each.message}", "dim")
