"""`treadle rebalance`: the moves of tenants that even out the stores of an app."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, cast, get_args

import msgspec
import typer

from treadle.base.wording import approximate, plural
from treadle.errors import InputError, TreadleError
from treadle.records import BalanceBy, ProposedMove, RebalancePlan, StoreLoad

from .change_items import progress_bar, stopped_by_ctrl_c
from .exit_codes import INTERRUPTED
from .move import FreezeOption, SkewOption, say_moved
from .shell import Shell, operator_command
from .text import about, speaks_unicode


def register(commands: typer.Typer) -> None:
    operator_command(commands, "rebalance", changes=True)(rebalance)


async def rebalance(
    shell: Shell,
    yes: Annotated[bool, typer.Option("--yes", help="move the tenants, one at a time")] = False,
    most: Annotated[int, typer.Option("--most", min=1, max=1000, help="the most moves")] = 10,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", min=0, max=1, help="a difference that is even enough"),
    ] = 0.1,
    by: Annotated[str, typer.Option("--by", help="what is evened out: items or open")] = "items",
    freeze: FreezeOption = 10.0,
    skew: SkewOption = 1.0,
) -> int | None:
    """Print the moves of tenants that even out the stores of the app. --yes: make them. Ctrl-C stops after
    the current one, and the next call goes on.
    """
    if by not in get_args(BalanceBy):
        raise InputError.of("--by", by, f"must be {' or '.join(get_args(BalanceBy))}")
    plan = await shell.client.plan_rebalance(most=most, tolerance=tolerance, by=cast("BalanceBy", by))
    if shell.json:
        shell.emit(msgspec.to_builtins(plan))
    else:
        _show(shell, plan)
    if not plan.moves or not yes:
        _say_rest(shell, plan)
        return None
    return await _Moves(shell, plan.moves, freeze, skew).make()


# ------------------------------------------------------------------------------------------------- the plan


def _show(shell: Shell, plan: RebalancePlan) -> None:
    counts_items = all(store.before.items is not None for store in plan.stores)
    items = ("ITEMS",) if counts_items else ()
    if plan.moves:
        rows = [_move_row(move) for move in plan.moves]
        shell.table(
            ("TENANT", "FROM", "TO", "OPEN", *items), rows, numbers=("OPEN", *items), keep=("TENANT",)
        )
        shell.print()
    rows = [_store_row(store, bool(plan.moves)) for store in plan.stores]
    shell.table(("STORE", "OPEN", *items, "SHARE"), rows, keep=("STORE", "SHARE"))
    for store in plan.stores:
        if store.left_out:
            shell.print(f"{store.name} is left out: {store.left_out}")
    for tenant in plan.staying:
        shell.print(f"{tenant.tenant} stays: {tenant.why}")


def _move_row(move: ProposedMove) -> list[str]:
    counts = (move.open,) if move.items is None else (move.open, move.items)
    return [move.tenant, move.source, move.to, *[_count(count, move.estimated) for count in counts]]


def _store_row(store: StoreLoad, moves: bool) -> list[str]:
    before, after = store.before, store.after
    arrow = " → " if speaks_unicode() else " -> "

    def both(was: str, then: str) -> str:
        return was + arrow + then if moves and not store.left_out else was

    cells = [both(_count(before.open, before.estimated), _count(after.open, after.estimated))]
    if before.items is not None and after.items is not None:
        cells += [both(_count(before.items, before.estimated), _count(after.items, after.estimated))]
    return [store.name, *cells, both(_share(before.share), _share(after.share))]


def _count(count: int, estimated: bool) -> str:
    return approximate(count, estimated, about())


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _say_rest(shell: Shell, plan: RebalancePlan) -> None:
    if plan.moves:
        shell.print("nothing was moved: --yes moves them, one at a time")
    elif all(store.left_out for store in plan.stores):
        shell.print("nothing to move: tenants need two stores that they can leave and reach")
    else:
        shell.print("nothing to move: the stores are even enough, or no tenant would even them out")


# ---------------------------------------------------------------------------------------------- the moves


class _Moves:
    """The moves of a plan, one at a time. The first Ctrl-C lets the one that is under way end."""

    def __init__(self, shell: Shell, moves: Sequence[ProposedMove], freeze: float, skew: float) -> None:
        self._shell = shell
        self._moves = moves
        self._freeze = freeze
        self._skew = skew
        self._stop = asyncio.Event()
        self._made = 0

    async def make(self) -> int | None:
        """Returns the exit code."""
        self._shell.print()
        try:
            with stopped_by_ctrl_c(self._stop):
                for move in self._moves:
                    if self._stop.is_set():
                        break
                    await self._make(move)
                    self._made += 1
        except TreadleError:
            self._say_made("stopped: ")
            raise
        except asyncio.CancelledError:  # the second Ctrl-C
            self._say_made("stopped: ")
            move = self._moves[self._made]
            self._shell.warn(
                f"the move of {move.tenant} has not ended: treadle move --tenant {move.tenant} "
                f"--to {move.to} --resume, or --give-up"
            )
            raise KeyboardInterrupt from None
        stopped = self._made < len(self._moves)
        self._say_made("stopped: " if stopped else "")
        return INTERRUPTED if stopped else None

    async def _make(self, move: ProposedMove) -> None:
        with progress_bar(self._shell, f"{move.tenant} to {move.to}", None) as progress:
            moved = await self._shell.client.move_tenant(
                move.tenant,
                move.to,
                source=move.source,
                freeze=self._freeze,
                skew=self._skew,
                progress=progress,
            )
        say_moved(self._shell, moved)
        self._shell.flush()

    def _say_made(self, before: str) -> None:
        text = f"moved {self._made:,} of {plural(len(self._moves), 'tenant')}"
        rest = ". Run it again to go on" if self._made < len(self._moves) else ""
        self._shell.print(f"{before}{text}{rest}")
