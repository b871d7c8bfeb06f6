"""Transactions over several stores: each is in one of them, that of a tenant."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager

from msgspec.structs import replace

from treadle.backend import Transaction
from treadle.errors import InputError, PlacementError, StoreUnavailable, UnsupportedError
from treadle.item import ItemState, Lease, Loss, Record, Rejected, Settled, Settlement, Submission, Submitted

from .member import Member
from .places import TenantPlaces
from .read import tagged
from .roots import RootPlaces
from .view import Views


@contextmanager
def within(tx: object, member: Member, tenant: str | None) -> Generator[None]:
    """A call in the user's transaction `tx`. `PlacementError` if its connection is not to this store."""
    try:
        yield
    except InputError as error:
        if tx is None or "tx" not in error.parameters or "the connection is to" not in str(error):
            raise
        whose = "the item" if tenant is None else f"the tenant {tenant!r}"
        raise PlacementError(
            f"tx: {whose} is in the store {member.name!r}, and the connection is to another database: "
            "begin the transaction there, or enqueue without tx=",
            parameters=("tx",),
        ) from error


def check_transactions(places: TenantPlaces) -> None:
    """Refuse a transaction by root: what is stored next may be elsewhere."""
    if places.by_root:
        raise UnsupportedError("transactions", "ManyStores", advice="by root a step is in one store")


def tenants_of(submission: Submission) -> set[str]:
    return {item.tenant for item in submission.items}


async def place_of_submission(places: TenantPlaces, submission: Submission) -> Member:
    """The store of what is one step. `PlacementError` if it would be in several."""
    items = submission.items
    if not items:
        return places.home
    if isinstance(places, RootPlaces):
        return places.of_items(items)
    first = await places.of(items[0].tenant)
    if len(items) > 1 and not submission.alike:
        for tenant in sorted(tenants_of(submission)):
            other = await places.of(tenant)
            if other is not first:
                raise PlacementError(
                    f"one submission is one step, and its tenants are in several stores: {items[0].tenant!r} "
                    f"is in {first.name!r}, {tenant!r} in {other.name!r}. Submit once for each tenant",
                    parameters=("tenant",),
                )
    return first


class ManyTransactions:
    def __init__(self, places: TenantPlaces, views: Views) -> None:
        self._places = places
        self._views = views

    @asynccontextmanager
    async def of(self, tenant: str) -> AsyncGenerator[Transaction]:
        """A transaction in the store of a tenant."""
        member = await self._places.checked(tenant) or await self._places.of(tenant)
        if member.is_away:
            raise member.refusal()
        await member.open()
        async with member.backend.transaction() as transaction:
            yield ManyTransaction(transaction, member, self._places, self._views)
        self._views.heat([member.number])


class ManyTransaction:
    """A transaction of one store, with leases as they are known outside."""

    def __init__(self, inner: Transaction, member: Member, places: TenantPlaces, views: Views) -> None:
        self._inner = inner
        self._member = member
        self._places = places
        self._views = views

    @property
    def connection(self) -> object:
        return self._inner.connection

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        for each in settlements:
            self._check(each.lease.tenant, self._views.adopted.place_of(each.lease))
        settled = await self._inner.settle(
            [replace(each, lease=self._views.adopted.inner(each.lease)) for each in settlements]
        )
        for each, outcome in zip(settlements, settled.outcomes, strict=True):
            await self._check_stays(each.lease, outcome.loss)
        return settled

    async def submit(self, submissions: Sequence[Submission]) -> Sequence[tuple[Submitted, ...] | Rejected]:
        for each in submissions:
            for tenant in tenants_of(each):
                self._check(tenant, await self._places.of(tenant))
        return await self._inner.submit(submissions)

    async def record(self, records: Sequence[Record]) -> Sequence[Loss | None]:
        losses = await self._inner.record(
            [replace(each, lease=self._views.adopted.inner(each.lease)) for each in records]
        )
        for each, loss in zip(records, losses, strict=True):
            await self._check_stays(each.lease, loss)
        return losses

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        if tenant is not None and (await self._places.find(tenant)) is not self._member:
            self._check(tenant, await self._places.of(tenant))
        found = await self._inner.get(ids, tenant=tenant)
        return [None if state is None else tagged(state, self._member) for state in found]

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        self._check(tenant, await self._places.of(tenant))
        return await self._inner.claim_key(key, owner, ttl, tenant=tenant)

    async def _check_stays(self, lease: Lease, loss: Loss | None) -> None:
        """The item is not there. It is not lost if its tenant has moved before the transaction wrote."""
        if loss == "not_found" and await self._places.moved_from(lease.tenant, self._member) is not None:
            raise StoreUnavailable(
                f"the tenant {lease.tenant!r} has left the store {self._member.name!r} since the transaction "
                "began: it is rolled back"
            )

    def _check(self, tenant: str, member: Member) -> None:
        if member is not self._member:
            raise PlacementError(
                f"the transaction is in the store {self._member.name!r}, and the tenant {tenant!r} is in "
                f"{member.name!r}: do this outside of the transaction",
                parameters=("tenant",),
            )
