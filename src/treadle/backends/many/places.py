"""Places: which store has a tenant, and which store is behind an address.

Both are kept in the stores, as claimed keys of the tenant `treadle.stores`: they last, the first claim of a
key wins in the whole fleet, and they go along when a store is promoted.

| in | key | says |
| --- | --- | --- |
| each store | `store` | the id of this family of stores, the name of the store, the name of home |
| home | `member.0`, `member.1` ... | the names of all stores, in the order of their numbers |
| home | `joined.NAME` | that a store was told its name: one that has forgotten it has lost its data |
| home | `tenant.ACME` | the name of the store that has the tenant `ACME` |
| each store | `mark.ACME` | whether the tenant `ACME` is there, or where it went: see `tenant_moves` |
| home | `by` | that places are by root (`roots`), and of how many stores |

A tenant gets its place with its first write: the store that a hash of both names prefers. It is asked for,
not computed, so that stores can be added, and so that a tenant can be placed by hand.

Home names the first place of a tenant. A store that it has left says where it went from there, and is asked
each time: what a process remembers may be old. Who is sent on ends the move, if its mover has not.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar
from uuid import uuid4

from treadle.backend import MovesTenants, chosen_store, no_such_store, store_name
from treadle.base.wording import listed
from treadle.errors import BackendError, InputError, PlacementError, StoreUnavailable, WrongStore
from treadle.records import STORES_TENANT, TenantMark
from treadle.store.rules.tenant_moves import PREFIX, activated, decode_mark

from .member import Member, number_of

T = TypeVar("T")

TENANT: Final = STORES_TENANT
OWN: Final = "treadle."
"""How the names of tenants begin that are treadle's own. They are at home."""
FOR_EVER: Final = 100 * 366 * 86400.0
"""Seconds for which the keys are claimed."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
LONGEST: Final = 240
"""Bytes of a tenant's name up to which it stands in its key as it is."""
OPENING: Final = 2.0
"""Seconds to wait for a store to open after another one has."""
MOST_KNOWN: Final = 100_000
"""Tenants whose places a process remembers."""
MOST_HOPS: Final = 50
"""Stores that a tenant is followed through."""
SENT_ON: Final = 5
"""How often a call is sent on, if its tenant moves again and again."""
MOST_TENANTS: Final = 10_000
"""Tenants of a store that joins others with items in it."""


def check_names(names: Sequence[str]) -> None:
    """`InputError` for names that are no names of stores."""
    if not names:
        raise InputError("name at least one store: Treadle({'eu': url, 'us': url})", parameters=("backend",))
    for name in names:
        if not NAME.fullmatch(name):
            raise InputError.of(
                "backend", name, "is no name of a store: take up to 40 letters, digits, '-', '_' and '.'"
            )


