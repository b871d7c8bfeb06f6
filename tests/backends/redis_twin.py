"""Random calls of every verb of a memory backend and of a Redis backend. Both must answer the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict, replace

from tests.backends.random_calls import LANES, QUEUES, TENANTS, TYPES, WORKERS, RandomCalls
from treadle.backends.memory import MemoryBackend
from treadle.backends.redis import RedisBackend
from treadle.errors import TreadleError
from treadle.item import (
    Claim,
    Contribution,
    Count,
    Demand,
    EndedGroup,
    GroupState,
    Heartbeat,
    HeartbeatReply,
    Item,
    ItemUpdate,
    KeyPolicy,
    Lease,
    Outcome,
    Page,
    ReleasedItem,
)
from treadle.store.rules.settlement import Counters, WaitingAgain, after_loss
from treadle.testing import ManualClock

OWN = {"token", "ref", "fairness", "cursor", "left", "unknown"}
"""Fields that each store fills as it likes."""


UNORDERED = (Count, EndedGroup, ReleasedItem)
"""Of which answers have lists in any order."""


class Twins:
    """Calls both, compares their answers, and returns that of the memory backend.

    in_order: claims hand out the same items in the same order.
    """

    skipped: frozenset[str] = frozenset(("overview", "marks", "unknown_leases"))
    """Verbs that neither gets: their answers are rough, or in another order."""

    def __init__(self, memory: MemoryBackend, redis: RedisBackend, *, in_order: bool) -> None:
        self._in_order = in_order
        self.store = memory.store
        self._memory, self._redis = memory, redis
        self._leases: dict[int, Lease] = {}
        """The leases of the Redis backend, by the token of the same lease of the memory backend."""
        self._versions: dict[int | None, int | None] = {}
        """The same for versions of groups."""
        self._numbers: dict[int, int] = {}
        """The same for the stores' own numbers of items that were leased."""

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        async def call(*args: Any, **options: Any) -> Any:
            await self._set_clock()
            if verb in self.skipped:
                return None
            answer = await _answer(getattr(self._memory, verb), args, options)
            twin_args = [self._translated(each) for each in args]
            twin_options = {name: self._translated(value) for name, value in options.items()}
            twin = await _answer(getattr(self._redis, verb), twin_args, twin_options)
            answer, twin = (_sorted(each, all=not self._in_order) for each in (answer, twin))
            self._learn(answer, twin)
            tokens = {lease.token: token for token, lease in self._leases.items()}
            found = difference(_comparable(answer, {}), _comparable(twin, tokens))
            assert found is None, f"{found} in {verb}{args}{options}"
            if isinstance(answer, TreadleError):
                raise answer
            return answer

        return call

    def after_loss(self, now: float, counters: Counters, number: int, **options: Any) -> WaitingAgain:
        """So that both delay a lost item by the same time: it depends on the number of the item."""
        return after_loss(now, counters, self._numbers[number], **options)

    async def _set_clock(self) -> None:
        link = self._redis._link
        await link.command(b"SET", link.key("shift"), f"={self._memory.store.now()!r}")

    def _translated(self, value: Any) -> Any:
        """An argument for the Redis backend."""
        if isinstance(value, Lease):
            return self._leases[value.token]
        if isinstance(value, Contribution):
            return replace(value, version=self._versions.get(value.version, value.version))
        if isinstance(value, list | tuple):
            return type(value)(self._translated(each) for each in value)
        if isinstance(value, msgspec.Struct):
            fields = {
                name: self._translated(each) for name, each in asdict(value).items() if name != "fairness"
            }
            return replace(value, **fields)
        return value

    def _learn(self, answer: Any, twin: Any) -> None:
        """Find the leases, and the versions of groups, in two answers."""
        if isinstance(answer, GroupState) and isinstance(twin, GroupState):
            self._versions[answer.version] = twin.version
        if isinstance(answer, Lease) and isinstance(twin, Lease):
            self._leases[answer.token] = twin
            self._numbers[answer.ref] = twin.ref
        elif isinstance(answer, list | tuple) and isinstance(twin, list | tuple):
            for one, other in zip(answer, twin, strict=False):
                self._learn(one, other)
        elif isinstance(answer, msgspec.Struct) and type(answer) is type(twin):
            for one, other in zip(asdict(answer).values(), asdict(twin).values(), strict=True):
                self._learn(one, other)


async def _answer(verb: Callable[..., Any], args: Any, options: Any) -> Any:
    try:
        return await verb(*args, **options)
    except TreadleError as error:
        return error


