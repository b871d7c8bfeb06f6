"""For those who want only a queue: claim one item, do it, say how it went.

    lease = await client.claim_one(queues=["mail"], lease=30)
    if lease is not None:
        try:
            await lease.complete(send(**lease.input))
        except SmtpError as error:
            await lease.fail(error)

The guarantees are those of a `Worker`: attempts are counted by the store, a lapsed lease frees the item for
others, and what comes too late is refused (`LeaseLost`) and changes nothing.
"""

from __future__ import annotations

from typing import Any, cast

from treadle.engine.core import Core
from treadle.engine.run.decide import Decision, Succeed, judged, raised, undecodable
from treadle.engine.run.desk import Desk
from treadle.engine.run.dispatch import is_gate, opened
from treadle.engine.run.settle import GiveBack, PendingSettlement
from treadle.engine.submit.build_item import read_stored, retry_of
from treadle.errors import LeaseLost, PayloadError
from treadle.item import Demand, Heartbeat, Lease
from treadle.result_plan import plan
from treadle.retry import Retry, merge_retry
from treadle.timing import Duration, seconds


class ClaimedLease:
    """One attempt of one item, in the caller's hands until it says how it ended, or the lease lapses."""

    def __init__(self, core: Core, lease: Lease, worker: str, duration: float) -> None:
        self._core = core
        self._lease = lease
        self._worker = worker
        self._duration = duration
        self._over = False
        self.input: dict[str, Any] = _input(core, lease)
        """The arguments, by name."""

    @property
    def id(self) -> str:
        return self._lease.id

    @property
    def type(self) -> str:
        return self._lease.type

    @property
    def attempt(self) -> int:
        return self._lease.attempt

    @property
    def tenant(self) -> str:
        return self._lease.tenant

    async def complete(self, value: Any = None) -> None:
        """The item succeeded, with this value."""
        planned = plan(value, self._lease.id)
        entry = PendingSettlement(self._lease, Succeed(planned), contributions=planned.contributions)
        if value is not None:
            entry.result = _encoded(self._core, self._lease.type, value)
        await self._settle(entry)

    async def fail(self, error: BaseException | str, *, retry: Retry | None = None) -> None:
        """The attempt failed: tried again as the policy says, or dead. `Abort` and `Defer` mean what they
        mean in a handler."""
        failure = error if isinstance(error, BaseException) else RuntimeError(error)
        settings = self._core.settings
        policy = merge_retry(retry_of(read_stored(self._lease.options), self._policy()), retry)
        decision = raised(
            self._lease,
            failure,
            lambda _: None,
            policy,
            await self._core.backend.now(),
            settings.random.random,
        )
        await self._settle(PendingSettlement(self._lease, decision))

    def _policy(self) -> Retry:
        """That of its type, if that is known here."""
        type = self._core.registry.get(self._lease.type)
        return self._core.settings.retry if type is None else self._core.itemizer.base(type).retry

    async def release(self, delay: Duration = 0) -> None:
        """Give it back for others, the attempt included."""
        await self._settle(PendingSettlement(self._lease, GiveBack(seconds(delay, field="delay"))))

    async def renew(self, lease: Duration | None = None) -> None:
        """Keep it for as long again, or for `lease` seconds, from now."""
        self._check()
        duration = self._duration if lease is None else seconds(lease, field="lease")
        pulse = await self._core.backend.beat(
            Heartbeat(worker=self._worker, lease=duration, held=(self._lease,), types=())
        )
        if why := pulse.lost.get(self._lease.token):
            raise LeaseLost(self.id, why)

    async def _settle(self, entry: PendingSettlement) -> None:
        self._check()
        answer = await Desk(self._core, _nothing).settler.at_once(entry)
        await self._core.backend.remove_worker(self._worker)
        if answer.verb == "stale":
            raise LeaseLost(self.id, answer.loss or "taken")
        self._over = True

    def _check(self) -> None:
        # The store takes a second word from one token for the first one repeated, and says that all is well.
        if self._over:
            raise LeaseLost(self.id, "completed")


async def claim_one(
    core: Core,
    *,
    tenant: str | None,
    types: tuple[str, ...] | None,
    queues: tuple[str, ...] | None,
    lease: float,
) -> ClaimedLease | None:
    """Lease one item. Each lease has a worker of its own in the store, so that it lapses by itself."""
    worker = core.settings.generate_id()
    await core.backend.beat(Heartbeat(worker=worker, lease=lease, types=types))
    demand = Demand(
        worker=worker,
        limit=1,
        types=None if types is None else dict.fromkeys(types, 1),
        queues=queues,
        tenants=None if tenant is None else (tenant,),
    )
    claim = await core.backend.claim(demand)
    found: ClaimedLease | None = None
    for each in claim.leases:
        try:
            found = await _opened(core, each, worker, lease) or found
        except PayloadError as error:
            await Desk(core, _nothing).settler.at_once(PendingSettlement(each, undecodable(error)))
    if found is None:
        await core.backend.remove_worker(worker)
    return found


async def _opened(core: Core, lease: Lease, worker: str, duration: float) -> ClaimedLease | None:
    if lease.verdict is None and is_gate(lease.type):
        await Desk(core, _nothing).settler.at_once(opened(lease))
        return None
    if lease.verdict is None:
        return ClaimedLease(core, lease, worker, duration)
    decision: Decision = judged(lease, lease.verdict)
    await Desk(core, _nothing).settler.at_once(PendingSettlement(lease, decision))
    return None


def _input(core: Core, lease: Lease) -> dict[str, Any]:
    type = core.registry.get(lease.type)
    if type is not None:
        return type.decode_input(lease.input, core.settings.codec)
    decoded = core.settings.codec.decode(lease.input)
    return cast("dict[str, Any]", decoded) if isinstance(decoded, dict) else {"input": decoded}


def _encoded(core: Core, type: str, value: Any) -> bytes:
    known = core.registry.get(type)
    codec = core.settings.codec
    return codec.encode(value) if known is None else known.encode_result(value, codec)


def _nothing() -> None:
    """No slot is freed: a lease claimed alone takes none."""
