"""`treadle dead`: dead letters, by what they died of; and what is done about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, get_args

import typer
from msgspec import structs

from treadle.base.ids import check_name
from treadle.base.timing import iso
from treadle.base.wording import capped, error_line, listed, plural
from treadle.errors import InputError
from treadle.item import Filter, ItemState
from treadle.item_facts import DeadMark
from treadle.operate.bulk_states import open_requeues, requeue_text
from treadle.operate.dead_letters import folded
from treadle.operate.item_json import mark_json, ref_json
from treadle.operate.why.wording import command, releases_text

from .change_items import Selection, change_items
from .filters import ItemFilters, StoreOption, pages
from .names import MOST_MARKS, find_mark
from .shell import Shell, operator_command, operator_group
from .shown import item_lines
from .text import Cell, ago, clock, plain_lines
from .verbs import CascadeOption, OpenOption, deletion, requeue

DeadBy = Literal["error", "type", "reason"]
LOOKED_AT: Final = 10_000
"""Dead items that are looked at to count them by reason."""
NEWEST: Final = 5
"""Items that `dead show` lists."""


def register(commands: typer.Typer) -> None:
    group = operator_group(commands, "dead")(dead)
    operator_command(group, "show")(dead_show)
    operator_command(group, "requeue", changes=True)(requeue)
    operator_command(group, "delete", changes=True)(dead_delete)


async def dead(
    shell: Shell,
    by: Annotated[
        str, typer.Option("--by", help="a row for each kind of error (type, class and place), type or reason")
    ] = "error",
    limit: Annotated[int, typer.Option("--limit", min=1, help="the most rows")] = 100,
    release: Annotated[
        str | None, typer.Option("--release", help="only items that died under this release")
    ] = None,
    store: StoreOption = None,
) -> None:
    """Show dead items by what they died of, the newest deaths first.

    Items with the same mark died alike: `treadle dead show MARK`, `treadle dead requeue --mark MARK`. What
    could not run because of them has no row of its own: `--by type` has all.
    """
    if by not in get_args(DeadBy):
        raise InputError.of("--by", by, f"does not exist: it is one of {', '.join(get_args(DeadBy))}")
    now = await shell.now()
    if by == "reason":
        await _by_reason(shell, now, release, store)
        return
    count = limit if by == "error" and release is None else MOST_MARKS
    marks: Sequence[DeadMark] = await shell.client.dead.marks(count=count, store=store)
    if release is not None:
        marks = [each for mark in marks for each in _under(mark, check_name(release, "--release"))]
    if by == "type":
        _by_type(shell, marks, limit, now)
        return
    marks = marks[:limit]
    if shell.json:
        for mark in marks:
            shell.emit(mark_json(mark))
    elif not marks:
        shell.print("no dead items")
    else:
        has_releases, has_stores = any(mark.releases for mark in marks), any(mark.stores for mark in marks)
        rows = folded(marks, await shell.client.dead.causes(marks))
        shell.table(
            (
                *("MARK", "COUNT", "LAST"),
                *(["RELEASE"] if has_releases else []),
                *(["STORE"] if has_stores else []),
                *("TYPE", "ERROR"),
            ),
            [
                (
                    mark.mark or "''",
                    Cell(capped(mark.count, mark.capped), "red"),
                    ago(mark.last_at, now),
                    *([listed([each.release for each in mark.releases], 2)] if has_releases else []),
                    *([listed(mark.stores, 2)] if has_stores else []),
                    " ".join(filter(None, (mark.type, row.waited_text))),
                    # The class without its module: the table is narrow.
                    error_line(mark.error_type.rpartition(".")[2], mark.error),
                )
                for row in rows
                for mark in (row.mark,)
            ],
            numbers=("COUNT",),
            keep=("MARK", "COUNT", "LAST"),
        )
        if any(row.waited for row in rows):
            by_type = command("dead --by type", tenant=shell.tenant)
            shell.print()
            shell.print(f"+ types: their items waited for these, and could not run. All: {by_type}", "dim")
        for action in await open_requeues(shell.backend, shell.tenant):
            show = command("bulk show", action.id, tenant=shell.tenant)
            shell.print()
            shell.print(f"{requeue_text(action)} ({action.where}): {show}")


def _under(mark: DeadMark, release: str) -> Iterable[DeadMark]:
    """The mark with its deaths under a release, if there are any."""
    return (
        structs.replace(mark, count=each.count, releases=(each,))
        for each in mark.releases
        if each.release == release
    )


@dataclass(frozen=True)
class DeadRow:
    """Dead items of one type, or that died of one reason."""

    count: int
    capped: bool
    last_at: float | None
    marks: int = 0


def _by_type(shell: Shell, marks: Iterable[DeadMark], limit: int, now: float) -> None:
    rows: dict[str, DeadRow] = {}
    for mark in marks:
        row = rows.get(mark.type, DeadRow(0, False, mark.last_at))
        last = max(row.last_at or mark.last_at, mark.last_at)
        rows[mark.type] = DeadRow(row.count + mark.count, row.capped or mark.capped, last, row.marks + 1)
    ordered = sorted(rows.items(), key=lambda each: -each[1].count)[:limit]
    _rows(shell, "type", ordered, now)


async def _by_reason(shell: Shell, now: float, release: str | None, store: str | None) -> None:
    rows: dict[str, DeadRow] = {}
    more = False
    where = Filter(tenant=shell.tenant, status=("dead",), release=release, store=store)
    async for page in pages(shell, where, most=LOOKED_AT):
        for item in page.items:
            reason = item.reason or "unknown"
            row = rows.get(reason, DeadRow(0, False, item.ended_at))
            last = max(row.last_at or 0.0, item.ended_at or 0.0)
            rows[reason] = DeadRow(row.count + 1, False, last)
        more = page.cursor is not None
    rows = {reason: replace(row, capped=more) for reason, row in rows.items()}
    _rows(shell, "reason", sorted(rows.items(), key=lambda each: -each[1].count), now)
    if more:
        shell.warn(f"only the newest {plural(LOOKED_AT, 'dead item')} were looked at: there are more")


def _rows(shell: Shell, by: DeadBy, rows: list[tuple[str, DeadRow]], now: float) -> None:
    if shell.json:
        for name, row in rows:
            shell.emit(
                {by: name, "count": row.count, "capped": row.capped, "last_at": iso(row.last_at)}
                | ({"marks": row.marks} if by == "type" else {})
            )
    elif not rows:
        shell.print("no dead items")
    else:
        shell.table(
            (by.upper(), "COUNT", "KINDS", "LAST"),
            [
                (
                    name,
                    Cell(capped(row.count, row.capped), "red"),
                    str(row.marks or ""),
                    ago(row.last_at, now),
                )
                for name, row in rows
            ],
            numbers=("COUNT", "KINDS"),
        )


# -------------------------------------------------------------------------------------------------- show


async def dead_show(
    shell: Shell,
    mark: Annotated[str, typer.Argument(metavar="MARK", help="a mark, or how one begins")],
) -> int | None:
    """Show what items of a mark died of: the error, its traceback, and the newest of them."""
    found = await find_mark(shell, mark)
    where = Filter(tenant=shell.tenant, status=("dead",), mark=found.mark)
    page = await shell.backend.list(where, limit=NEWEST)
    (sample,) = await shell.backend.get([found.sample], tenant=found.tenant)
    # The newest death comes first: the others are those that were submitted last.
    others = [item for item in page.items if (item.tenant, item.id) != (found.tenant, found.sample)]
    items = [*([] if sample is None else [sample]), *others][:NEWEST]
    if shell.json:
        shell.emit(
            mark_json(found)
            | {
                "traceback": _traceback(sample),
                "items": [ref_json(each) for each in items],
            }
        )
        return None
    now = await shell.now()
    reason = sample.reason if sample is not None and sample.reason else ""
    shell.facts(
        [
            ("mark", found.mark or "''"),
            ("type", found.type),
            ("error", error_line(found.error_type, found.error)),
            ("reason", reason),
            ("items", capped(found.count, found.capped)),
            ("oldest", f"queued {clock(found.oldest_queued_at, now)}"),
            ("newest", f"died {clock(found.last_at, now)}"),
            ("release", releases_text(found)),
        ]
    )
    shell.print()
    shell.print("Newest items", "bold")
    shell.lines(item_lines(items, now))
    if found.count > len(items):
        more = plural(found.count - len(items), "more item", found.capped)
        listing = command("list --status dead --mark", found.mark, tenant=shell.tenant)
        shell.print(f"and {more}: {listing}", "dim")
    if text := _traceback(sample):
        shell.print()
        shell.print(f"Traceback of {found.sample}", "bold")
        shell.lines(f"  {line}" for line in plain_lines(text))
    shell.print()
    if reason == "lease_lost":
        shell.print("they may end the next worker too: see the logs of the workers that died first", "yellow")
    again = command("dead requeue --canary 5 --mark", found.mark, tenant=shell.tenant)
    shell.print(f"run them again: {again}", "dim")
    return None


def _traceback(item: ItemState | None) -> str:
    return "" if item is None or not item.history else item.history[-1].traceback


# ------------------------------------------------------------------------------------------------ delete


async def dead_delete(
    shell: Shell,
    selection: Selection,
    filters: ItemFilters,
    cascade: CascadeOption = False,
    open: OpenOption = False,
) -> int | None:
    """Remove dead items with their whole groups, and with the groups around these."""
    verb = deletion(
        cascade=cascade,
        open=open or bool(selection.ids),
        roots=False,
        statuses=("dead",),
        advice="`dead delete` is for dead items: `treadle delete` removes others",
    )
    return await change_items(shell, verb, selection, filters)