def _sorted(answer: Any, *, all: bool) -> Any:
    """Doomed items are handed out in any order."""
    if not isinstance(answer, Claim):
        return answer
    loose = sorted(
        (lease for lease in answer.leases if all or lease.verdict), key=lambda lease: (lease.tenant, lease.id)
    )
    ready = () if all else (lease for lease in answer.leases if not lease.verdict)
    return replace(answer, leases=(*ready, *loose))


def _comparable(value: Any, tokens: Mapping[int, int]) -> Any:
    """A value that can be compared."""
    if isinstance(value, TreadleError):
        return type(value).__name__, str(value)
    if isinstance(value, list | tuple):
        found = [_comparable(each, tokens) for each in value]
        return sorted(found, key=repr) if value and isinstance(value[0], UNORDERED) else found
    if isinstance(value, Mapping):
        return {tokens.get(key, key): _comparable(each, tokens) for key, each in value.items()}
    if isinstance(value, msgspec.Struct):
        own = OWN if isinstance(value, Lease | Claim | Page | HeartbeatReply) else ()
        fields = {name: each for name, each in asdict(value).items() if name not in own}
        if isinstance(value, GroupState | Outcome):
            fields["version"] = value.version > 0
        if isinstance(value, GroupState):
            fields["cancelled"] = value.cancelled is not None  # any of the cancelled members
        return type(value).__name__, _comparable(fields, tokens)
    return value


def difference(expected: Any, found: Any, where: str = "") -> str | None:
    """Where two values differ first, and how."""
    if expected == found:
        return None
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        pairs = [(f"{where}.{name}", expected[name], found[name]) for name in expected]
    elif (
        isinstance(expected, list | tuple) and isinstance(found, list | tuple) and len(expected) == len(found)
    ):
        pairs = [(f"{where}[{n}]", *pair) for n, pair in enumerate(zip(expected, found, strict=True))]
    elif isinstance(expected, list) and isinstance(found, list):
        less, more = [e for e in expected if e not in found], [f for f in found if f not in expected]
        return f"{where}: without {less!r}, with {more!r}"
    else:
        return f"{where}: {expected!r} became {found!r}"
    return next(filter(None, (difference(one, other, place) for place, one, other in pairs)), None)


class TwinCalls(RandomCalls):
    """one_line: all items are in one queue, tenant and lane, so that a claim has no turns to keep."""

    def __init__(self, seed: int, redis: RedisBackend, *, one_line: bool) -> None:
        self.clock = ManualClock()
        memory = MemoryBackend(self.clock)
        super().__init__(seed, Twins(memory, redis, in_order=one_line), self.clock.advance)
        self._one_line = one_line
        self.verbs += [self.update] * 2

    def item(self, **fields: Any) -> Item:
        made = super().item(**fields)
        if made.key is not None and not made.group_id:
            policies: list[KeyPolicy] = ["existing", "existing", "error", "replace", "replace", "debounce"]
            policy = self.random.choice(policies)
            longest = self.random.choice((None, 10.0)) if policy == "debounce" else None
            made = replace(made, input=made.id.encode(), key_policy=policy, debounce_max=longest)
        if made.after and self.random.random() < 0.1:
            made = replace(made, must_exist=made.after[:1])
        return replace(made, tenant="default", queue="default", lane="") if self._one_line else made

    async def claim(self) -> None:
        """All that there is, unless there is one line: whose turn it is, is another test's matter."""
        if self._one_line:
            await super().claim()
            return
        worker, some = self.random.choice(WORKERS), self.random.sample(TYPES, 2)
        await self.backend.beat(Heartbeat(worker=worker, lease=30.0))
        types = self.random.choice((None, dict.fromkeys(some, 100)))
        queues = self.random.choice((None, (self.random.choice(QUEUES),)))
        tenants = self.random.choice((None, (self.random.choice(TENANTS),)))
        demand = Demand(worker=worker, limit=100, types=types, queues=queues, tenants=tenants)
        self.leases += (await self.backend.claim(demand)).leases

    async def update(self) -> None:
        changes = ItemUpdate(
            run_at=self.random.choice((UNSET, UNSET, self.clock.now() + 7.0)),
            priority=self.random.choice((UNSET, 5)),
            lane=UNSET if self._one_line else self.random.choice((UNSET, *LANES)),
            queue=UNSET if self._one_line else self.random.choice((UNSET, *QUEUES)),
            deadline=self.random.choice((UNSET, UNSET, None, self.clock.now() + 30.0)),
        )
        await self.backend.update([self.some_id()], changes, tenant=self.tenant())

    async def prune(self) -> None:
        """All that can be pruned: which comes first is open."""
        await self.backend.prune(1000)

    async def step(self) -> str:
        await self.clock.advance(2**-10)  # no two calls at one instant: the order of equal instants is open
        return await super().step()

    async def settle(self) -> None:
        if self.leases:
            await super().settle()
