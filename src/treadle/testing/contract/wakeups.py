"""Wake-ups: published to every subscriber, in other processes too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from treadle.backend import Backend, carries_results
from treadle.item import Ref, Wake, WakeResult

from .build import connections, tells_in_parts
from .subject import Subject

PATIENCE = 20.0
"""Seconds to wait for a wake-up that should arrive at once. After that the case fails."""


class WakeRecorder:
    """A receiver that records wake-ups until the expected ones have arrived, merged or not."""

    def __init__(self) -> None:
        self.wakes: list[Wake] = []
        self._changed = asyncio.Event()

    def __call__(self, wake: Wake) -> None:
        self.wakes.append(wake)
        self._changed.set()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def wait_for(self, items: set[Ref]) -> None:
        """Wait until all of these items were named, or a wake-up says `everything`."""
        await self.wait_until(
            lambda: items <= self.named("items") or any(one.everything for one in self.wakes)
        )

    def named(self, field: str) -> set[object]:
        """What all of them have in this field: True for a flag that is set."""
        found: set[object] = set()
        for wake in self.wakes:
            value = getattr(wake, field)
            found |= ({True} if value else set()) if isinstance(value, bool) else set(value)
        return found


class WakeupCases:
    async def test_a_wake_up_reaches_another_connection(self, subject: Subject) -> None:
        """With all its fields, also in another process."""
        recorder = WakeRecorder()
        await (await subject.another()).subscribe(recorder)
        sent = Wake(
            ready=True,
            items=(("t", "i"), ("t", "ü'\"")),
            results=(WakeResult("w", 1234567.25, b"\x00\xff", ends_group=True),),
            groups=(("t", "g"),),
            asking=(("t", "a"),),
            awaited=(("t", "w"),),
        )
        await subject.backend.publish(sent)
        fields = ["ready", "items", "groups", "asking", "awaited"]
        fields += ["results"] if carries_results(subject.backend) else []
        needed = fields if tells_in_parts(subject.backend) else []
        await recorder.wait_until(
            lambda: bool(recorder.wakes) and all(recorder.named(field) for field in needed)
        )
        assert {field: recorder.named(field) for field in fields} == {
            field: {True} if field == "ready" else set(getattr(sent, field)) for field in fields
        }
        assert not any(wake.everything for wake in recorder.wakes)

    async def test_a_wake_up_reaches_every_subscriber(self, subject: Subject) -> None:
        """Also several on one connection. A wake-up may be delayed a little to be merged with others."""
        backends = await connections(subject, 3)
        recorders = [WakeRecorder() for _ in range(6)]
        for n, recorder in enumerate(recorders):
            await backends[1 + n % 2].subscribe(recorder)
        for n in range(5):
            await subject.backend.publish(Wake(items=(("t", f"i{n}"),)))
        for recorder in recorders:
            await recorder.wait_for({("t", f"i{n}") for n in range(5)})

    async def test_an_unsubscribed_receiver_gets_no_wake_ups(self, subject: Subject) -> None:
        """`subscribe` returns the function that unsubscribes. It may be called twice."""
        other = await subject.another()
        gone, stays = WakeRecorder(), WakeRecorder()
        stop = await other.subscribe(gone)
        await other.subscribe(stays)
        stop()
        stop()
        await subject.backend.publish(Wake(ready=True))
        await stays.wait_until(lambda: bool(stays.wakes))
        assert gone.wakes == []

    async def test_a_receiver_that_raises_does_not_affect_others(self, subject: Subject) -> None:
        """The error is logged. Other receivers get this wake-up and later ones."""
        other = await subject.another()

        def broken(wake: Wake) -> None:
            raise ValueError(wake)

        recorder = WakeRecorder()
        await other.subscribe(broken)
        await other.subscribe(recorder)
        for name in ("a", "b"):
            await subject.backend.publish(Wake(items=(("t", name),)))
            await recorder.wait_for({("t", name)})

    async def test_receivers_are_called_on_the_loop_of_the_subscriber(self, subject: Subject) -> None:
        """The store may receive wake-ups in a thread of its own."""
        loops: list[object] = []
        recorder = WakeRecorder()

        def receive(wake: Wake) -> None:
            loops.append(asyncio.get_running_loop())
            recorder(wake)

        await (await subject.another()).subscribe(receive)
        await subject.backend.publish(Wake(ready=True))
        await recorder.wait_until(lambda: bool(recorder.wakes))
        assert set(loops) == {asyncio.get_running_loop()}

    async def test_a_large_wake_up_may_be_shortened_to_everything(self, subject: Subject) -> None:
        """`everything` covers the refs that are left out."""
        recorder = WakeRecorder()
        await (await subject.another()).subscribe(recorder)
        refs = [("tenant", f"{'x' * 200}-{n}") for n in range(1000)]
        await subject.backend.publish(Wake(items=tuple(refs)))
        await recorder.wait_for(set(refs))

    async def test_publishing_without_subscribers_is_accepted(self, backend: Backend) -> None:
        """Publishing an empty wake-up is accepted too."""
        await backend.publish(Wake(ready=True))
        await backend.publish(Wake())
