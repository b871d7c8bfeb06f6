"""`treadle pause`, `resume`, `prune`, and the commands inside `treadle schedules`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from treadle.errors import InputError, NotFound, ScheduleError
from treadle.ids import check_name
from treadle.schedule import stored_name
from treadle.wording import did_you_mean, listed, plural

from .completion import complete_queue, complete_schedule
from .exit_codes import REFUSED
from .names import queue_remark
from .shell import Shell, operator_command

PRUNED_AT_ONCE: Final = 1000

QueuesArgument = Annotated[
    list[str], typer.Argument(metavar="QUEUE", help="names of queues", autocompletion=complete_queue)
]
SchedulesArgument = Annotated[
    list[str],
    typer.Argument(metavar="NAME", help="names of schedules", autocompletion=complete_schedule),
]


def register(commands: typer.Typer, schedules: typer.Typer) -> None:
    operator_command(commands, "pause")(pause)
    operator_command(commands, "resume")(resume)
    operator_command(commands, "prune")(prune)
    operator_command(schedules, "pause")(pause_schedules)
    operator_command(schedules, "resume")(resume_schedules)
    operator_command(schedules, "trigger")(trigger_schedules)
    operator_command(schedules, "cancel")(cancel_schedules)


# ------------------------------------------------------------------------------------------------ queues


async def pause(shell: Shell, queues: QueuesArgument) -> None:
    """Stop handing out the items of queues, in the whole fleet. Running items go on."""
    await _set_paused(shell, queues, True)


async def resume(shell: Shell, queues: QueuesArgument) -> None:
    """Hand out the items of paused queues again."""
    await _set_paused(shell, queues, False)


async def _set_paused(shell: Shell, queues: list[str], paused: bool) -> None:
    for queue in [check_name(each, "QUEUE") for each in queues]:
        before = await shell.backend.paused()
        remark = await queue_remark(shell.client, queue) if paused else ""
        await (shell.client.pause(queue) if paused else shell.client.resume(queue))
        if shell.json:
            shell.emit({"queue": queue, "tenant": shell.tenant, "paused": paused})
        else:
            whose = "" if shell.tenant is None else f" for {shell.tenant}"
            shell.print(f"queue {queue} is {'paused' if paused else 'resumed'}{whose}")
        if remark:
            shell.warn(remark)
        if not paused:
            _remark_resumed(shell, queue, before)


def _remark_resumed(shell: Shell, queue: str, before: Sequence[tuple[str, str | None]]) -> None:
    """Say if the queue was not paused, or still is. before: the pauses, as they were."""
    if (queue, shell.tenant) not in before:
        names = {name for name, tenant in before if tenant == shell.tenant}
        hint = did_you_mean(queue, names, f"paused {listed(sorted(names))}" if names else "no queue was")
        shell.warn(f"queue {queue} was not paused: {hint}")
    others = [tenant for name, tenant in before if name == queue and tenant != shell.tenant]
    if shell.tenant is not None and None in others:
        shell.warn(f"queue {queue} is still paused for all tenants")
    elif shell.tenant is None and others:
        shell.warn(f"queue {queue} is still paused for {listed(sorted(filter(None, others)))}: give --tenant")


async def prune(
    shell: Shell,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="the most items")] = None,
) -> int | None:
    """Remove ended items whose retention has passed. Workers do it too, in small steps."""
    if shell.tenant is not None:
        raise InputError(
            "prune has no tenant: it removes what has outlived its `keep`, of all tenants, as workers do. "
            "Leave --tenant out"
        )
    pruned = 0
    while limit is None or pruned < limit:
        step = PRUNED_AT_ONCE if limit is None else min(PRUNED_AT_ONCE, limit - pruned)
        removed = await shell.backend.prune(step)
        pruned += removed
        if removed < step:
            break
    if shell.json:
        shell.emit({"verb": "prune", "changed": pruned})
    else:
        shell.print(f"removed {plural(pruned, 'item')}")
    return None


# --------------------------------------------------------------------------------------------- schedules


async def pause_schedules(shell: Shell, names: SchedulesArgument) -> int | None:
    """Pause schedules, in the whole fleet. Occurrences in between count as missed."""
    return await _set_schedules_paused(shell, names, True)


async def resume_schedules(shell: Shell, names: SchedulesArgument) -> int | None:
    """Resume schedules, in the whole fleet."""
    return await _set_schedules_paused(shell, names, False)


# The store is asked, not the app: an app would store all its schedules first, and look as if it ran them.


async def _set_schedules_paused(shell: Shell, names: list[str], paused: bool) -> int | None:
    refused = False
    for name, stored in _stored_names(shell, names):
        if not await shell.backend.pause_schedule(stored, paused):
            refused = await _refuse(shell, name)
        elif shell.json:
            shell.emit({"schedule": name, "paused": paused})
        else:
            shell.print(f"schedule {name} is {'paused' if paused else 'resumed'}")
    return REFUSED if refused else None


async def cancel_schedules(shell: Shell, names: SchedulesArgument) -> int | None:
    """End schedules, in the whole fleet. Items that they have submitted go on.

    Remove the code as well: a process that has it brings the schedule back when it starts.
    """
    refused = False
    for name, stored in _stored_names(shell, names):
        if not await shell.backend.drop_schedule(stored):
            refused = await _refuse(shell, name)
        elif shell.json:
            shell.emit({"schedule": name, "cancelled": True})
        else:
            shell.print(
                f"schedule {name} is cancelled. A process that has its code brings it back at its start"
            )
    return REFUSED if refused else None


async def trigger_schedules(shell: Shell, names: SchedulesArgument) -> int | None:
    """Run schedules now, in addition to their times, also if they are paused. Needs --app."""
    refused = False
    for name in names:
        try:
            handle = await shell.client.schedules.trigger(name)
        except NotFound:
            refused = await _refuse(shell, name)
            continue
        except ScheduleError:
            raise InputError(
                f"the code of schedule {name!r} is not here: give the app that has it with --app"
            ) from None
        id = None if handle is None else handle.id
        if shell.json:
            shell.emit({"schedule": name, "id": id})
        else:
            shell.print(f"schedule {name} queued {id}" if id else f"schedule {name} had nothing to queue")
    return REFUSED if refused else None


def _stored_names(shell: Shell, names: list[str]) -> list[tuple[str, str]]:
    return [(name, stored_name(shell.client.schedules, name)) for name in names]


async def _refuse(shell: Shell, name: str) -> bool:
    hint = did_you_mean(name, [each.name for each in await shell.client.schedules.list()])
    message = f"{NotFound(name, 'schedule')}{'. ' if hint else ''}{hint.capitalize()}"
    if shell.json:
        shell.emit({"schedule": name, "refused": "NotFound", "message": message})
    else:
        shell.warn(message)
    return True
