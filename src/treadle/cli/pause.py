"""`treadle pause`, `resume` and `prune`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from treadle.base.ids import check_name
from treadle.base.wording import did_you_mean, listed, plural
from treadle.errors import InputError

from .completion import complete_queue
from .names import queue_remark
from .shell import Shell, operator_command

PRUNED_AT_ONCE: Final = 1000

QueuesArgument = Annotated[
    list[str], typer.Argument(metavar="QUEUE", help="names of queues", autocompletion=complete_queue)
]


def register(commands: typer.Typer) -> None:
    operator_command(commands, "pause", changes=True)(pause)
    operator_command(commands, "resume", changes=True)(resume)
    operator_command(commands, "prune")(prune)


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
            if paused or (queue, shell.tenant) in before:
                shell.print(f"queue {queue} is {'paused' if paused else 'resumed'}{whose}")
        if remark:
            shell.warn(remark)
        if not paused:
            _remark_resumed(shell, queue, before)


def _remark_resumed(shell: Shell, queue: str, before: Sequence[tuple[str, str | None]]) -> None:
    """Say if the queue was not paused, or still is. before: the pauses, as they were."""
    others = [tenant for name, tenant in before if name == queue and tenant != shell.tenant]
    if (queue, shell.tenant) not in before and not others:
        names = {name for name, tenant in before if tenant == shell.tenant}
        hint = did_you_mean(queue, names, f"paused {listed(sorted(names))}" if names else "no queue was")
        shell.warn(f"queue {queue} was not paused: {hint}")
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