class StorePlaces:
    """Which store is behind an address.

    members: by name, in the order in which the app names them. The first is home, unless they have one."""

    by_root = False

    def __init__(self, members: Mapping[str, Member]) -> None:
        self.by_name = dict(members)
        self.members: list[Member] = list(self.by_name.values())
        """By number."""
        self.home = self.members[0]
        self._accepted: Member | None = None
        """A store that has lost its data, and begins anew."""
        self._family = ""
        self._is_known = False
        """Whether a store has said which one is home: home was told it before the others."""
        for member in self.members:
            member.on_open.append(self._check)
            member.check = self._check

    def of_token(self, token: int) -> Member:
        """The store that gave a lease."""
        return self.members[number_of(token)]

    def named(self, name: str) -> Member:
        """The store of a name. `InputError` if there is none."""
        if name not in self.by_name:
            raise no_such_store(name, self.by_name)
        return self.by_name[name]

    def asked(self, members: Sequence[Member], store: str | None = None) -> Sequence[Member]:
        """Those of these stores that a read asks: all, or the one that it names."""
        name = chosen_store() if store is None else store
        if name is None:
            return members
        chosen = self.named(name)
        return [chosen] if chosen in members else []

    async def open(self) -> None:
        """Open the stores. One that does not answer is opened later. Home must answer."""
        if not self._family:
            await self._find_home()
        await self.home.open()
        opening = [asyncio.ensure_future(member.open()) for member in self.members if member is not self.home]
        for task in await within_patience(opening, OPENING):
            if (error := task.exception()) is not None and not isinstance(error, StoreUnavailable):
                raise error

    async def _find_home(self) -> None:
        """Ask the stores which of them is home. The first one is, if none of them knows."""
        if self.by_root:  # the first partition knows how many there are: others are not made then
            first = asyncio.ensure_future(self._said(self.members[0]))
            for task in await within_patience([first], OPENING):
                task.result()
        asking = {asyncio.ensure_future(self._said(member)): member.name for member in self.members}
        said = {asking[task]: task.result() for task in await within_patience(asking)}
        records = {name: record for name in self.by_name if (record := said.get(name)) is not None}
        homes = {name: record[2] for name, record in records.items()}
        self._is_known = bool(homes)
        for name, home in homes.items():
            if home not in self.by_name:
                raise WrongStore(
                    f"the store {name!r} ({store_name(self.by_name[name].backend)}) belongs to other stores, "
                    f"whose home is {home!r}: name that one too, or give {name!r} another address"
                )
        if len(set(homes.values())) > 1:
            known = ", ".join(f"{name} says {home}" for name, home in homes.items())
            raise WrongStore(f"these stores do not belong together: their homes differ ({known})")
        self.home = self.by_name[next(iter(homes.values()), self.members[0].name)]
        self._family = next((family for family, _, _ in records.values()), "")

    async def accept(self, name: str) -> None:
        """Open all stores, one of which has lost its data. It begins anew, under its name."""
        member = self.named(name)
        await self._find_home()
        await member.backend.open()
        if await self._record(member) is not None:
            raise InputError(f"the store {name!r} knows its name: there is nothing to accept")
        if owners := await _owners(member):
            raise InputError(
                f"the store at {store_name(member.backend)} has items of {listed(owners, 3)}: only an empty "
                f"one takes the place of {name!r}"
            )
        if self.by_root and member is self.home:
            raise InputError(f"{name!r} is home, and knows the order of the stores by root: restore its data")
        self._accepted = member
        try:
            for each in (self.home, *self.by_name.values()):
                await each.open()
        finally:
            self._accepted = None

    async def _lead_past(self, lost: Member) -> None:
        """Write down anew where tenants are that are in other stores: what is lost has led there."""
        if self.by_root:
            return
        for member in self.by_name.values():
            for tenant in [] if member is lost else await _owners(member):
                home, moves = self.home.backend, lost.backend
                await home.claim_key(_key(tenant), member.name, FOR_EVER, tenant=TENANT)
                mark = decode_mark(await member.backend.key_owner(PREFIX + tenant, tenant=TENANT))
                if mark is not None and isinstance(moves, MovesTenants):
                    away = TenantMark("away", mark.number, to=member.name)
                    await moves.tenant_moves.put_mark(tenant, None, away)

    async def _said(self, member: Member) -> tuple[str, str, str] | None:
        """What a store says about itself. None: nothing, or it does not answer."""
        try:
            await member.backend.open()
            return await self._record(member)
        except StoreUnavailable:
            return None

    async def _record(self, member: Member) -> tuple[str, str, str] | None:
        said = await member.backend.key_owner("store", tenant=TENANT)
        if said is None:
            return None
        family, name, home = said.split(" ")
        return family, name, home

    async def _check(self, member: Member) -> None:
        """The store was opened: check that it is the one of its name."""
        if member is self.home:
            self._family = await self._join(member, self._family or uuid4().hex)
            self._is_known = True
            self._compare_by(await member.backend.key_owner("by", tenant=TENANT))
            await self._number_all()
        else:
            await self._join(member, self._family)

    async def _join(self, member: Member, family: str) -> str:
        """Check what a store says about itself, or tell it. Returns the id of its family."""
        found = await self._record(member)
        if found is None:
            tenants = await self._tenants(member)
            for tenant in tenants:  # before it is told its name: a crash in between is made good then
                await self.home.backend.claim_key(_key(tenant), member.name, FOR_EVER, tenant=TENANT)
            await self._check_new(member)
            if member is self._accepted:
                await self._lead_past(member)
            said = f"{family} {member.name} {self.home.name}"
            await member.backend.claim_key("store", said, FOR_EVER, tenant=TENANT)
            found = await self._record(member)
        self._compare(member, found, family)
        if member is not self.home and not await self._has_joined(member):
            await self.home.backend.claim_key(_joined(member), family, FOR_EVER, tenant=TENANT)
        return family if found is None else found[0]

    async def _check_new(self, member: Member) -> None:
        """A store that knows nothing of the others must be new. One that has been among them has lost it."""
        if member is self._accepted:
            return
        if member is self.home:
            has_joined = self._is_known
        else:
            has_joined = await self._has_joined(member)
        if has_joined:
            raise WrongStore(
                f"the store {member.name!r} at {store_name(member.backend)} is empty, or is another one: "
                f"{member.name!r} has joined these stores before. Correct its address, or restore its data. "
                f"If they are lost: treadle stores accept {member.name}"
            )

    async def _has_joined(self, member: Member) -> bool:
        return await self.home.backend.key_owner(_joined(member), tenant=TENANT) is not None

    def _compare_by(self, found: str | None) -> None:
        if found is not None:
            raise WrongStore("these stores are by root, not by tenant: give by='root'")

    def _compare(self, member: Member, found: tuple[str, str, str] | None, family: str) -> None:
        where = f"the store at {store_name(member.backend)}, named {member.name!r} here,"
        if found is None:
            raise BackendError(f"{where} has forgotten its name")
        if found[1] != member.name:
            raise WrongStore(f"{where} is {found[1]!r}: two addresses were swapped, or a name was changed")
        if member is not self.home and found[0] != family:
            raise WrongStore(f"{where} belongs to other stores: is its address that of another app?")

    async def _tenants(self, member: Member) -> list[str]:
        """The tenants that a store has items of, when it joins the others."""
        tenants = await _owners(member)
        if len(tenants) > MOST_TENANTS:
            raise PlacementError(
                f"the store {member.name!r} has items of {len(tenants):,} tenants: at most {MOST_TENANTS:,} "
                "can join other stores. Begin with an empty one"
            )
        if member is not self.home:
            for tenant in tenants:
                owner = await self.home.backend.key_owner(_key(tenant), tenant=TENANT)
                if owner not in (None, member.name):
                    raise PlacementError(
                        f"the tenant {tenant!r} is in the store {owner!r}, and {member.name!r} has items of "
                        f"it too: let a worker of {member.name!r} alone work them off, and delete them"
                    )
        return tenants

    async def _number_all(self) -> None:
        """Agree with home on the numbers of all stores. Names of an app that is refused are not told to home:
        all others would have to name them too."""
        names = [self.home.name, *(name for name in self.by_name if name != self.home.name)]
        known = await self._numbered()
        left = [name for name in names if name not in known]
        for name in left:
            await self._check_newcomer(self.by_name[name])
        while left:
            await self.home.backend.claim_key(f"member.{len(known)}", left[0], FOR_EVER, tenant=TENANT)
            known = await self._numbered()
            left = [name for name in left if name not in known]
        self.members = [self.by_name[name] for name in known]
        for number, member in enumerate(self.members):
            member.number = number

    async def _numbered(self) -> list[str]:
        """The names that home knows. `WrongStore` if this app does not name all of them."""
        known: list[str] = []
        while (owner := await self.home.backend.key_owner(f"member.{len(known)}", tenant=TENANT)) is not None:
            known.append(owner)
        if others := [name for name in known if name not in self.by_name]:
            raise WrongStore(
                f"there are more stores than this app names: {', '.join(others)}. Their tenants would be "
                "left out: name all stores, in each process"
            )
        return known

    async def _check_newcomer(self, member: Member) -> None:
        """Check that a store may join, if it answers."""
        if member is self.home:
            return
        try:
            async with asyncio.timeout(OPENING):
                await member.backend.open()
                found = await self._record(member)
                if found is None:
                    await self._tenants(member)
        except (StoreUnavailable, TimeoutError):
            return
        if found is not None:
            self._compare(member, found, self._family)


