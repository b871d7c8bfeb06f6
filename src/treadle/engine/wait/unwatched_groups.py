"""Groups that end with a value while no process waits for them.

Waits are not stored. The process that settled the last member asks all others whether they wait for the
group, and calls `on_unhandled_group` if none has answered within the grace period. A key in the store makes
sure that the hook is called once.
"""

from __future__ import annotations

from treadle.backend import Backend
from treadle.bulk_action import BULK_TYPE
from treadle.engine.hooks import Hooks, ignored
from treadle.engine.registry import Registry
from treadle.engine.settings import Settings
from treadle.engine.tasks import Tasks
from treadle.flow_control import OnUnhandledGroup, UnhandledGroup
from treadle.item import GROUP_TYPE, EndedGroup, Filter, Ref, Status
from treadle.store.rules.listing import LARGEST_PAGE

from .wait_result import decode_group_value
from .waiters import Waiters
from .wakeups import WakeUps


class UnwatchedGroups:
    def __init__(
        self,
        backend: Backend,
        registry: Registry,
        settings: Settings,
        hooks: Hooks,
        tasks: Tasks,
        waiters: Waiters,
        wakeups: WakeUps,
        hook: OnUnhandledGroup,
    ) -> None:
        self._backend = backend
        self._registry = registry
        self._settings = settings
        self._hooks = hooks
        self._tasks = tasks
        self._waited = waiters.waited
        self._ask = wakeups.ask
        self._hook = hook
        self._open: set[Ref] = set()
        """Groups that the other processes were asked about, without an answer so far."""

    def ended(self, group: EndedGroup) -> None:
        """A group has ended here: find out whether a process waits for it. The value of a nested group goes
        to the group around it."""
        ref = (group.tenant, group.id)
        if group.value is not None and group.type not in (GROUP_TYPE, BULK_TYPE) and not self._waited((ref,)):
            self._tasks.start(self._check(ref, group), "unhandled group")

    def awaited(self, refs: tuple[Ref, ...]) -> None:
        """Another process waits for these groups."""
        self._open.difference_update(refs)

    async def _check(self, ref: Ref, group: EndedGroup) -> None:
        self._open.add(ref)
        try:
            self._ask([ref])
            await self._settings.clock.sleep(self._settings.unhandled_grace)
            if ref in self._open and not self._waited((ref,)) and await self._claim(group):
                await self._call_hook(group)
        except Exception as error:  # noqa: BLE001  the store, or a value that cannot be decoded
            self._hooks.report(error, "hook", "on_unhandled_group failed")
        finally:
            self._open.discard(ref)

    async def _claim(self, group: EndedGroup) -> bool:
        key = f"treadle:unhandled:{group.id}"
        owner = self._settings.generate_id()
        return await self._backend.claim_key(key, owner, self._settings.keep, tenant=group.tenant)

    async def _call_hook(self, group: EndedGroup) -> None:
        result = decode_group_value(self._registry, group.type, group.value)
        info = UnhandledGroup(group.id, result, await self._states(group), await self._failed(group))
        await self._hooks.ask(self._hook, "on_unhandled_group", info, ignored, None)

    async def _failed(self, group: EndedGroup) -> int:
        if group.failed is not None:
            return group.failed
        (found,) = await self._backend.group([group.id], tenant=group.tenant)
        return 0 if found is None else found.failed

    async def _states(self, group: EndedGroup) -> dict[str, Status]:
        if "listing" not in self._backend.capabilities:
            return {}
        page = await self._backend.list(Filter(tenant=group.tenant, group_id=group.id), limit=LARGEST_PAGE)
        return {item.id: item.status for item in page.items}
