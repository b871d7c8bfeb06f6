"""Wake-ups over several stores: sent through the store that they are about, received from all.

A process that wrote in a store reaches it, and if it goes away, what is told of it is of no use. So no store
has to carry what concerns another one. Each names the store in which something may be ready, so that
workers elsewhere claim there, and not everywhere.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from treadle.base.loop_mark import LoopMark
from treadle.errors import BackendError
from treadle.item import Ref, Wake
from treadle.logs.lines import WARNING, error_text, log_line, traceback_of

from .member import Member
from .places import TenantPlaces
from .view import Views

LATE: Final = 0.05
"""Seconds after which a wake-up is no longer waited for. Others are sent meanwhile, through other stores."""
CLOSING: Final = 1.0
"""Seconds for which they are waited for when the stores are closed."""
MOST_LATE: Final = 50
"""Wake-ups that wait for one store. If there are more, one stands for all of them."""


class Receiver:
    """Who listens, on the event loop of the caller."""

    def __init__(self, receive: Callable[[Wake], None]) -> None:
        self.receive = receive
        self.mark = LoopMark()


class Carrier:
    """Sends the wake-ups of one store through it, in order."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._waiting: deque[Wake] = deque()
        self.task: asyncio.Task[None] | None = None

    def send(self, wake: Wake) -> asyncio.Task[None]:
        """Returns what ends when all of them are sent, or could not be."""
        self._waiting.append(wake)
        if len(self._waiting) > MOST_LATE:
            self._waiting.clear()
            self._waiting.append(Wake(sender=wake.sender, ready=True, everything=True, stores=wake.stores))
        if self.task is None or self.task.done():
            self.task = asyncio.ensure_future(self._run())
        return self.task

    async def _run(self) -> None:
        while self._waiting:
            with suppress(BackendError):
                await self._member.backend.publish(self._waiting.popleft())

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self.abandon()

    def abandon(self) -> None:
        self._waiting.clear()
        self.task = None


class ManyWakeups:
    def __init__(self, places: TenantPlaces, views: Views) -> None:
        self._places = places
        self._views = views
        self._receivers: list[Receiver] = []
        self._carriers: dict[str, Carrier] = {}
        self._ends: dict[str, Callable[[], None]] = {}
        """By store: what ends the subscription."""
        self._named_last: set[int] = set()
        """Stores in which something was written before the last wake-up was sent. It may have been under way
        when the engine heard of it, so each is named twice."""
        for member in places.by_name.values():
            member.on_open.append(self._subscribe)

    async def publish(self, wake: Wake) -> None:
        sent = [
            self._carrier(member).send(part)
            for member, part in self._parts(wake)
            if member.is_open and not member.is_away
        ]
        if sent:
            await asyncio.wait(sent, timeout=LATE)

    def _carrier(self, member: Member) -> Carrier:
        carrier = self._carriers.get(member.name)
        if carrier is None:
            carrier = self._carriers[member.name] = Carrier(member)
        return carrier

    def _parts(self, wake: Wake) -> Sequence[tuple[Member, Wake]]:
        """What a wake-up says of each store."""
        members = self._places.members
        if wake.everything:
            self._named()
            return [(member, wake) for member in members]
        ready = self._named() if wake.ready else set[int]()
        if wake.ready and not ready:  # it may be anywhere
            ready = {member.number for member in members}
        parts = _by_store(wake, lambda ref: self._views.probably(ref[0]).number)
        plain = Wake(sender=wake.sender, times=wake.times, waits=wake.waits)
        found: list[tuple[Member, Wake]] = []
        for number in sorted(ready | parts.keys()):
            part = replace(plain, **parts.get(number, {}))
            if number in ready:
                stores = (members[number].name,)
                part = replace(part, ready=True, types=wake.types, queues=wake.queues, stores=stores)
            found.append((members[number], part))
        return found

    def _named(self) -> set[int]:
        """The stores in which there may be something to claim."""
        new, old = self._views.written, self._named_last
        self._views.written, self._named_last = set(), new
        return new | old

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        receiver = Receiver(receive)
        self._receivers.append(receiver)
        for member in self._places.members:
            if member.is_open:
                with suppress(BackendError):
                    await self._subscribe(member)

        def end() -> None:
            if receiver in self._receivers:
                self._receivers.remove(receiver)
            if not self._receivers:
                self._end()

        return end

    async def _subscribe(self, member: Member) -> None:
        """Hear what comes through a store: one that was opened, also later than the others."""
        if self._receivers and member.name not in self._ends:
            self._ends[member.name] = await member.backend.subscribe(self._receive)

    def _receive(self, wake: Wake) -> None:
        if wake.ready or wake.everything:
            by_name = self._places.by_name
            named = [by_name[name].number for name in wake.stores if name in by_name]
            self._views.heat(named or None, here=False)
        self.tell(wake)

    def tell(self, wake: Wake) -> None:
        """Tell all who listen in this process."""
        for receiver in tuple(self._receivers):
            try:
                receiver.receive(wake)
            except Exception as error:  # noqa: BLE001  an error of one receiver must not stop the others
                trace = traceback_of(error, whole=True)
                log_line(WARNING, f"a receiver of wake-ups failed: {error_text(error)}", trace=trace)

    def _end(self) -> None:
        ends, self._ends = self._ends, {}
        for end in ends.values():
            end()

    async def close(self) -> None:
        """What is under way is waited for, for a while."""
        self._receivers.clear()
        self._end()
        under_way = [carrier.task for carrier in self._carriers.values() if carrier.task is not None]
        if under_way:
            await asyncio.wait(under_way, timeout=CLOSING)
        for carrier in self._carriers.values():
            carrier.close()

    def abandon(self) -> None:
        """Forget what belongs to event loops that are gone."""
        self._receivers = [each for each in self._receivers if not each.mark.is_gone]
        if not self._receivers:
            self._ends.clear()
        for carrier in self._carriers.values():
            carrier.abandon()


def _by_store(wake: Wake, number: Callable[[Ref], int]) -> dict[int, dict[str, tuple[Any, ...]]]:
    """What a wake-up names, by the numbers of the stores."""
    parts: defaultdict[int, defaultdict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for n, ref in enumerate(wake.items):
        part = parts[number(ref)]
        part["items"].append(ref)
        if n < len(wake.results):
            part["results"].append(wake.results[n])
    for name in ("groups", "asking", "awaited", "streams"):
        refs: Sequence[Ref] = getattr(wake, name)
        for ref in refs:
            parts[number(ref)][name].append(ref)
    return {n: {name: tuple(values) for name, values in part.items()} for n, part in parts.items()}
