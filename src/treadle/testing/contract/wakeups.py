"""Signals, and the life of the backend itself: open, close, transactions it does not have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from treadle.backend import Backend
from treadle.item import Ref, Wake

from .build import connections
from .subject import Subject

PATIENCE = 20.0
"""Seconds to wait for what should come at once; a wake that never comes fails the case."""


class Ear:
    """Collects signals, merged or not, until what a case waits for has come."""

    def __init__(self) -> None:
        self.signals: list[Wake] = []
        self._heard = asyncio.Event()

    def __call__(self, wake: Wake) -> None:
        self.signals.append(wake)
        self._heard.set()

    async def until(self, come: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not come():
                self._heard.clear()
                await self._heard.wait()

    async def hear(self, items: set[Ref]) -> None:
        """Until all of these have been named, or too much changed to name it."""
        await self.until(lambda: items <= self._items() or any(one.everything for one in self.signals))

    def _items(self) -> set[Ref]:
        return {ref for wake in self.signals for ref in wake.items}


class WakeupCases:
    async def test_a_signal_reaches_another_connection(self, subject: Subject) -> None:
        """Told to the other subscribers, in other processes too, with all it says."""
        ear = Ear()
        await (await subject.another()).subscribe(ear)
        sent = Wake(
            ready=True,
            items=(("t", "i"), ("t", "ü'\"")),
            groups=(("t", "g"),),
            asking=(("t", "a"),),
            awaited=(("t", "w"),),
        )
        await subject.backend.publish(sent)
        await ear.until(lambda: bool(ear.signals))
        heard = ear.signals[0]
        assert (heard.ready, heard.everything) == (True, False)
        assert (set(heard.items), set(heard.groups)) == (set(sent.items), set(sent.groups))
        assert set(heard.asking) == set(sent.asking)
        assert set(heard.awaited) == set(sent.awaited)

    async def test_every_subscriber_hears_it(self, subject: Subject) -> None:
        """Also several on one connection; a wake may be delayed a little to be merged with others."""
        backends = await connections(subject, 3)
        ears = [Ear() for _ in range(6)]
        for n, ear in enumerate(ears):
            await backends[1 + n % 2].subscribe(ear)
        for n in range(5):
            await subject.backend.publish(Wake(items=(("t", f"i{n}"),)))
        for ear in ears:
            await ear.hear({("t", f"i{n}") for n in range(5)})

    async def test_whoever_unsubscribed_hears_nothing(self, subject: Subject) -> None:
        """The function that `subscribe` answers ends it, and may be called twice."""
        other = await subject.another()
        gone, stays = Ear(), Ear()
        stop = await other.subscribe(gone)
        await other.subscribe(stays)
        stop()
        stop()
        await subject.backend.publish(Wake(ready=True))
        await stays.until(lambda: bool(stays.signals))
        assert gone.signals == []

    async def test_a_receiver_that_raises_changes_nothing(self, subject: Subject) -> None:
        """It is logged; the others hear, and so do later signals."""
        other = await subject.another()

        def broken(wake: Wake) -> None:
            raise ValueError(wake)

        ear = Ear()
        await other.subscribe(broken)
        await other.subscribe(ear)
        for name in ("a", "b"):
            await subject.backend.publish(Wake(items=(("t", name),)))
            await ear.hear({("t", name)})

    async def test_receivers_are_called_on_the_loop_of_the_subscriber(self, subject: Subject) -> None:
        """Whatever thread the store's own machinery runs in."""
        loops: list[object] = []
        ear = Ear()

        def receive(wake: Wake) -> None:
            loops.append(asyncio.get_running_loop())
            ear(wake)

        await (await subject.another()).subscribe(receive)
        await subject.backend.publish(Wake(ready=True))
        await ear.until(lambda: bool(ear.signals))
        assert set(loops) == {asyncio.get_running_loop()}

    async def test_a_large_signal(self, subject: Subject) -> None:
        """Too much to name: what is left out is covered by `everything`."""
        ear = Ear()
        await (await subject.another()).subscribe(ear)
        refs = [("tenant", f"{'x' * 200}-{n}") for n in range(1000)]
        await subject.backend.publish(Wake(items=tuple(refs)))
        await ear.hear(set(refs))

    async def test_nobody_has_to_listen(self, backend: Backend) -> None:
        """Publishing without subscribers is fine; so is publishing nothing."""
        await backend.publish(Wake(ready=True))
        await backend.publish(Wake())
