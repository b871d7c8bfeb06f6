"""Groups with cancelled members: they have ended, but not as success."""

from __future__ import annotations

from treadle.backend import Backend

from .build import (
    apply,
    by_id,
    cancel,
    claim,
    claim_one,
    dependent,
    die,
    doomed_lease,
    end,
    group,
    item,
    start_awaited,
    start_one,
    statuses,
    submit,
    succeed,
    verdicts,
    whole,
)
from .check import consistent
from .nested_groups import start_nested
from .repair import run
from .subject import Subject, needs


class CancelledGroupCases:
    @needs("nested")
    async def test_a_group_with_a_cancelled_member_is_no_success(self, backend: Backend) -> None:
        """It counts where any end counts. It has not failed."""
        await start_awaited(backend)
        leases = by_id(await claim(backend))
        settled = await apply(backend, cancel(leases["a"]))
        assert (settled.effects.doomed, settled.effects.released) == (0, ())
        settled = await apply(backend, succeed(leases["b"]))
        assert settled.effects.doomed == 1
        assert [one.id for one in settled.effects.released] == ["any"]
        assert (await group(backend, "root")).failed == 0
        await consistent(backend)

    @needs("nested")
    async def test_an_item_that_is_a_group_and_is_cancelled_is_no_success(self, backend: Backend) -> None:
        """By its worker. What waits for the item itself is doomed too."""
        await submit(
            backend,
            item("a"),
            dependent("a", id="item"),
            dependent(whole("a"), id="group"),
            dependent(whole("a"), id="any", counting="done"),
        )
        settled = await apply(backend, cancel(await claim_one(backend)))
        assert settled.effects.doomed == 2
        assert [one.id for one in settled.effects.released] == ["any"]

    @needs("nested", "operating")
    async def test_a_group_that_an_operator_cancels_is_no_success(self, backend: Backend) -> None:
        """One member of several, and the last one that was open."""
        await start_awaited(backend)
        await backend.cancel(["a"])
        changed = await backend.cancel(["b"])
        assert changed.effects.doomed == 1
        assert [one.id for one in changed.effects.released] == ["any"]
        await consistent(backend)

    @needs("nested")
    async def test_a_group_that_has_ended_with_a_cancelled_member_dooms_at_once(
        self, backend: Backend
    ) -> None:
        """As a group of several, and as a single item."""
        await apply(backend, succeed(await start_one(backend, item("root")), item("a")))
        await apply(backend, cancel(await claim_one(backend)))
        await end(backend, item("lone"), how=cancel)
        await submit(
            backend,
            dependent(whole("root"), id="b"),
            dependent(whole("lone"), id="c"),
            dependent(whole("root"), whole("lone"), id="d", counting="done"),
        )
        assert await statuses(backend, "b", "c", "d") == ["blocked", "blocked", "ready"]
        assert await verdicts(backend) == {"b": "unsatisfiable", "c": "unsatisfiable"}

    @needs("nested")
    async def test_a_cancelled_member_dooms_the_item_that_closes_its_group(self, backend: Backend) -> None:
        """Which fails the outer group."""
        leases = await start_nested(backend, item("a"), item("b"))
        await apply(backend, cancel(leases["a"]))
        settled = await apply(backend, succeed(leases["b"]))
        assert settled.effects.doomed == 1
        doomed = await doomed_lease(backend)
        assert (doomed.id, doomed.verdict) == ("g", "unsatisfiable")
        await apply(backend, die(doomed))
        await apply(backend, die(await doomed_lease(backend)))
        assert ((await group(backend, "g")).failed, (await group(backend, "root")).failed) == (0, 2)
        await consistent(backend)

    @needs("nested", "operating")
    async def test_a_requeue_of_the_cancelled_member_brings_back_what_waited(self, backend: Backend) -> None:
        """What died because of it, what is doomed, and what is blocked. What counts any end has run."""
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, item("a")))
        await end(backend, item("other"), how=die)
        await submit(
            backend,
            dependent(whole("root"), id="next"),
            dependent("next", id="last"),
            dependent(whole("root"), "never", whole("other"), id="blocked", need=1),
            dependent(whole("root"), id="any", counting="done"),
        )
        await backend.cancel(["a"])
        await apply(backend, die(await doomed_lease(backend)))
        changed = await backend.requeue(["a"], cancelled=True)
        assert sorted(one.id for one in changed.items) == ["a", "next"]
        await consistent(backend)
        assert sorted(await run(backend)) == ["a", "any", "blocked", "last", "next"]
        assert await statuses(backend, "next", "last", "blocked") == ["success"] * 3
        await consistent(backend)

    @needs("nested", "operating")
    async def test_a_requeue_of_a_cancelled_item_that_is_a_group_brings_back_what_waited(
        self, backend: Backend
    ) -> None:
        """It has no members but itself."""
        await submit(
            backend,
            item("a"),
            dependent(whole("a"), id="next"),
            dependent(whole("a"), "never", id="blocked", need=1),
        )
        await backend.cancel(["a"])
        await apply(backend, die(await doomed_lease(backend)))
        changed = await backend.requeue(["a"], cancelled=True)
        assert [one.id for one in changed.items] == ["a", "next"]
        assert sorted(await run(backend)) == ["a", "blocked", "next"]
        await consistent(backend)

    @needs("nested", "operating")
    async def test_a_requeued_item_does_not_run_after_a_group_with_a_cancelled_member(
        self, backend: Backend
    ) -> None:
        """Its condition cannot be met: it stays dead."""
        await submit(backend, item("a"), dependent(whole("a"), id="next"))
        await backend.cancel(["a"])
        await apply(backend, die(await doomed_lease(backend)))
        assert (await backend.requeue(["next"])).items == ()
        assert await statuses(backend, "next") == ["dead"]

    @needs("nested")
    async def test_a_pruned_member_was_cancelled_all_the_same(self, subject: Subject) -> None:
        """The rest of its group is kept longer."""
        backend = subject.backend
        root = await start_one(backend, item("root", keep=1000))
        await apply(backend, succeed(root, item("a", keep=10)))
        await apply(backend, cancel(await claim_one(backend)))
        await subject.advance(20)
        assert await backend.prune() == 1
        await submit(backend, dependent(whole("root"), id="next"))
        assert await verdicts(backend) == {"next": "unsatisfiable"}
        await consistent(backend)
