"""Settling: what each kind makes of an item, stale tokens, lost answers, poison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import ErrorInfo, Lease, Settlement

from .build import (
    abandon,
    apply,
    claim,
    claim_ids,
    claim_one,
    contribute,
    defer,
    die,
    gate,
    group,
    item,
    items,
    near,
    only,
    release,
    retry,
    settle,
    settle_one,
    start,
    start_one,
    state,
    status,
    statuses,
    submit,
    succeed,
)
from .check import consistent
from .subject import Subject, needs

Kind = Callable[[Lease], Settlement]
KINDS: tuple[Kind, ...] = (succeed, retry, defer, release, die, abandon)


class SettleKindCases:
    async def test_success(self, backend: Backend) -> None:
        """success: the result is kept, the attempt stays, the worker that ended it is named."""
        await submit(backend, item("a"))
        await apply(backend, succeed(await claim_one(backend), result=b"42"))
        found = await state(backend, "a")
        assert (found.status, found.result, found.attempt, found.reason) == ("success", b"42", 1, None)
        now = await backend.now()
        assert (found.worker, found.started_at, found.ended_at) == ("w", near(now), near(now))
        assert await claim_ids(backend) == []
        await consistent(backend)

    async def test_no_result_is_not_an_empty_one(self, backend: Backend) -> None:
        """A result may be nothing, empty, or a megabyte: what is read is what was written."""
        results = [None, b"", b"\x00", b"\xff" * 1_000_000]
        leases = await start(backend, *items(4))
        pairs = list(zip(leases, results, strict=True))
        await apply(backend, *(succeed(lease, result=result) for lease, result in pairs))
        assert [(await state(backend, lease.id)).result for lease in leases] == results

    async def test_dead(self, backend: Backend) -> None:
        """dead: reason and failure are kept, the failure also in the history."""
        await submit(backend, item("a"))
        lease = await claim_one(backend)
        failure = ErrorInfo("Boom", "it broke", "line 1")
        await apply(backend, Settlement(lease=lease, kind="dead", reason="exhausted", failure=failure))
        found = await state(backend, "a")
        assert (found.status, found.reason, found.attempt, found.result) == ("dead", "exhausted", 1, None)
        assert (found.error, found.error_type) == ("Boom: it broke", "Boom")
        entry = only(found.history)
        assert (entry.attempt, entry.error_type, entry.message, entry.traceback, entry.worker) == (
            1,
            "Boom",
            "it broke",
            "line 1",
            "w",
        )
        assert entry.at == near(await backend.now())
        await consistent(backend)

    async def test_cancelled(self, backend: Backend) -> None:
        """cancelled: terminal, without result or reason."""
        lease = await start_one(backend, item("a"))
        await apply(backend, abandon(lease))
        found = await state(backend, "a")
        assert (found.status, found.reason, found.result, found.attempt) == ("cancelled", None, None, 1)
        await consistent(backend)

    async def test_retry_later(self, subject: Subject) -> None:
        """retry: scheduled, the attempt stays spent, the failure is kept."""
        lease = await start_one(subject.backend, item("a"))
        await apply(subject.backend, retry(lease, 100, message="again"))
        found = await state(subject.backend, "a")
        assert (found.status, found.attempt, found.error) == ("scheduled", 1, "Oops: again")
        assert found.due_at == near(await subject.backend.now() + 100)
        assert (found.ended_at, len(found.history)) == (None, 1)
        assert await claim_ids(subject.backend) == []
        await subject.advance(101)
        assert (await claim_one(subject.backend)).attempt == 2

    async def test_retry_now_goes_to_the_end_of_the_line(self, backend: Backend) -> None:
        """retry, due: ready, behind those that were ready before."""
        await submit(backend, item("a"), item("b"))
        lease = only(await claim(backend, 1))
        await apply(backend, retry(lease))
        assert await status(backend, "a") == "ready"
        assert await claim_ids(backend) == ["b", "a"]

    async def test_an_instant_to_retry_at_wins(self, backend: Backend) -> None:
        """`run_at` over `delay`, as everywhere; one in the past is due."""
        now = await backend.now()
        first, second = await start(backend, item("a"), item("b"))
        await apply(backend, retry(first, run_at=now + 500), retry(second, 100, run_at=now - 10))
        assert (await state(backend, "a")).due_at == pytest.approx(now + 500, abs=0.001)
        assert await status(backend, "b") == "ready"

    async def test_defer_gives_the_attempt_back(self, subject: Subject) -> None:
        """defer: scheduled, nothing spent, nothing in the history; as often as one likes."""
        await submit(subject.backend, item("a", attempts=2))
        for _ in range(5):
            lease = await claim_one(subject.backend)
            assert lease.attempt == 1
            await apply(subject.backend, defer(lease, 100))
            found = await state(subject.backend, "a")
            assert (found.status, found.attempt, found.history) == ("scheduled", 0, ())
            await subject.advance(101)
        await consistent(subject.backend)

    async def test_defer_now_goes_to_the_end_of_the_line(self, backend: Backend) -> None:
        """defer, due: ready, behind those that were ready before."""
        await submit(backend, item("a"), item("b"))
        await apply(backend, defer(only(await claim(backend, 1))))
        assert await claim_ids(backend) == ["b", "a"]

    async def test_defer_until_an_instant(self, backend: Backend) -> None:
        """defer takes `run_at` too."""
        at = await backend.now() + 700
        await apply(backend, defer(await start_one(backend, item("a")), run_at=at))
        assert (await state(backend, "a")).due_at == pytest.approx(at, abs=0.001)

    async def test_release_keeps_its_place(self, backend: Backend) -> None:
        """release: as if it had never been claimed."""
        await submit(backend, item("a"), item("b"))
        await apply(backend, release(only(await claim(backend, 1))))
        found = await state(backend, "a")
        assert (found.status, found.attempt, found.history) == ("ready", 0, ())
        assert [(lease.id, lease.attempt) for lease in await claim(backend)] == [("a", 1), ("b", 1)]

    @needs("order")
    async def test_release_keeps_its_place_though_it_is_due_later(self, subject: Subject) -> None:
        """release: as if it had never been claimed, also after a delay."""
        await submit(subject.backend, item("a"))
        await apply(subject.backend, release(await claim_one(subject.backend), 10))
        await subject.advance(11)
        await submit(subject.backend, item("b"))
        assert await claim_ids(subject.backend) == ["a", "b"]

    async def test_attempts_add_up(self, backend: Backend) -> None:
        """The attempt grows by one per claim, and goes back only by what gives it back."""
        await submit(backend, item("a", attempts=9))
        seen: list[int] = []
        kinds: list[Kind] = [retry, defer, retry, release, retry, succeed]
        for kind in kinds:
            lease = await claim_one(backend)
            seen.append(lease.attempt)
            await apply(backend, kind(lease))
        assert seen == [1, 2, 2, 3, 3, 4]
        assert (await state(backend, "a")).attempt == 4

    async def test_the_last_ten_failures_are_kept(self, backend: Backend) -> None:
        """The history holds the last ten failed attempts, oldest first; `error` is the last."""
        await submit(backend, item("a", attempts=None))
        for n in range(1, 13):
            await apply(backend, retry(await claim_one(backend, worker=f"w{n}"), message=f"m{n}"))
        found = await state(backend, "a")
        assert [(entry.attempt, entry.message, entry.worker) for entry in found.history] == [
            (n, f"m{n}", f"w{n}") for n in range(3, 13)
        ]
        assert found.error == "Oops: m12"

    async def test_a_failure_without_a_message(self, backend: Backend) -> None:
        """`error` is `type: message`, or the type alone."""
        lease = await start_one(backend, item("a"))
        await apply(backend, Settlement(lease=lease, kind="retry", failure=ErrorInfo("Boom", "")))
        found = await state(backend, "a")
        assert (found.error, found.error_type) == ("Boom", "Boom")

    @needs("fencing")
    async def test_outcomes_come_in_order(self, backend: Backend) -> None:
        """An outcome per settlement, in order; none for none."""
        await submit(backend, item("a"), item("b"))
        lost, kept = await claim(backend)
        await backend.cancel(["a"])
        settled = await settle(backend, succeed(lost), succeed(kept))
        assert [outcome.verb for outcome in settled.outcomes] == ["stale", "applied"]
        assert (await settle(backend)).outcomes == ()


class FencingCases:
    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_lost_answer_is_found_again(self, backend: Backend, kind: Kind) -> None:
        """If this very token has settled the item before: `applied`, `again`, and nothing changes."""
        lease = await start_one(backend, item("a"))
        await apply(backend, kind(lease))
        before = await state(backend, "a")
        settled = await settle(backend, kind(lease))
        outcome = only(settled.outcomes)
        assert (outcome.verb, outcome.again) == ("applied", True)
        assert (settled.effects.closed, settled.effects.released) == ((), ())
        assert await state(backend, "a") == before
        await consistent(backend)

    async def test_a_lost_answer_is_found_after_the_next_claim(self, backend: Backend) -> None:
        """Also when somebody else runs the item by then, whom it does not disturb."""
        await submit(backend, item("a"))
        first = await claim_one(backend, "w1")
        await apply(backend, retry(first))
        second = await claim_one(backend, "w2")
        outcome = await settle_one(backend, retry(first))
        assert (outcome.verb, outcome.again) == ("applied", True)
        await apply(backend, succeed(second))
        assert (await state(backend, "a")).worker == "w2"

    async def test_one_token_twice_in_a_call(self, backend: Backend) -> None:
        """At most one settlement per token takes effect, wherever they meet."""
        lease = await start_one(backend, item("a"))
        first, second = (await settle(backend, succeed(lease), die(lease))).outcomes
        assert (first.verb, first.again, second.verb, second.again) == ("applied", False, "applied", True)
        assert await status(backend, "a") == "success"
        await consistent(backend)

    async def test_children_of_a_lost_answer_are_stored_once(self, backend: Backend) -> None:
        """A repeated settlement stores nothing, and its own children are no duplicates."""
        lease = await start_one(backend, item("a"))
        settlement = succeed(lease, item("child"))
        await apply(backend, settlement)
        outcome = await settle_one(backend, settlement)
        assert (outcome.verb, outcome.again, outcome.rejected) == ("applied", True, None)
        assert (await group(backend, "a")).open == 1
        await consistent(backend)

    @needs("fencing")
    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_freed_lease_is_stale(self, backend: Backend, kind: Kind) -> None:
        """The token ends the moment the item is freed, claimed by another or not: `taken`."""
        await submit(backend, item("a"))
        lease = await claim_one(backend, "w1")
        await backend.remove_worker("w1")
        before = await state(backend, "a")
        outcome = await settle_one(backend, kind(lease))
        assert (outcome.verb, outcome.loss, outcome.again) == ("stale", "taken", False)
        assert await state(backend, "a") == before
        await consistent(backend)

    @needs("fencing")
    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_taken_lease_is_stale(self, backend: Backend, kind: Kind) -> None:
        """Somebody else runs it: the first settlement changes nothing, the second everything."""
        await submit(backend, item("a"))
        first = await claim_one(backend, "w1")
        await backend.remove_worker("w1")
        second = await claim_one(backend, "w2")
        outcome = await settle_one(backend, kind(first))
        assert (outcome.verb, outcome.loss) == ("stale", "taken")
        assert (await state(backend, "a")).worker == "w2"
        await apply(backend, succeed(second))

    @needs("fencing")
    async def test_a_stale_token_changes_nothing_anywhere(self, backend: Backend) -> None:
        """Not the item, its group, its dependents, nor by its children."""
        await submit(backend, item("a"), gate("a", id="next"))
        lease = await claim_one(backend, "w1")
        await backend.remove_worker("w1")
        stale = contribute(lease, b"value")
        stale = Settlement(
            lease=lease, kind="success", contribution=stale.contribution, children=(item("child"),)
        )
        settled = await settle(backend, stale)
        assert settled.outcomes[0].verb == "stale"
        assert (settled.effects.released, settled.effects.closed) == ((), ())
        assert await statuses(backend, "a", "next", "child") == ["ready", "blocked", None]
        found = await group(backend, "a")
        assert (found.open, found.contributed, found.version) == (1, False, 0)
        await consistent(backend)

    @needs("fencing")
    async def test_the_same_worker_with_an_older_lease_is_stale(self, backend: Backend) -> None:
        """Not the worker's name decides but the token: its first attempt cannot settle, its second can."""
        await submit(backend, item("a"))
        first = await claim_one(backend, "w1")
        await backend.remove_worker("w1")
        await backend.remove_worker("w1")
        second = await claim_one(backend, "w1")
        assert second.token != first.token
        assert (await settle_one(backend, succeed(first))).verb == "stale"
        await apply(backend, succeed(second))

    @needs("fencing", "operating")
    async def test_why_a_token_is_stale(self, backend: Backend) -> None:
        """completed, cancelled, not_found: what an operator did to the item."""
        leases = await start(backend, item("done"), item("off"), item("gone"))
        await backend.complete("done", b"by hand")
        await backend.cancel(["off"])
        await backend.delete(["gone"])
        settled = await settle(backend, *(succeed(lease) for lease in leases))
        assert [outcome.verb for outcome in settled.outcomes] == ["stale"] * 3
        assert [outcome.loss for outcome in settled.outcomes] == ["completed", "cancelled", "not_found"]
        assert (await state(backend, "done")).result == b"by hand"
        await consistent(backend)

    async def test_tokens_are_new_for_every_claim(self, backend: Backend) -> None:
        """New in the life of the store: for each item, each attempt, each worker."""
        await submit(backend, *items(3))
        seen: list[int] = []
        for n in range(4):
            leases = await claim(backend, worker=f"w{n % 2}")
            seen += [lease.token for lease in leases]
            await apply(backend, *(defer(lease) for lease in leases))
        assert len(set(seen)) == len(seen) == 12


