"""Tell: look for problems again and again, and tell a receiver what has changed: once in the whole fleet.

Each process that knows the receiver runs a `ProblemWatch`. A look is an occurrence of a hidden schedule, so
one process does it. What has changed is submitted with the fire of this occurrence, in one step: a message
for each change, and with it all problems that are known now. The next look compares with the newest message.
A message that tells nothing says which problems are gone for now: they are over when they stay so.

A message is an item of a hidden type. The process that has looked claims it by hand, since its workers may
serve other queues, and tells the receiver. If that fails, the item is tried again, as any other.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Never, cast

import msgspec
from msgspec.structs import replace

from treadle.backend import missing_stores
from treadle.base.callables import is_async, raised_by_user
from treadle.base.ids import slot_of_text
from treadle.bulk_action import OPERATORS
from treadle.engine.core import Core, new_id
from treadle.errors import UnsupportedError
from treadle.item import OPEN, TELL_NAMES, TELL_TYPE, Filter, Fire, Item, Rejected, Schedule
from treadle.item_facts import MAX_WAIT
from treadle.logs.lines import WARNING, Seldom, log_line, repeated
from treadle.manual_lease import ClaimedLease, claim_one
from treadle.problems import Problem
from treadle.retry import Retry
from treadle.store.rules.submission import rejection_error

from .store_look import look_at
from .webhook import EVERY, OnProblem, ProblemChange, ProblemKind, Webhook, WebhookError, check_receiver

NEEDS: Final = ("listing", "watching", "schedules")
"""Capabilities of a store that can be watched."""
LEASE: Final = 30.0
"""Seconds for which a process has the right to look, or to tell a message."""
PATIENCE: Final = 20.0
"""Seconds that a receiver may take. Less than the lease."""
SHARE: Final = 20
"""The pause after a look is this many times as long as the look, at least."""
RETRY: Final = Retry(attempts=100, base=1.0, factor=2.0, max=900.0, jitter=0.2)
"""For messages that cannot be told: about a day."""
KEPT: Final = 30 * 86_400.0
"""Seconds for which messages are kept. If nothing has changed for longer, what is still a problem is told
again."""
MOST: Final = 100
"""Problems that are told at once."""
WORSE: Final = 10
"""A problem has changed if it is about this many times as many items as it was told."""
ONE: Final = ("killing", "not_submitted", "blocked")
"""Kinds whose refs are items or workers that come and go: there is one such problem, the first."""
SPREAD: Final = 3
"""Of suspects and of blocked workers, this many times as many are a change."""
LINGER: Final = 300.0
"""Seconds for which a problem of these kinds must be gone until it is over:"""
LINGERING: Final = ("silent", "blocked", "dying", "flood", "late")


class KnownProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem as it was last told."""

    kind: str
    text: str
    fix: str
    refs: tuple[str, ...]
    items: int
    since: float
    gone_at: float = 0.0
    """When it was missed first. 0: it is there."""
    id: str = ""
    """The same from its first message to the last."""

    @property
    def names(self) -> frozenset[str]:
        return names_of(self)


class TellInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The input of a message."""

    change: ProblemChange | None = None
    """None: there is nothing to tell, but something else is known."""
    known: tuple[KnownProblem, ...] = ()
    """All problems that are known after the look."""


FIELDS: Final = ("kind", "text", "fix", "refs", "items", "since")
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(TellInput)


def names_of(problem: Problem | KnownProblem) -> frozenset[str]:
    """What a problem is known by, among those of its kind. Pauses of a queue, for several tenants, have the
    same refs, but each has its own remedy."""
    if problem.kind == "paused":
        return frozenset((problem.fix,))
    return frozenset(("",) if problem.kind in ONE or not problem.refs else problem.refs)


class ProblemCompare:
    """Compares the problems that were told with those that there are now."""

    def __init__(
        self,
        known: Sequence[KnownProblem],
        found: Iterable[Problem],
        now: float,
        tenant: str | None = None,
        *,
        partial: bool = False,
    ) -> None:
        """partial: a store did not answer. What was not found may be there: only stores are known to be
        back."""
        self._whose = "" if tenant is None else tenant
        self.changes: list[tuple[str, KnownProblem]] = []
        """What has changed: `appeared`, `changed` or `ended`, and the problem."""
        self.known: list[KnownProblem] = []
        there: dict[str, set[str]] = {}
        for problem in list(found)[:MOST]:
            if problem.kind in ONE and problem.kind in there:
                continue
            names = names_of(problem)
            there.setdefault(problem.kind, set()).update(names)
            alike = [each for each in known if each.kind == problem.kind]
            self._add(problem, names, alike, now)
        for each in known:
            if not there.get(each.kind, set()).isdisjoint(each.names):
                continue
            if partial and each.kind != "store_away":
                self.known.append(each)
                continue
            gone_at = each.gone_at or now
            if each.kind in LINGERING and now - gone_at < LINGER:
                self.known.append(replace(each, gone_at=gone_at))
            else:
                self.changes.append(("ended", each))
        self.is_changed = bool(self.changes) or {_key(each) for each in known if each.gone_at} != {
            _key(each) for each in self.known if each.gone_at
        }
        """Whether what is known must be stored."""

    def _add(
        self, problem: Problem, names: frozenset[str], known: Sequence[KnownProblem], now: float
    ) -> None:
        before = [each for each in known if not names.isdisjoint(each.names)]
        most = max((each.items for each in before), default=0)
        is_new = names - {name for each in known for name in each.names}
        worse = bool(is_new) or 0 < most * WORSE <= problem.items
        if before and problem.kind in ("killing", "blocked"):
            worse = _differs(problem, before[0])
        says = worse or not before
        shown = before[0] if before and problem.kind in ONE and not says else problem
        now_known = KnownProblem(
            shown.kind,
            shown.text,
            shown.fix,
            shown.refs,
            problem.items if says else most,
            min((each.since for each in before), default=now),
            id=self._id(problem.kind, names, before, now),
        )
        self.known.append(now_known)
        if says:
            self.changes.append(("changed" if before else "appeared", now_known))

    def _id(self, kind: str, names: frozenset[str], before: Sequence[KnownProblem], now: float) -> str:
        """That of the first problem which this one was, unless another one was it too."""
        taken = {each.id for each in self.known}
        text = "\n".join((self._whose, kind, repr(now), *sorted(names)))
        made = f"{kind}-{hashlib.blake2s(text.encode(), digest_size=8).hexdigest()}"
        return next((each.id for each in before if each.id and each.id not in taken), made)


def _key(problem: KnownProblem) -> tuple[str, frozenset[str]]:
    return problem.kind, problem.names


def _differs(problem: Problem, last: KnownProblem) -> bool:
    """Whether there are many more suspects or blocked workers than were told; or, of suspects, others, or
    half as many."""
    now, before = set(problem.refs), set(last.refs)
    fewer = 2 * len(now) <= len(before) or now.isdisjoint(before)
    return len(now) >= SPREAD * len(before) or (problem.kind == "killing" and fewer)


class ProblemWatch:
    """Looks for problems, and tells a receiver what has changed. Any number of them, in any processes, tell
    it once."""

    def __init__(self, core: Core, tenant: str | None, receiver: OnProblem) -> None:
        check_receiver(receiver)
        missing = [each for each in NEEDS if each not in core.backend.capabilities]
        if missing:
            raise UnsupportedError(missing[0], type(core.backend).__name__, "on_problem")
        self._core = core
        self._tenant = tenant
        self._receiver = receiver
        self._every, self._max_wait, self._ignore = EVERY, MAX_WAIT, frozenset[ProblemKind]()
        if isinstance(receiver, Webhook):
            self._every, self._max_wait, self._ignore = receiver.every, receiver.max_wait, receiver.ignore
        self._calling: asyncio.Future[Any] | None = None
        """The last call of a receiver in a thread."""
        self._seldom = Seldom(monotonic=core.settings.clock.monotonic)
        self._is_taken = True
        """Whether the receiver took the last message that was told here."""
        self._owner = core.settings.generate_id()
        self._stored_in = OPERATORS if tenant is None else tenant
        digest = hashlib.blake2s(f"{tenant}\n{_key_of(receiver)}".encode()).hexdigest()
        self.name = f"{TELL_NAMES}{digest[:16]}"
        """The name of its schedule, of the queue of its messages, and of their workflow."""

    async def run(self, *, at_once: bool = True) -> Never:
        """Watch until cancelled. at_once: False to wait before the first look, as for a fleet that starts."""
        await self._core.connect()
        if not at_once:
            await self._core.settings.clock.sleep(self._every)
        while True:
            wait = self._every
            try:
                wait = await self.run_once()
            except Exception as error:  # noqa: BLE001  problems that are told late are no reason to stop
                self._report(error, "could not look for problems to tell; will retry")
            await self._core.settings.clock.sleep(wait)

    async def run_once(self) -> float:
        """Look, if it is time and no other process does, and tell what there is to tell. Returns the seconds
        until the next look."""
        backend = self._core.backend
        now = await backend.now()
        stored = await backend.put_schedule(Schedule(name=self.name, next_at=now, tenant=self._stored_in))
        if stored.next_at is None or stored.paused:
            return self._every
        if stored.next_at > now:
            return min(stored.next_at - now, self._every)
        key = f"{self.name}:{stored.next_at!r}"
        if not await backend.claim_key(key, self._owner, LEASE, tenant=self._stored_in):
            return self._every
        if await self._look(stored.next_at):
            await self.tell()
        return self._every

    async def _look(self, at: float) -> bool:
        """Submit what has changed. False: another process has looked."""
        backend, monotonic = self._core.backend, self._core.settings.clock.monotonic
        began = monotonic()
        with missing_stores() as missing:
            look = await look_at(self._core, self._tenant, self._max_wait, quick=True)
        where = Filter(tenant=self._stored_in, workflow=self.name)
        newest = (await backend.list(where, limit=1)).items
        known = _decoder.decode(newest[0].input).known if newest else ()
        now = look.overview.now
        found = [each for each in look.problems if each.kind not in self._ignore]
        compared = ProblemCompare(known, found, now, self._tenant, partial=bool(missing))
        items = tuple(self._messages(compared, now))
        next_at = now + max(self._every, SHARE * (monotonic() - began))
        answer = await backend.fire(Fire(name=self.name, at=at, next_at=next_at, items=items))
        if isinstance(answer, Rejected):
            raise rejection_error(answer)
        return answer is not None

    def _messages(self, compared: ProblemCompare, now: float) -> Iterator[Item]:
        silent = [(None, None)] if compared.is_changed else []
        for change, problem in compared.changes or silent:
            id, made = new_id(self._core, slot_of_text(self.name)), None
            if problem is not None:
                fields = {name: getattr(problem, name) for name in FIELDS}
                lasted = (problem.gone_at or now) - problem.since if change == "ended" else None
                made = ProblemChange(
                    id=id,
                    change=cast("Any", change),
                    problem_id=problem.id,
                    at=now,
                    lasted=lasted,
                    tenant=self._tenant,
                    **fields,
                )
            yield Item(
                id,
                TELL_TYPE,
                _encoder.encode(TellInput(made, tuple(compared.known))),
                self._stored_in,
                self.name,
                workflow=self.name,
                attempts=RETRY.attempts,
                keep=KEPT,
                keep_dead=KEPT,
            )

    async def tell(self) -> None:
        """Tell the receiver what is due. If it does not take one, the others wait for the next time; also
        while a call hangs: each would keep one more of the threads that the program shares."""
        if self._calling is not None and not self._calling.done():
            return
        where = Filter(tenant=self._stored_in, workflow=self.name, status=tuple(OPEN))
        while (await self._core.backend.list(where, limit=1)).items:
            lease = await claim_one(
                self._core, tenant=self._stored_in, types=(TELL_TYPE,), queues=(self.name,), lease=LEASE
            )
            if lease is None or not await self._tell_one(lease):
                return

    async def _tell_one(self, lease: ClaimedLease) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                if (change := lease.input.get("change")) is not None:
                    await self._call(msgspec.convert(change, ProblemChange))
        except BaseException as error:
            if not raised_by_user(error):
                raise
            self._say_untold(error)
            self._is_taken = False
            await lease.fail(error, retry=RETRY)
            return False
        await lease.complete()
        if not self._is_taken:
            self._is_taken = True
            log_line(WARNING, "problems are told again: the receiver takes messages")
        return True

    async def is_delivered(self) -> bool:
        """Whether no message waits for another try."""
        where = Filter(tenant=self._stored_in, workflow=self.name, status=tuple(OPEN))
        return not any(each.failures for each in (await self._core.backend.list(where, limit=MOST)).items)

    async def _call(self, change: ProblemChange) -> None:
        receiver: Any = self._receiver.send if isinstance(self._receiver, Webhook) else self._receiver
        if is_async(receiver):
            await receiver(change)
        else:
            self._calling = asyncio.get_running_loop().run_in_executor(None, receiver, change)
            self._calling.add_done_callback(lambda call: call.cancelled() or call.exception())
            await asyncio.shield(self._calling)

    def _say_untold(self, error: BaseException) -> None:
        text = "could not tell of a problem; will retry"
        if not isinstance(error, WebhookError):
            self._report(error, text)
        elif (left_out := self._seldom.occurrence(str(error))) is not None:
            log_line(WARNING, f"{text}: {error}{repeated(left_out)}")

    def _report(self, error: BaseException, message: str) -> None:
        self._core.hooks.report(error, "hook", message)


def _key_of(receiver: OnProblem) -> str:
    """What is the same for a receiver in all processes."""
    if isinstance(receiver, Webhook):
        return receiver.key
    named = receiver if hasattr(receiver, "__qualname__") else type(receiver)
    return f"{named.__module__}.{named.__qualname__}"
