"""Stays dead: items that a requeue does not open, because what they wait for has failed, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.client import Client
from treadle.engine.run.unsatisfied import read_roots
from treadle.item import ItemState, Ref
from treadle.operate.portions import MOST_NAMED, Requeue
from treadle.operate.why.wording import command, tenant_option

from .bulk_verb import Preview
from .shell import Shell


class RemedialRequeue(Requeue):
    """Opens items, and says what must be opened before those that stay as they are."""

    def remedy(self) -> str:
        """What to requeue instead, for those that were refused. Empty if none was, or nothing helps."""
        roots = list(self.roots.values())
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

    def __init__(self, how: RemedialRequeue) -> None:
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
