"""Stays dead: items that a requeue does not open, because what they wait for has failed, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.client import Client
from treadle.engine.run.unsatisfied import read_roots
from treadle.engine.why.wording import command, tenant_option
from treadle.errors import ConflictError
from treadle.item import ItemState, Ref
from treadle.operator import core_of
from treadle.wording import listed

from .bulk_verb import PortionOutcome, Preview
from .selection import Refusal
from .shell import Shell

MOST_NAMED: Final = 3
"""The most causes that are named one by one."""


class PrerequisiteFailed(ConflictError):
    """An item stays as it is: what it waits for has failed, because of `roots`."""

    def __init__(self, item: ItemState, roots: Sequence[ItemState]) -> None:
        text = f"item {item.id!r} stays {item.status}: what it waits for can no longer happen"
        named = listed([f"{root.id} ({root.type})" for root in roots], MOST_NAMED)
        super().__init__(f"{text}. Requeue {named} first" if roots else text)


class Requeue:
    """Opens items, and remembers what must be opened before those that stay as they are."""

    def __init__(self, *, alone: bool, cancelled: bool) -> None:
        self._alone = alone
        self._cancelled = cancelled
        self._roots: dict[Ref, ItemState] = {}

    async def change(self, client: Client, items: Sequence[ItemState]) -> PortionOutcome:
        changed = await client.requeue(items, alone=self._alone, cancelled=self._cancelled)
        # What is open again may be others that wait for them, so how many these are says nothing.
        waits = {item.id: item for item in items if item.after}
        found = await client.get(list(waits)) if waits else ()
        stay = [now for now in found if now is not None and now.ended_at == waits[now.id].ended_at]
        return PortionOutcome(changed, self.refuse(stay, await read_roots(core_of(client).backend, stay)))

    def refuse(self, items: Sequence[ItemState], roots: dict[Ref, list[ItemState]]) -> list[Refusal]:
        refused: list[Refusal] = []
        for item in items:
            causes = roots.get((item.tenant, item.id), [])
            self._roots.update({(cause.tenant, cause.id): cause for cause in causes})
            refused.append(Refusal(item.id, item.tenant, PrerequisiteFailed(item, causes)))
        return refused

    def remedy(self) -> str:
        """What to requeue instead, for those that were refused. Empty if none was, or nothing helps."""
        roots = list(self._roots.values())
        cancelled = any(root.status == "cancelled" for root in roots)
        marks = list(dict.fromkeys(root.mark for root in roots))
        if not roots:
            return ""
        tenants = {root.tenant for root in roots}
        tenant = tenant_option(tenants.pop()) if len(tenants) == 1 else None
        if len(roots) > MOST_NAMED and len(marks) == 1 and marks[0]:
            again = command("dead requeue --mark", marks[0], tenant=tenant)
            return f"what they wait for has failed: {again}"
        ids = [root.id for root in roots[:MOST_NAMED]]
        verb = "requeue --cancelled" if cancelled else "requeue"
        more = f", and {len(roots) - MOST_NAMED:,} more" if len(roots) > MOST_NAMED else ""
        return (
            f"what they wait for has failed. Requeue that first: {command(verb, *ids, tenant=tenant)}{more}"
        )


class RequeuePreview(Preview):
    """Leaves out what would stay as it is. Items come oldest first, so their causes come before them."""

    def __init__(self, how: Requeue) -> None:
        super().__init__()
        self._how = how
        self._opened: set[Ref] = set()

    async def add(self, shell: Shell, client: Client, items: Sequence[ItemState]) -> None:
        skipped = [item for item in items if item.reason == "unsatisfiable"]
        roots = await read_roots(shell.backend, skipped)
        self._opened.update((item.tenant, item.id) for item in items if item.reason != "unsatisfiable")
        stay = [
            item
            for item in skipped
            if not {(root.tenant, root.id) for root in roots[item.tenant, item.id]} <= self._opened
        ]
        refused = self._how.refuse(stay, roots)
        self.refused.update(type(each.error).__name__ for each in refused)
        await super().add(shell, client, [item for item in items if item not in stay])
