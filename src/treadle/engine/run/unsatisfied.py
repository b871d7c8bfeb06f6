"""Why a doomed item cannot run: which item that it waited for made it so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from treadle.backend import Backend
from treadle.engine.read_refs import get_refs
from treadle.item import GROUP_MARK, TERMINAL, ErrorInfo, GroupState, ItemState, Lease, Ref

from .decide import Die

MOST_READ: Final = 1000
"""How many prerequisites are read for one claim."""
MOST_LEVELS: Final = 10
"""How far a chain of items that could not run is followed to its cause."""
LONGEST_ERROR: Final = 300
"""How much of the cause's error is shown."""


async def read_causes(backend: Backend, leases: Sequence[Lease]) -> Mapping[int, Die]:
    """For each lease, by its token: the death that names the item because of which it cannot run."""
    states = await _read(backend, [(lease.tenant, name) for lease in leases for name in lease.after])
    found: dict[int, Die] = {}
    roots: dict[Ref, str] = {}
    for lease in leases:
        ended = [state for name in lease.after if (state := states.get((lease.tenant, name))) is not None]
        if not ended:
            continue
        first = ended[0]
        ref = (first.tenant, first.id)
        if ref not in roots:
            roots[ref] = await _root_of(backend, first)
        others = f" (and {len(ended) - 1} more)" if len(ended) > 1 else ""
        text = f"it waited for {_named(first)}{others}, which {_end_of(first)}{roots[ref]}"
        found[lease.token] = Die("unsatisfiable", ErrorInfo("Unsatisfiable", text))
    return found


async def _read(backend: Backend, refs: Iterable[Ref]) -> dict[Ref, ItemState]:
    """Those of these prerequisites that ended without success. For a group: the death that failed it."""
    wanted = list(dict.fromkeys(refs))[:MOST_READ]
    items = await get_refs(backend, [ref for ref in wanted if not ref[1].startswith(GROUP_MARK)])
    found = {ref: item for ref, item in items.items() if item.status in TERMINAL and item.status != "success"}
    groups: dict[str, list[str]] = {}
    for tenant, name in wanted:
        if name.startswith(GROUP_MARK):
            groups.setdefault(tenant, []).append(name)
    for tenant, names in groups.items():
        ids = [name.removeprefix(GROUP_MARK) for name in names]
        for name, group in zip(names, await backend.group(ids, tenant=tenant), strict=True):
            if group is not None and (cause := cause_in(group)) is not None:
                found[tenant, name] = cause
    return found


def cause_in(group: GroupState) -> ItemState | None:
    """The death that failed a group: one that is not the effect of another, if there is one."""
    deaths = sorted(group.deaths, key=lambda death: death.reason == "unsatisfiable")
    return deaths[0] if deaths else group.cancelled


async def _root_of(backend: Backend, state: ItemState) -> str:
    """If the item could not run either: the item that made it so, as text."""
    last = state
    for _ in range(MOST_LEVELS):
        if last.reason != "unsatisfiable":
            break
        ended = await _read(backend, [(last.tenant, name) for name in last.after])
        if not ended:
            break
        last = next(iter(ended.values()))
    return "" if last is state else f", because {_named(last)} {_end_of(last)}"


def _named(state: ItemState) -> str:
    return f"{state.id} ({state.type})"


def _end_of(state: ItemState) -> str:
    if state.status == "cancelled":
        return "was cancelled"
    if state.reason == "unsatisfiable":
        return "could not run"
    return f"is dead: {state.reason}: {(state.error or '')[:LONGEST_ERROR]}"
