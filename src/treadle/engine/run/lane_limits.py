"""Lane limits: what the engine does for `concurrency(strict=..., on_full=...)`."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.doers import Task
from treadle.doers.base import BaseDoer
from treadle.doers.limited import LimitedDoer
from treadle.doers.on_full import OnFullCalls, OnFullDoer
from treadle.engine.core import Core
from treadle.engine.ended_items import announce_ended, event_time
from treadle.engine.registry import AnyType
from treadle.errors import InputError, UnsupportedError
from treadle.item import LIMIT_REACHED, ErrorInfo, Lease, PermitHolder

from .decide import Drop
from .held import attempts_of
from .settle import Settler


def add_strict_type(core: Core, names: Sequence[str]) -> None:
    """The lanes of the type with these names are strict. `UnsupportedError` if the store cannot do that."""
    if "strict" not in core.backend.capabilities:
        what = f"strict lanes, which concurrency(strict=True) of {names[0]!r} needs"
        raise UnsupportedError("strict", type(core.backend).__name__, what)
    core.strict_types.update(names)


def check_batch(type: AnyType, doer: BaseDoer) -> None:
    """Refuse a limit that drops or replaces single items for a type that runs in batches."""
    if isinstance(doer, OnFullDoer) and type.batch is not None:
        problem = f"cannot run {type.name!r}, which runs in batches: a permit would belong to several items"
        raise InputError.of("on_full", doer.on_full, problem)


def prepare_limits(core: Core, doer: BaseDoer, on_full: OnFullCalls) -> None:
    """Make a doer with limits ready to be bound. `UnsupportedError` if the store does not have what it
    needs."""
    capabilities, store = core.backend.capabilities, type(core.backend).__name__
    if isinstance(doer, LimitedDoer | OnFullDoer) and "limits" not in capabilities:
        raise UnsupportedError("limits", store)
    if isinstance(doer, OnFullDoer):
        if "strict" not in capabilities:
            raise UnsupportedError("strict", store, f"concurrency(on_full={doer.on_full!r})")
        doer.attach(on_full)


def on_full_calls(core: Core, settler: Settler) -> OnFullCalls:
    """What a doer that drops or replaces items needs."""

    def lease_of(task: Task) -> Lease:
        return attempts_of(task)[0].lease

    def drop(task: Task, text: str) -> None:
        for held in attempts_of(task):
            if not held.over:
                held.over = True
                settler.decided(held, Drop(ErrorInfo(LIMIT_REACHED, text)))

    async def cancel(holders: Sequence[PermitHolder]) -> None:
        for tenant in {holder.tenant for holder in holders}:
            ids = [holder.id for holder in holders if holder.tenant == tenant]
            changed = await core.backend.cancel(ids, tenant=tenant, only_open=True)
            core.announcer.cancelled(changed.items, event_time(core, changed))
            announce_ended(core, changed)

    return OnFullCalls(lease_of, drop, cancel)
