"""`treadle schedules`, and the commands inside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from treadle.base.timing import iso
from treadle.base.wording import did_you_mean, duration
from treadle.errors import InputError, NotFound, ScheduleError, TreadleError, class_name
from treadle.logs.lines import error_text
from treadle.operate.fleet_json import schedule_json
from treadle.operate.schedule_state import ScheduleState
from treadle.schedule import stored_name

from .completion import complete_schedule
from .exit_codes import REFUSED
from .log_format import LogFormat, say_refusal
from .shell import Shell, operator_command, operator_group
from .shown import status_word
from .text import ago

SchedulesArgument = Annotated[
    list[str],
    typer.Argument(metavar="NAME", help="names of schedules", autocompletion=complete_schedule),
]


def register(commands: typer.Typer) -> None:
    group = operator_group(commands, "schedules")(schedules)
    operator_command(group, "pause", changes=True)(pause_schedules)
    operator_command(group, "resume", changes=True)(resume_schedules)
    operator_command(group, "trigger", changes=True)(trigger_schedules)
    operator_command(group, "cancel", changes=True)(cancel_schedules)


async def schedules(shell: Shell) -> int | None:
    """List the schedules: when each fired last, and when it fires next."""
    found, now = await read_schedules(shell)
    if shell.json:
        for each in found:
            shell.emit(schedule_json(each))
        return None
    if not found:
        shell.print("no schedules")
        return None
    shell.table(
        ("NAME", "STATE", "NEXT", "LAST", "TIMING"),
        [
            (
                each.name,
                status_word(each.state),
                "" if each.state == "paused" else ago(each.next_at, now),
                ago(each.last_at, now),
                timing_text(each.timing),
            )
            for each in found
        ],
        keep=("STATE", "NEXT", "LAST"),
    )
    return None


async def read_schedules(shell: Shell) -> tuple[list[ScheduleState], float]:
    """The schedules, and the time."""
    return await shell.client.schedules.list(), await shell.now()


def timing_text(timing: Mapping[str, Any]) -> str:
    """When it fires, in a few words."""
    parts: list[str] = []
    if "cron" in timing:
        parts.append(f"{timing['cron']} {timing.get('tz', 'UTC')}")
    if isinstance(every := timing.get("every"), int | float):
        parts.append(f"every {duration(every)}")
    if "next" in timing:
        parts.append(f"by {timing['next']}")
    parts += [f"{name} {iso(timing[name])}" for name in ("start", "end") if timing.get(name) is not None]
    return ", ".join(parts)


# ----------------------------------------------------------------------------------------------- changing


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
        if not await shell.backend.pause_schedule(stored, paused, note=shell.note):
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
        if not await shell.backend.drop_schedule(stored, note=shell.note):
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
        except TreadleError:
            raise
        except Exception as error:  # noqa: BLE001  it is a function of the user
            refused = _tell_failure(shell, name, error)
            continue
        id = None if handle is None else handle.id
        if shell.json:
            shell.emit({"schedule": name, "id": id})
        else:
            shell.print(f"schedule {name} queued {id}" if id else f"schedule {name} had nothing to queue")
    return REFUSED if refused else None


def _tell_failure(shell: Shell, name: str, error: Exception) -> bool:
    message = f"run of schedule {name!r} failed: {error_text(error)}"
    if shell.json:
        shell.emit({"schedule": name, "refused": class_name(error), "message": message})
    else:
        say_refusal(message, LogFormat.text, error)
    return True


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