class SettleIsolationCases:
    TEXTS = ("nul \x00 byte", "emoji 🜂 \U0010ffff", "half \ud83d a pair", "\u202e\ufeff\u0000", "x" * 100_000)

    @pytest.mark.parametrize("text", TEXTS, ids=["nul", "emoji", "surrogate", "marks", "long"])
    async def test_any_text_can_be_an_error(self, backend: Backend, text: str) -> None:
        """Error texts come from the users' code: nothing in them may stop a settlement."""
        leases = await start(backend, *items(3))
        failure = ErrorInfo(text, text, text)
        bad = Settlement(lease=leases[1], kind="dead", reason="aborted", failure=failure)
        await apply(backend, succeed(leases[0]), bad, succeed(leases[2]))
        entry = only((await state(backend, leases[1].id)).history)
        if "\ud83d" not in text:
            assert (entry.error_type, entry.message, entry.traceback) == (text, text, text)
        await consistent(backend)

    async def test_one_bad_settlement_among_fifty(self, backend: Backend) -> None:
        """Each settlement is atomic on its own: a bad one changes nothing for its neighbours."""
        await submit(backend, item("taken"))
        leases = await start(backend, *items(50))
        batch: list[Any] = [succeed(lease) for lease in leases]
        batch[25] = succeed(leases[25], item("taken"), item("never"))
        settled = await settle(backend, *batch)
        assert [outcome.verb for outcome in settled.outcomes].count("applied") == 49
        assert settled.outcomes[25].verb == "rejected"
        assert await statuses(backend, leases[25].id, "never") == ["running", None]
        assert len(settled.effects.closed) == 49
        await consistent(backend)

    @needs("fencing")
    async def test_every_kind_of_refusal_in_one_call(self, backend: Backend) -> None:
        """Stale, rejected, repeated and good ones side by side, each answered in its place."""
        await submit(backend, item("taken"))
        stale, rejected, again, good = await start(backend, *items(4))
        await backend.cancel([stale.id])
        await apply(backend, succeed(again))
        settled = await settle(
            backend, succeed(stale), succeed(rejected, item("taken")), succeed(again), succeed(good)
        )
        verbs = [(outcome.verb, outcome.again) for outcome in settled.outcomes]
        assert verbs == [("stale", False), ("rejected", False), ("applied", True), ("applied", False)]
        assert [closed.id for closed in settled.effects.closed] == [good.id]
        await consistent(backend)
