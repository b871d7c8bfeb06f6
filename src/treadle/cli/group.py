"""`treadle group` and `treadle workflow`: items as a tree, by who queued whom, or as a graph. `groups` and
`workflows`: how they stand, as a list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

import typer

from treadle.backend import left_out
from treadle.base.ids import check_id, check_name
from treadle.base.wording import plain, plural
from treadle.define.condition import waits_for
from treadle.errors import InputError, NotFound
from treadle.item import (
    GROUP_TYPE,
    TERMINAL,
    Filter,
    GroupOutcome,
    GroupState,
    GroupSummary,
    ItemState,
    Page,
    Status,
)
from treadle.operate.filters import read_time
from treadle.operate.item_json import group_summary_json, member_json
from treadle.store.reads import by_tenant, group_members
from treadle.store.rules.listing import OUTCOMES

from .completion import complete_words
from .filters import (
    CursorOption,
    LimitOption,
    RevealOption,
    SinceOption,
    StoreOption,
    TypeOption,
    UntilOption,
    first_items,
)
from .shell import Shell, operator_command
from .shown import group_text, status_cell, value_text, what, when
from .text import Cell, ago, clock, fact_lines, speaks_unicode, table_lines, terminal_width

DotOption = Annotated[bool, typer.Option("--dot", help="as a graph for Graphviz")]
MermaidOption = Annotated[bool, typer.Option("--mermaid", help="as a graph for Mermaid")]
MostOption = Annotated[int, typer.Option("--limit", min=1, help="the most items")]


def register(commands: typer.Typer) -> None:
    operator_command(commands, "group")(group)
    operator_command(commands, "workflow")(workflow)
    operator_command(commands, "groups")(groups)
    operator_command(commands, "workflows")(workflows)


class Tree(NamedTuple):
    """Items, in the order of submission, and whether there are more of them."""

    items: list[ItemState]
    more: bool

    def json(self) -> dict[str, Any]:
        return {"items": [member_json(item) for item in self.items], "more": self.more}


async def group(
    shell: Shell,
    id: Annotated[str, typer.Argument(metavar="ID", help="the id of a group, or of a member")],
    dot: DotOption = False,
    mermaid: MermaidOption = False,
    limit: MostOption = 500,
    reveal: RevealOption = False,
) -> int | None:
    """Show a group: how it stands, its value, and its members as a tree. Nested groups are included."""
    _check_forms(dot, mermaid)
    found = await _find_group(shell, check_id(id))
    tree = Tree(*await group_members(shell.backend, (found.tenant, found.id), limit))
    if _shown_to_programs(shell, shell.client.values.group(found, reveal=reveal), tree, dot, mermaid):
        return None
    now = await shell.now()
    value, problem = shell.client.values.group_value(found, reveal=reveal)
    shell.lines(
        fact_lines(
            [
                ("group", found.id),
                ("state", Cell(group_text(found, now), _group_style(found))),
                ("ended", "" if found.ended_at is not None else _progress(tree)),
                (_value_name(found), value_text(value) if found.contributed else ""),
                ("", f"cannot be read by this code: {problem}" if problem else ""),
                ("outer group", found.outer or ""),
            ]
        )
    )
    shell.print()
    shell.lines(tree_lines(tree.items, now, terminal_width()))
    _say_more(shell, tree)
    return None


async def workflow(
    shell: Shell,
    id: Annotated[str, typer.Argument(metavar="ID", help="the workflow")],
    dot: DotOption = False,
    mermaid: MermaidOption = False,
    limit: MostOption = 500,
) -> int | None:
    """Show the items of a workflow as a tree."""
    _check_forms(dot, mermaid)
    where = Filter(tenant=shell.tenant, workflow=check_name(id, "ID"))
    tree = Tree(*await first_items(shell, where, limit))
    if not tree.items:
        raise NotFound(id, "workflow", away=left_out())
    if _shown_to_programs(shell, {"id": id}, tree, dot, mermaid):
        return None
    now = await shell.now()
    tenants = by_tenant(tree.items)
    for n, (tenant, items) in enumerate(tenants.items()):
        if len(tenants) > 1:
            shell.lines([""] if n else [])
            shell.print(f"tenant {plain(tenant)}", "bold")
        shell.lines(tree_lines(items, now, terminal_width()))
    _say_more(shell, tree)
    return None


# ------------------------------------------------------------------------------------------------ lists

OutcomeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--outcome",
        metavar="OUTCOME",
        autocompletion=complete_words(*OUTCOMES),
        help=f"only those that stand so: {', '.join(OUTCOMES)}. Separate by commas, or repeat",
    ),
]
ScanOption = Annotated[int, typer.Option("--scan", min=1, help="the most of them to look at")]


@dataclass(frozen=True)
class GroupOptions:
    """The options of both lists."""

    outcome: OutcomeOption = None
    type: TypeOption = None
    since: SinceOption = None
    until: UntilOption = None
    limit: LimitOption = 50
    cursor: CursorOption = None
    store: StoreOption = None


async def groups(shell: Shell, given: GroupOptions, scan: ScanOption = 10_000) -> None:
    """List groups of several items, newest first: how they stand, how much is done, and the first death."""
    await _list(shell, shell.client.groups, "groups", given, scan)


async def workflows(shell: Shell, given: GroupOptions, scan: ScanOption = 1000) -> None:
    """List workflows, those with the newest roots first. The newest 1,000 items of each are counted."""
    await _list(shell, shell.client.workflows, "workflows", given, scan)


async def _list(
    shell: Shell,
    read: Callable[..., Awaitable[Page[GroupSummary]]],
    name: str,
    given: GroupOptions,
    scan: int,
) -> None:
    now = await shell.now()
    page = await read(
        [word for text in given.outcome or () for word in text.split(",")] or None,
        given.type,
        since=read_time(given.since, now, "--since"),
        until=read_time(given.until, now, "--until"),
        limit=given.limit,
        cursor=given.cursor,
        reach=scan,
        store=given.store,
    )
    if shell.json:
        for each in page.items:
            shell.emit(group_summary_json(each))
    else:
        shell.lines(summary_lines(page.items, now) if page.items else [f"no {name}"])
    notes: list[str] = []
    if page.reached_at is not None:
        notes.append(f"looked at {scan:,} of them, back to {clock(page.reached_at, now)}")
    if page.cursor is not None:
        notes.append(f"there are more: --cursor {page.cursor}")
    for note in notes:
        shell.warn(note)


SUMMARY_COLUMNS: Final = (
    "ID",
    "STATE",
    "DONE",
    "TYPE",
    "TENANT",
    "STORE",
    "BEGAN",
    "ENDED",
    "FAILED",
    "FIRST DEATH",
)


def summary_lines(found: Sequence[GroupSummary], now: float) -> list[str]:
    """Groups, or workflows, as a table. Tenants are shown where they differ."""
    tenants = {each.tenant for each in found}
    rows = [
        (
            each.id,
            Cell(each.outcome, OUTCOME_STYLES[each.outcome]),
            f"{each.done:,} of {each.total:,}{'+' if each.capped else ''}",
            each.type,
            each.tenant if len(tenants) > 1 else "",
            each.store,
            ago(each.queued_at, now),
            ago(each.ended_at, now),
            f"{each.failed:,}" if each.failed else "",
            Cell("" if each.death is None else f"{each.death.type} {what(each.death)}", "dim"),
        )
        for each in found
    ]
    return table_lines(
        SUMMARY_COLUMNS,
        rows,
        width=terminal_width(),
        numbers=("DONE", "FAILED"),
        keep=("ID", "STATE", "DONE"),
        drop=("ENDED", "FAILED", "TYPE"),
    )


OUTCOME_STYLES: Final[dict[GroupOutcome, str]] = {
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
}


# ------------------------------------------------------------------------------------------------- trees


def _check_forms(dot: bool, mermaid: bool) -> None:
    if dot and mermaid:
        raise InputError("--dot and --mermaid exclude each other")


def _shown_to_programs(shell: Shell, facts: dict[str, Any], tree: Tree, dot: bool, mermaid: bool) -> bool:
    """Show a tree as JSON, with `facts` about the whole, or as a graph. False: neither was asked for."""
    if shell.json:
        shell.emit({**facts, **tree.json()})
    elif dot or mermaid:
        shell.lines(dot_lines(tree.items) if dot else mermaid_lines(tree.items))
        _say_more(shell, tree)
    else:
        return False
    return True


def _say_more(shell: Shell, tree: Tree) -> None:
    if tree.more:
        shell.warn(f"only the first {plural(len(tree.items), 'item')}: give a higher --limit for more")


async def _find_group(shell: Shell, id: str) -> GroupState:
    """The group of this id, or the group that the item of this id belongs to."""
    (found,) = await shell.backend.group([id], tenant=shell.tenant)
    if found is not None:
        return found
    (item,) = await shell.backend.get([id], tenant=shell.tenant)
    if item is not None:
        (found,) = await shell.backend.group([item.group_id], tenant=item.tenant)
    if found is None:
        raise NotFound(id, "group", away=left_out())
    return found


def _progress(tree: Tree) -> str:
    """How many of the items have ended. Empty if there are more than these."""
    ended = sum(item.status in TERMINAL for item in tree.items)
    return "" if tree.more else f"{ended:,} of {len(tree.items):,}"


def _value_name(group: GroupState) -> str:
    """What the value of a group is called. That of a group that has not ended well is not whole."""
    whole = group.ended_at is not None and not group.failed and group.cancelled is None
    return "value" if whole else "partial value"


def _group_style(group: GroupState) -> str:
    return "red" if group.failed else "cyan" if group.ended_at is None else "green"


# -------------------------------------------------------------------------------------------------- text


TREE_COLUMNS: Final = ("ITEM", "STATE", "ID", "WHEN", "WHAT")
DEEPEST: Final = 8
"""Levels of a tree that are drawn. Deeper items have the number of their level before the last branches."""


def tree_lines(items: Sequence[ItemState], now: float, width: int | None) -> list[str]:
    """Items as a tree: each below the one that queued it, those of a nested group below its closing item."""
    groups = {item.id: item.group_id for item in items}
    closing = {item.id for item in items if item.type == GROUP_TYPE}
    below: dict[str | None, list[ItemState]] = {}
    for item in items:
        above = item.parent if item.parent in groups else None
        if item.group_id in closing and groups.get(item.parent or "") != item.group_id:
            above = item.group_id
        below.setdefault(above, []).append(item)
    rows = [_row(prefix, item, now) for prefix, item in _walk(below)]
    return table_lines(TREE_COLUMNS, rows, width=width, keep=("STATE", "ID", "WHEN"), drop=("WHAT", "WHEN"))


def _row(prefix: str, item: ItemState, now: float) -> tuple[str, ...]:
    waits = f"waits for {plural(len(item.after), 'item')}" if item.status == "blocked" and item.after else ""
    kind = "nested group" if item.type == GROUP_TYPE else item.type
    return prefix + kind, status_cell(item.status), item.id, when(item, now), Cell(waits or what(item), "dim")


def _walk(below: dict[str | None, list[ItemState]]) -> Iterator[tuple[str, ItemState]]:
    """Every item with what stands before it in its line. Without recursion: trees may be deep."""
    branch, last_branch, bar = ("├─ ", "└─ ", "│  ") if speaks_unicode() else ("|- ", "`- ", "|  ")
    room = DEEPEST * len(bar)
    stack = [(0, "", "", item) for item in reversed(below.get(None, ()))]
    while stack:
        level, prefix, indent, item = stack.pop()
        yield prefix if level <= DEEPEST else f"({level})".ljust(2 * len(bar)) + prefix[2 * len(bar) :], item
        children = below.get(item.id, [])
        for index, child in reversed(list(enumerate(children, 1))):
            is_last = index == len(children)
            before = indent + (last_branch if is_last else branch)
            beside = indent + ("   " if is_last else bar)
            stack.append((level + 1, before[-room:], beside[-room:], child))


# ------------------------------------------------------------------------------------------------ graphs

FILLS: Final[dict[Status, str]] = {
    "blocked": "#eeeeee",
    "scheduled": "#e8e0f5",
    "ready": "#fff6d6",
    "running": "#d6ecff",
    "success": "#d9f2d9",
    "dead": "#f9d6d5",
    "cancelled": "#e0e0e0",
}


def _edges(items: Sequence[ItemState]) -> Iterator[tuple[int, int, bool]]:
    """From the parent, and from what it waits for (True), to each item. By their places in `items`."""
    places = {item.id: place for place, item in enumerate(items)}
    for place, (item, after) in enumerate(waits_for(items)):
        if item.parent in places and item.parent not in after:
            yield places[item.parent], place, False
        yield from ((places[name], place, True) for name in sorted(set(after)) if name in places)


def dot_lines(items: Sequence[ItemState]) -> Iterable[str]:
    """A graph for Graphviz. Dashed: waits for."""
    yield "digraph treadle {"
    yield '  rankdir=LR; node [shape=box, style="rounded,filled", fontname="sans-serif"];'
    for place, item in enumerate(items):
        label = "\\n".join(_dot(part) for part in (item.type, item.id, item.status))
        yield f'  n{place} [label="{label}", fillcolor="{FILLS[item.status]}"];'
    for source, target, waits in _edges(items):
        yield f"  n{source} -> n{target}{' [style=dashed]' if waits else ''};"
    yield "}"


def _dot(text: str) -> str:
    return plain(text).replace("\\", "\\\\").replace('"', '\\"')


def mermaid_lines(items: Sequence[ItemState]) -> Iterable[str]:
    """A graph for Mermaid. Dotted: waits for."""
    yield "flowchart LR"
    for place, item in enumerate(items):
        label = "<br/>".join(_mermaid(part) for part in (item.type, item.id, item.status))
        yield f'  n{place}["{label}"]:::{item.status}'
    for source, target, waits in _edges(items):
        yield f"  n{source} {'-.->' if waits else '-->'} n{target}"
    used = {item.status for item in items}
    for status, fill in FILLS.items():
        if status in used:
            yield f"  classDef {status} fill:{fill},stroke:#888888,color:#222222"


def _mermaid(text: str) -> str:
    return "".join(each if each.isalnum() or each in " ._-/" else f"#{ord(each)};" for each in plain(text))
