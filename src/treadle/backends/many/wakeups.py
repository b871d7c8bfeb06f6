"""Wake-ups over several stores: sent through one of them, received from all.

Home carries them. If it does not answer, the next store does. Each names the stores in which something may be
ready, so that workers elsewhere claim there, and not everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from treadle.base.loop_mark import LoopMark
from treadle.errors import BackendError
from treadle.item import Wake
from treadle.logs.lines import WARNING, error_text, log_line, traceback_of

from .member import Member
from .places import TenantPlaces
from .view import Views

MOST_NAMED: Final = 20
"""Stores that a wake-up names."""


class Receiver:
    """Who listens, on the event loop of the caller."""

    def __init__(self, receive: Callable[[Wake], None]) -> None:
        self.receive = receive
        self.mark = LoopMark()


class ManyWakeups:
    def __init__(self, places: TenantPlaces, views: Views) -> None:
        self._places = places
        self._views = views
        self._receivers: list[Receiver] = []
        self._ends: dict[str, Callable[[], None]] = {}
        """By store: what ends the subscription."""
        self._named_last: set[int] = set()
        """Stores in which something was written before the last wake-up was sent. It may have been under way
        when the engine heard of it, so each is named twice."""
        for member in places.by_name.values():
            member.on_open.append(self._subscribe)

    async def publish(self, wake: Wake) -> None:
        if wake.ready:
            wake = replace(wake, stores=self._named())
        for member in self._places.members:
            if member.is_away or not member.is_open:
                continue
            await member.backend.publish(wake)
            if not member.is_away:
                return

    def _named(self) -> tuple[str, ...]:
        new, old = self._views.written, self._named_last
        self._views.written, self._named_last = set(), new
        numbers = sorted(new | old)
        return tuple(self._places.members[n].name for n in numbers) if len(numbers) <= MOST_NAMED else ()

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

    def close(self) -> None:
        self._receivers.clear()
        self._end()

    def abandon(self) -> None:
        """Forget what belongs to event loops that are gone."""
        self._receivers = [each for each in self._receivers if not each.mark.is_gone]
        if not self._receivers:
            self._ends.clear()
