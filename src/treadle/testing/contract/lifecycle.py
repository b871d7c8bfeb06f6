"""Open and close a backend, its capabilities, and transactions on a backend that has none."""

from __future__ import annotations

import asyncio

import pytest

from treadle.backend import CAPABILITIES, Backend
from treadle.errors import UnsupportedError
from treadle.item import Submission, Wake

from .build import claim_ids, connections, exists, item, submit
from .check import consistent
from .subject import Subject
from .wakeups import WakeRecorder


class LifecycleCases:
    async def test_opening_twice_is_harmless(self, subject: Subject) -> None:
        """Also concurrently, on several connections."""
        backends = await connections(subject, 3)
        await submit(subject.backend, item("a"))
        await asyncio.gather(*(backend.open() for backend in backends * 2))
        assert await exists(subject.backend, "a")

    async def test_a_closed_backend_can_be_opened_again(self, subject: Subject) -> None:
        """Closing is idempotent. Whether items survive depends on the store."""
        backend = subject.backend
        await submit(backend, item("a"))
        await backend.close()
        await backend.close()
        await backend.open()
        await submit(backend, item("b"))
        assert "b" in await claim_ids(backend)
        await consistent(backend)

    async def test_a_subscription_works_after_reopening(self, subject: Subject) -> None:
        """The subscriptions from before the close have no effect."""
        backend = subject.backend
        await backend.subscribe(WakeRecorder())
        await backend.close()
        await backend.open()
        recorder = WakeRecorder()
        await backend.subscribe(recorder)
        await (await subject.another()).publish(Wake(ready=True))
        await recorder.wait_until(lambda: bool(recorder.wakes))

    async def test_abandoning_leaves_what_is_in_use(self, subject: Subject) -> None:
        """It concerns closed event loops and parents of forked processes. Here are none: all goes on."""
        backend = subject.backend
        recorder = WakeRecorder()
        await backend.subscribe(recorder)
        await submit(backend, item("a"))
        backend.abandon()
        await backend.open()
        await submit(backend, item("b"))
        assert sorted(await claim_ids(backend)) == ["a", "b"]
        await (await subject.another()).publish(Wake(ready=True))
        await recorder.wait_until(lambda: bool(recorder.wakes))

    async def test_capabilities_are_known_words(self, backend: Backend) -> None:
        """A case names the capabilities that it needs and is skipped without them."""
        assert backend.capabilities <= CAPABILITIES | {"transactions", "parts", "tenant_moves"}

    async def test_transactions_are_refused_without_the_capability(self, backend: Backend) -> None:
        """`UnsupportedError`, and nothing is stored."""
        if "transactions" in backend.capabilities:
            pytest.skip("the backend has transactions, so it refuses none")
        with pytest.raises(UnsupportedError):
            await backend.submit([Submission((item("a"),))], tx=object())
        with pytest.raises(UnsupportedError):
            async with backend.transaction():
                pass
        assert not await exists(backend, "a")