async def within_patience(
    tasks: Collection[asyncio.Task[T]], first: float | None = None, others: float = OPENING
) -> list[asyncio.Task[T]]:
    """Wait until all have ended, or one has, and the others take much longer. Returns those that have ended,
    in their order. The others are cancelled.

    first, others: seconds to wait for the first one, and for the others then.
    """
    if not tasks:
        return []
    done, waiting = await asyncio.wait(tasks, timeout=first, return_when=asyncio.FIRST_COMPLETED)
    if waiting:
        more, waiting = await asyncio.wait(waiting, timeout=others)
        done |= more
    for task in tasks:
        if task in waiting:
            task.cancel()
        else:
            task.exception()  # the caller may raise the first error only
    return [task for task in tasks if task in done]


async def _owners(member: Member) -> list[str]:
    """The tenants that a store has items of."""
    if "listing" not in member.backend.capabilities:
        return []
    counts = await member.backend.counts(ended=True)
    return sorted({each.tenant for each in counts if not each.tenant.startswith(OWN)})


def _joined(member: Member) -> str:
    """The key at home that says that a store was told its name."""
    return f"joined.{member.name}"


class TenantPlaces(StorePlaces):
    """Which store has a tenant.

    id: of the item or group. Within a tenant it does not matter."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        super().__init__(members)
        self._known: OrderedDict[str, Member] = OrderedDict()
        self._asking: dict[str, asyncio.Task[Member]] = {}

    # -- tenants ---------------------------------------------------------------------------------------

    def known(self, tenant: str, id: str | None = None) -> Member | None:
        """Where a tenant is, if this process knows it."""
        if tenant.startswith(OWN):
            return self.home
        found = self._known.get(tenant)
        if found is not None:
            self._known.move_to_end(tenant)
        return found

    async def find(self, tenant: str | None, id: str | None = None) -> Member | None:
        """Where a tenant is. None: it has no place yet, so there is nothing of it."""
        assert tenant is not None
        found = self.known(tenant)
        if found is None:
            name = await self.home.call("key_owner", _key(tenant), tenant=TENANT)
            if name is not None:
                found = self.learn(tenant, await self.follow(tenant, self._named(tenant, name)))
        return found

    async def checked(self, tenant: str) -> Member | None:
        """As `find`, also if it has moved since this process has learned where it is."""
        found = self.known(tenant)
        if found is None:
            return await self.find(tenant)
        return await self.moved_from(tenant, found) or found

    async def having(self, tenant: str | None) -> Sequence[Member]:
        """The stores that may have something of a tenant. None: of any tenant."""
        if tenant is None:
            return self.members
        known = self.known(tenant)
        try:
            found = await self.checked(tenant)
        except StoreUnavailable:
            if known is None:
                raise
            found = known  # what is asked of it fails then, and is noted
        return [] if found is None else [found]

    # -- tenants that have moved -----------------------------------------------------------------------

    async def mark_at(self, member: Member, tenant: str) -> TenantMark | None:
        """What a store says about a tenant. None: it has taken part in no move of it."""
        return decode_mark(await member.call("key_owner", PREFIX + tenant, tenant=TENANT))

    async def moved_from(self, tenant: str, member: Member) -> Member | None:
        """Where a tenant is, if it is not in this store any more. None: as far as the store says, it is."""
        if self.by_root or tenant.startswith(OWN):
            return None
        found = await self.follow(tenant, member)
        if found is member:
            return None
        return self.learn(tenant, found)

    async def last_move(self, tenant: str, member: Member) -> TenantMark | None:
        """The last move of a tenant in which this store has taken part. None: it has taken part in none."""
        if self.by_root or tenant.startswith(OWN):
            return None
        return await self.mark_at(member, tenant)

    async def follow(self, tenant: str, member: Member) -> Member:
        """Where a tenant is that was in this store once. A move that is decided is ended on the way."""
        for _ in range(MOST_HOPS):
            mark = await self.mark_at(member, tenant)
            if mark is None or mark.state in ("owned", "frozen") or not mark.to:
                return member
            new = self._named(tenant, mark.to)
            if mark.state == "away":
                await self.finish(tenant, mark, new)
            member = new
        raise BackendError(f"the stores send on who asks for {tenant!r}, and none has it")

    async def finish(self, tenant: str, decided: TenantMark, new: Member) -> None:
        """Let a store own the tenant that another one has given away, if it does not yet."""
        mark = await self.mark_at(new, tenant)
        if mark is None:
            return
        owned = activated(mark, decided.move, decided.freeze)
        if owned is not None and isinstance(new.backend, MovesTenants):
            await new.backend.tenant_moves.receive(tenant, mark, owned)

    async def of_key(self, tenant: str, key: str) -> Member:
        """Where a key is claimed."""
        return await self.of(tenant)

    async def having_key(self, tenant: str, key: str) -> Sequence[Member]:
        """Where a key may be claimed: in one store, or in none."""
        return await self.having(tenant)

    async def of(self, tenant: str) -> Member:
        """Where a tenant is. It gets a place if it has none. Concurrent callers share one request."""
        found = self.known(tenant)
        if found is not None:
            return found
        asking = self._asking.get(tenant)
        if asking is None:
            asking = self._asking[tenant] = asyncio.ensure_future(self._ask(tenant))
            asking.add_done_callback(lambda task: self._asked(tenant, task))
        return await asyncio.shield(asking)

    def _asked(self, tenant: str, task: asyncio.Task[Member]) -> None:
        self._asking.pop(tenant, None)
        if not task.cancelled():
            task.exception()  # the callers have it

    async def _ask(self, tenant: str) -> Member:
        found = await self.find(tenant)
        return await self.place(tenant, self.preferred(tenant)) if found is None else found

    async def place(self, tenant: str, name: str) -> Member:
        """Give a tenant its place, unless it has one. Returns where it is."""
        await self.home.call("claim_key", _key(tenant), name, FOR_EVER, tenant=TENANT)
        found = await self.find(tenant)
        if found is None:
            raise BackendError(f"{store_name(self.home.backend)} has forgotten where {tenant!r} is")
        return found

    def preferred(self, tenant: str) -> str:
        """The store that a tenant gets by itself. Another store more changes few tenants."""
        return max(self.by_name, key=lambda name: hashlib.blake2b(f"{name}\0{tenant}".encode()).digest())

    def _named(self, tenant: str, name: str) -> Member:
        member = self.by_name.get(name)
        if member is None:
            raise PlacementError(
                f"the tenant {tenant!r} is in the store {name!r}, which this app does not name: "
                f"it names {', '.join(self.by_name)}. Name all stores, and start it anew",
                parameters=("tenant",),
            )
        return member

    def learn(self, tenant: str, member: Member) -> Member:
        """A store has a tenant: another one may have had it."""
        self._known[tenant] = member
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return member

    def abandon(self) -> None:
        """The event loop of the requests that are under way is gone."""
        self._asking.clear()


def _key(tenant: str) -> str:
    """The key that says where a tenant is. A name may be as long as a key can be."""
    if len(tenant.encode()) <= LONGEST:
        return f"tenant.{tenant}"
    return f"tenant {hashlib.blake2b(tenant.encode(), digest_size=32).hexdigest()}"
