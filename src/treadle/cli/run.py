"""`treadle run`: submit work by the name of its type, and wait for its result."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from treadle.base.wording import duration, plain
from treadle.errors import InputError, WaitTimeout, WorkFailed
from treadle.handle import Handle
from treadle.item import ItemState
from treadle.operate.filters import names_in, read_duration, read_start
from treadle.operate.why.wording import command

from .completion import complete_queue, complete_type
from .exit_codes import REFUSED
from .filters import DelayOption, PriorityOption, RevealOption, RunAtOption
from .shell import Shell, operator_command
from .text import json_line
from .verbs import read_json


def register(commands: typer.Typer) -> None:
    operator_command(commands, "run", changes=True)(run)


async def run(
    shell: Shell,
    type: Annotated[
        str, typer.Argument(metavar="TYPE", help="the name of a work type", autocompletion=complete_type)
    ],
    input: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="the arguments as a JSON object. -: read from standard input"),
    ] = "{}",
    wait: Annotated[
        bool, typer.Option("--wait", help="wait for the result, and print it. Exit code 1 if it failed")
    ] = False,
    wait_group: Annotated[
        bool, typer.Option("--wait-group", help="the same for the value of its whole group")
    ] = False,
    max_wait: Annotated[
        str | None, typer.Option("--max-wait", metavar="DURATION", help="how long to wait at most")
    ] = None,
    delay: DelayOption = None,
    run_at: RunAtOption = None,
    queue: Annotated[
        str | None, typer.Option("--queue", help="a line of its own", autocompletion=complete_queue)
    ] = None,
    lane: Annotated[str | None, typer.Option("--lane", help="a label that fairness looks at")] = None,
    priority: PriorityOption = None,
    key: Annotated[
        str | None, typer.Option("--key", help="idempotency key: a second submit finds the first")
    ] = None,
    key_policy: Annotated[
        str | None, typer.Option("--key-policy", help="existing, replace, debounce or error")
    ] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", help="a label that spans groups")] = None,
    after: Annotated[
        list[str] | None, typer.Option("--after", metavar="ID", help="wait for this item. Repeat for several")
    ] = None,
    expires_in: Annotated[
        str | None,
        typer.Option("--expires-in", metavar="DURATION", help="dead if it has not succeeded by then"),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=TEXT", help="a text that it carries. Repeat for several"),
    ] = None,
    id: Annotated[str | None, typer.Option("--id", help="an id of your own")] = None,
    reveal: RevealOption = False,
) -> int | None:
    """Submit work by the name of its type. Prints its id; with --wait, its result as JSON."""
    if shell.app is None:
        raise InputError(
            f"run needs --app: the code of {type!r} knows its arguments and its options, and a URL does not"
        )
    if delay is not None and run_at is not None:
        raise InputError("--delay and --run-at exclude each other")
    longest = None if max_wait is None else read_duration(max_wait, "--max-wait")
    options: dict[str, Any] = {
        "delay": None if delay is None else read_duration(delay, "--delay"),
        "run_at": None if run_at is None else read_start(run_at, await shell.now(), "--run-at"),
        "expires_in": None if expires_in is None else read_duration(expires_in, "--expires-in"),
        "queue": queue,
        "lane": lane,
        "priority": priority,
        "key": key,
        "key_policy": key_policy,
        "workflow": workflow,
        "after": names_in(after) or None,
        "headers": dict(map(_header, header)) if header else None,
        "id": id,
    }
    given = {name: value for name, value in options.items() if value is not None}
    handle = await shell.client.enqueue(type, read_input_text(input), **given)
    if not (wait or wait_group):
        (state,) = await shell.backend.get([handle.id], tenant=shell.tenant)
        _say(shell, handle, state, reveal)
        return None
    return await _wait(shell, handle, longest, whole_group=wait_group, reveal=reveal)


def read_input_text(text: str) -> dict[str, Any]:
    """The arguments that were given as JSON. InputError."""
    value = read_json(sys.stdin.read() if text == "-" else text, "INPUT")
    if not isinstance(value, dict):
        raise InputError.of("INPUT", text, "is no JSON object: give arguments by name, as in '{\"a\": 1}'")
    return value  # pyright: ignore[reportUnknownVariableType]


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError.of("--header", text, "has no value: write NAME=TEXT")
    return name, value


def _say(shell: Shell, handle: Handle[Any, Any], state: ItemState | None, reveal: bool) -> None:
    if shell.json:
        shell.emit(
            {"id": handle.id, "existing": handle.existing}
            | ({} if state is None else shell.client.values.item(state, reveal=reveal))
        )
        return
    shell.print(handle.id)
    if handle.existing:
        shell.warn("an earlier item has the key: no new item was stored")


async def _wait(
    shell: Shell, handle: Handle[Any, Any], longest: float | None, *, whole_group: bool, reveal: bool
) -> int | None:
    if not shell.json:
        sys.stderr.write(plain(f"waiting for {handle.id}") + "\n")
    error: WorkFailed | None = None
    try:
        await (handle.group(longest) if whole_group else handle.result(longest))
    except WaitTimeout:
        why = command("why", handle.id, tenant=shell.tenant)
        shell.warn(f"{handle.id} has not ended after {duration(longest or 0.0)}, and goes on: see `{why}`")
        return REFUSED
    except WorkFailed as failed:
        error = failed
    if shell.json or error is None:
        await _print(shell, handle, whole_group=whole_group, reveal=reveal)
    if error is not None:
        shell.warn(str(error))
    return None if error is None else REFUSED


async def _print(shell: Shell, handle: Handle[Any, Any], *, whole_group: bool, reveal: bool) -> None:
    """Print what has ended: for a person its value, as JSON."""
    values, state = shell.client.values, await handle.state()
    (stored,) = await shell.backend.get([handle.id], tenant=state.tenant)
    group = None
    if whole_group:
        (group,) = await shell.backend.group([state.group_id], tenant=state.tenant)
    if shell.json:
        fields = values.item(stored or state, reveal=reveal) | {"existing": handle.existing}
        if whole_group:
            fields["group"] = None if group is None else values.group(group, reveal=reveal)
        shell.emit(fields)
    elif group is not None:
        shell.lines([json_line(values.group_value(group, reveal=reveal)[0])])
    else:
        shell.lines([json_line(values.result(stored or state, reveal=reveal)[0])])
