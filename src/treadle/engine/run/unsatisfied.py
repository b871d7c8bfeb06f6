"""Why a doomed item cannot run: which item that it waited for made it so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from treadle.backend import Backend
from treadle.item import GROUP_MARK, TERMINAL, UNSATISFIABLE, ErrorInfo, GroupState, ItemState, Lease, Ref
from treadle.store.reads import get_refs

from .decide import Die

MOST_READ: Final = 1000
"""How many prerequisites are read for one claim."""
MOST_LEVELS: Final = 10
"""How far a chain of items that could not run is followed to its cause."""
LONGEST_ERROR: Final = 300
"""How much of the cause's error is shown."""
NAMED: Final = re.compile(r"Unsatisfiable: it waited for (\S+) .*?, which (?:could not run, because (\S+) )?")
"""How the error of an item that could not run names the cause: see `read_causes`."""


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
        found[lease.token] = Die("unsatisfiable", ErrorInfo(UNSATISFIABLE, text))
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


async def read_roots(backend: Backend, items: Sequence[ItemState]) -> dict[Ref, list[ItemState]]:
    """For each item: the items because of which its prerequisites have failed, through those that could not
    run either. Empty: none has failed, as far as is known."""
    found: dict[Ref, list[ItemState]] = {(item.tenant, item.id): [] for item in items}
    level = [((item.tenant, item.id), item) for item in items]
    for n in range(MOST_LEVELS):
        if not level:
            break
        refs = list(dict.fromkeys((state.tenant, name) for _, state in level for name in state.after))
        failed: dict[Ref, ItemState] = {}
        for start in range(0, len(refs), MOST_READ):
            failed |= await _read(backend, refs[start : start + MOST_READ])
        deeper: dict[tuple[Ref, Ref], ItemState] = {}
        for ref, state in level:
            causes = [
                cause for name in state.after if (cause := failed.get((state.tenant, name))) is not None
            ]
            if not causes and n:
                found[ref].append(state)
            for cause in causes:
                if cause.reason == "unsatisfiable":
                    deeper[ref, (cause.tenant, cause.id)] = cause
                elif cause not in found[ref]:
                    found[ref].append(cause)
        level = [(ref, state) for (ref, _), state in deeper.items()]
    named = await named_causes(backend, [state for _, state in level])
    for ref, state in level:  # the chain is longer
        root = named.get((state.tenant, state.id), state)
        if root not in found[ref]:
            found[ref].append(root)
    return found


async def named_causes(backend: Backend, items: Iterable[ItemState]) -> dict[Ref, ItemState]:
    """By items that could not run: the item that their death names as the cause, however long the chain is.
    Those are left out whose death names none, or one that is no failure any more."""
    said = {(item.tenant, item.id): NAMED.match(item.error or "") for item in items}
    names = {ref: (ref[0], match[2] or match[1]) for ref, match in said.items() if match}
    causes = await _read(backend, names.values())
    return {
        ref: cause
        for ref, name in names.items()
        if (cause := causes.get(name)) is not None and cause.reason != "unsatisfiable"
    }


def cause_in(group: GroupState) -> ItemState | None:
    """The death that failed a group: one that is not the effect of another, if there is one."""
    deaths = sorted(group.deaths, key=lambda death: death.reason == "unsatisfiable")
    return deaths[0] if deaths else group.cancelled


async def _root_of(backend: Backend, state: ItemState) -> str:
    """If the item could not run either: the item that made it so, as text."""
    if state.reason != "unsatisfiable":
        return ""
    roots = (await read_roots(backend, [state]))[state.tenant, state.id]
    return f", because {_named(roots[0])} {_end_of(roots[0])}" if roots else ""


def _named(state: ItemState) -> str:
    return f"{state.id} ({state.type})"


def _end_of(state: ItemState) -> str:
    if state.status == "cancelled":
        return "was cancelled"
    if state.reason == "unsatisfiable":
        return "could not run"
    return f"is dead: {state.reason}: {(state.error or '')[:LONGEST_ERROR]}"
