"""`treadle bulk`: bulk actions, which go on without the command that started them."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final

import typer

from treadle.base.wording import capped
from treadle.bulk_action import BulkState
from treadle.bulk_runner import BulkRunner
from treadle.errors import NotFound
from treadle.operate.fleet_json import bulk_json
from treadle.store.rules.listing import LARGEST_PAGE

from .change_items import skipped_text, waits_text
from .exit_codes import REFUSED
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


# ------------------------------------------------------------------------------------------------- look


async def bulk(
    shell: Shell,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LARGEST_PAGE, help="the most bulk actions")
    ] = 20,
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
                action.asked,
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
    shell.print(f"{action.id}  {action.verb} {action.asked}")
    by = f" by {action.actor}" if action.actor else ""
    reason = f" ({action.reason})" if action.reason else ""
    shell.print(f"started {ago(action.started_at, now)}{by}{reason}")
    total = capped(action.total, action.more)
    text = f"{action.state.replace('_', ' ')}: {action.matched:,} of {total} looked at"
    text += f", {action.changed:,} changed{skipped_text(', skipped', Counter(dict(action.skipped)))}"
    if action.state == "canary":
        text += f"; {action.canary_succeeded:,} of the first {action.canary_tried:,} have succeeded, "
        text += "and the others follow when all have"
    shell.print(text, _colour(action))
    if action.waits:
        shell.print(waits_text(shell, action), "yellow")
    if action.error:
        shell.print(f"error: {action.error}", "red")
    if action.held_back_by:
        ids = [each.id for each in action.held_back_by[:MOST_IDS]]
        shell.print(f"not succeeded: {', '.join(ids)}", "red")
    for each in action.refused:
        shell.print(f"  {each.id}  {each.message}", "dim")
