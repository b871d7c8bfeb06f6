"""Settle: the effect of each kind, stale and repeated tokens, and hostile settlements in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from treadle.backend import Backend
from treadle.item import ErrorInfo, Lease, Settlement

from .build import (
    apply,
    cancel,
    claim,
    claim_ids,
    claim_one,
    contribute,
    defer,
    dependent,
    die,
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
KINDS: tuple[Kind, ...] = (succeed, retry, defer, release, die, cancel)


class SettleKindCases:
    async def test_success_keeps_the_result_and_the_attempt(self, backend: Backend) -> None:
        """The item also names the worker that ended it."""
        await submit(backend, item("a"))
        await apply(backend, succeed(await claim_one(backend), result=b"42"))
        found = await state(backend, "a")
        assert (found.status, found.result, found.attempt, found.reason) == ("success", b"42", 1, None)
        now = await backend.now()
        assert (found.worker, found.claimed_at, found.ended_at) == ("w", near(now), near(now))
        assert await claim_ids(backend) == []
        await consistent(backend)

    async def test_results_are_read_as_they_were_written(self, backend: Backend) -> None:
        """A result may be None, empty, or a megabyte."""
        results = [None, b"", b"\x00", b"\xff" * 1_000_000]
        leases = await start(backend, *items(4))
        pairs = list(zip(leases, results, strict=True))
        await apply(backend, *(succeed(lease, result=result) for lease, result in pairs))
        assert [(await state(backend, lease.id)).result for lease in leases] == results

    async def test_dead_keeps_the_reason_and_the_failure(self, backend: Backend) -> None:
        """The failure is also part of the history."""
        await submit(backend, item("a"))
        lease = await claim_one(backend)
        failure = ErrorInfo("Boom", "it broke", "line 1")
        await apply(backend, Settlement(lease=lease, kind="dead", reason="exhausted", failure=failure))
        found = await state(backend, "a")
        assert (found.status, found.reason, found.attempt, found.result) == ("dead", "exhausted", 1, None)
        assert (found.error, found.error_type) == ("Boom: it broke", "Boom")
        recorded = only(found.history)
        assert (
            recorded.attempt,
            recorded.error_type,
            recorded.message,
            recorded.traceback,
            recorded.worker,
        ) == (
            1,
            "Boom",
            "it broke",
            "line 1",
            "w",
        )
        assert recorded.at == near(await backend.now())
        await consistent(backend)

    async def test_cancelled_has_no_result_and_no_reason(self, backend: Backend) -> None:
        """Cancelled is a terminal status."""
        lease = await start_one(backend, item("a"))
        await apply(backend, cancel(lease))
        found = await state(backend, "a")
        assert (found.status, found.reason, found.result, found.attempt) == ("cancelled", None, None, 1)
        await consistent(backend)

    async def test_cancelled_may_say_why(self, backend: Backend) -> None:
        """The failure is in its history, and is no failed attempt."""
        lease = await start_one(backend, item("a"))
        await apply(backend, replace(cancel(lease), failure=ErrorInfo("Full", "no room", "")))
        found = await state(backend, "a")
        assert (found.status, found.reason, found.error, found.error_type) == (
            "cancelled",
            None,
            "Full: no room",
            "Full",
        )
        assert [(each.error_type, each.message) for each in found.history] == [("Full", "no room")]
        assert (found.failures, found.attempt) == (0, 1)
        await consistent(backend)

    async def test_retry_with_a_delay_schedules_the_item(self, subject: Subject) -> None:
        """The attempt stays spent, and the failure is kept."""
        lease = await start_one(subject.backend, item("a"))
        await apply(subject.backend, retry(lease, 100, message="again"))
        found = await state(subject.backend, "a")
        assert (found.status, found.attempt, found.error) == ("scheduled", 1, "Oops: again")
        assert found.due_at == near(await subject.backend.now() + 100)
        assert (found.ended_at, len(found.history)) == (None, 1)
        assert await claim_ids(subject.backend) == []
        await subject.advance(101)
        assert (await claim_one(subject.backend)).attempt == 2

    async def test_retry_without_a_delay_goes_behind_ready_items(self, backend: Backend) -> None:
        """The item is ready, behind the items that were ready before."""
        await submit(backend, item("a"), item("b"))
        lease = only(await claim(backend, 1))
        await apply(backend, retry(lease))
        assert await status(backend, "a") == "ready"
        assert await claim_ids(backend) == ["b", "a"]

    async def test_retry_prefers_run_at_over_delay(self, backend: Backend) -> None:
        """A `run_at` in the past means due now."""
        now = await backend.now()
        first, second = await start(backend, item("a"), item("b"))
        await apply(backend, retry(first, run_at=now + 500), retry(second, 100, run_at=now - 10))
        assert (await state(backend, "a")).due_at == pytest.approx(now + 500, abs=0.001)
        assert await status(backend, "b") == "ready"

    async def test_a_deferred_item_gets_its_attempt_back(self, subject: Subject) -> None:
        """It is scheduled, with no attempt spent and no history. It may be deferred any number of times."""
        await submit(subject.backend, item("a", attempts=2))
        for _ in range(5):
            lease = await claim_one(subject.backend)
            assert lease.attempt == 1
            await apply(subject.backend, defer(lease, 100))
            found = await state(subject.backend, "a")
            assert (found.status, found.attempt, found.history) == ("scheduled", 0, ())
            await subject.advance(101)
        await consistent(subject.backend)

    async def test_defer_without_a_delay_goes_behind_ready_items(self, backend: Backend) -> None:
        """The item is ready, behind the items that were ready before."""
        await submit(backend, item("a"), item("b"))
        await apply(backend, defer(only(await claim(backend, 1))))
        assert await claim_ids(backend) == ["b", "a"]

    async def test_defer_accepts_run_at(self, backend: Backend) -> None:
        """The item is due at that instant."""
        at = await backend.now() + 700
        await apply(backend, defer(await start_one(backend, item("a")), run_at=at))
        assert (await state(backend, "a")).due_at == pytest.approx(at, abs=0.001)

    async def test_a_released_item_keeps_its_place(self, backend: Backend) -> None:
        """It stands as if it had not been claimed."""
        await submit(backend, item("a"), item("b"))
        await apply(backend, release(only(await claim(backend, 1))))
        found = await state(backend, "a")
        assert (found.status, found.attempt, found.history) == ("ready", 0, ())
        assert [(lease.id, lease.attempt) for lease in await claim(backend)] == [("a", 1), ("b", 1)]

    @needs("order")
    async def test_an_item_released_with_a_delay_keeps_its_place(self, subject: Subject) -> None:
        """When it is due again, it is claimed before items that were submitted meanwhile."""
        await submit(subject.backend, item("a"))
        await apply(subject.backend, release(await claim_one(subject.backend), 10))
        await subject.advance(11)
        await submit(subject.backend, item("b"))
        assert await claim_ids(subject.backend) == ["a", "b"]

    async def test_each_claim_counts_one_attempt(self, backend: Backend) -> None:
        """Only defer and release give the attempt back."""
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
        """The history is oldest first. `error` is the last failure."""
        await submit(backend, item("a", attempts=None))
        for n in range(1, 13):
            await apply(backend, retry(await claim_one(backend, worker=f"w{n}"), message=f"m{n}"))
        found = await state(backend, "a")
        assert [(recorded.attempt, recorded.message, recorded.worker) for recorded in found.history] == [
            (n, f"m{n}", f"w{n}") for n in range(3, 13)
        ]
        assert found.error == "Oops: m12"

    async def test_error_is_the_type_alone_without_a_message(self, backend: Backend) -> None:
        """Otherwise `error` is `type: message`."""
        lease = await start_one(backend, item("a"))
        await apply(backend, Settlement(lease=lease, kind="retry", failure=ErrorInfo("Boom", "")))
        found = await state(backend, "a")
        assert (found.error, found.error_type) == ("Boom", "Boom")

    @needs("fencing")
    async def test_settle_answers_in_the_order_of_the_request(self, backend: Backend) -> None:
        """One outcome per settlement, in order. No settlements give no outcomes."""
        await submit(backend, item("a"), item("b"))
        lost, kept = await claim(backend)
        await backend.cancel(["a"])
        settled = await settle(backend, succeed(lost), succeed(kept))
        assert [outcome.verb for outcome in settled.outcomes] == ["stale", "applied"]
        assert (await settle(backend)).outcomes == ()


class FencingCases:
    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_repeated_settlement_is_reported_as_applied_again(
        self, backend: Backend, kind: Kind
    ) -> None:
        """The token has settled the item before: `applied` with `again`, and nothing changes."""
        lease = await start_one(backend, item("a"))
        await apply(backend, kind(lease))
        before = await state(backend, "a")
        settled = await settle(backend, kind(lease))
        outcome = only(settled.outcomes)
        assert (outcome.verb, outcome.again) == ("applied", True)
        assert (settled.effects.ended_groups, settled.effects.released) == ((), ())
        assert await state(backend, "a") == before
        await consistent(backend)

    async def test_a_repeated_settlement_is_known_after_the_next_claim(self, backend: Backend) -> None:
        """Another worker already runs the item and is not disturbed."""
        await submit(backend, item("a"))
        first = await claim_one(backend, "w1")
        await apply(backend, retry(first))
        second = await claim_one(backend, "w2")
        outcome = await settle_one(backend, retry(first))
        assert (outcome.verb, outcome.again) == ("applied", True)
        await apply(backend, succeed(second))
        assert (await state(backend, "a")).worker == "w2"

    async def test_one_call_applies_a_token_once(self, backend: Backend) -> None:
        """At most one settlement per token takes effect."""
        lease = await start_one(backend, item("a"))
        first, second = (await settle(backend, succeed(lease), die(lease))).outcomes
        assert (first.verb, first.again, second.verb, second.again) == ("applied", False, "applied", True)
        assert await status(backend, "a") == "success"
        await consistent(backend)

    async def test_a_repeated_settlement_stores_its_children_once(self, backend: Backend) -> None:
        """The repeated settlement stores nothing, and its own children are not duplicates."""
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
        """The token ends when the item is freed, even before another worker claims it: `taken`."""
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
        """Another worker runs the item: the first token changes nothing, the second settles it."""
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
        """It changes neither the item, nor its group, nor its dependents, and stores no children."""
        await submit(backend, item("a"), dependent("a", id="next"))
        lease = await claim_one(backend, "w1")
        await backend.remove_worker("w1")
        stale = contribute(lease, b"value")
        stale = Settlement(
            lease=lease, kind="success", contribution=stale.contribution, children=(item("child"),)
        )
        settled = await settle(backend, stale)
        assert settled.outcomes[0].verb == "stale"
        assert (settled.effects.released, settled.effects.ended_groups) == ((), ())
        assert await statuses(backend, "a", "next", "child") == ["ready", "blocked", None]
        found = await group(backend, "a")
        assert (found.open, found.contributed, found.version) == (1, False, 0)
        await consistent(backend)

    @needs("fencing")
    async def test_an_older_token_of_the_same_worker_is_stale(self, backend: Backend) -> None:
        """The token decides, not the name of the worker."""
        await submit(backend, item("a"))
        first = await claim_one(backend, "w1")
        await backend.remove_worker("w1")
        await backend.remove_worker("w1")
        second = await claim_one(backend, "w1")
        assert second.token != first.token
        assert (await settle_one(backend, succeed(first))).verb == "stale"
        await apply(backend, succeed(second))

    @needs("fencing", "operating")
    async def test_a_stale_outcome_says_what_an_operator_did(self, backend: Backend) -> None:
        """The loss is `completed`, `cancelled` or `not_found`."""
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
        """A token is never used twice in the life of the store."""
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
        """Error texts come from user code: no text may stop a settlement."""
        leases = await start(backend, *items(3))
        failure = ErrorInfo(text, text, text)
        bad = Settlement(lease=leases[1], kind="dead", reason="aborted", failure=failure)
        await apply(backend, succeed(leases[0]), bad, succeed(leases[2]))
        recorded = only((await state(backend, leases[1].id)).history)
        if "\ud83d" not in text:
            assert (recorded.error_type, recorded.message, recorded.traceback) == (text, text, text)
        await consistent(backend)

    async def test_a_rejected_settlement_leaves_the_others_of_the_call_alone(self, backend: Backend) -> None:
        """Each settlement is atomic on its own."""
        await submit(backend, item("taken"))
        leases = await start(backend, *items(50))
        batch: list[Any] = [succeed(lease) for lease in leases]
        batch[25] = succeed(leases[25], item("taken"), item("never"))
        settled = await settle(backend, *batch)
        assert [outcome.verb for outcome in settled.outcomes].count("applied") == 49
        assert settled.outcomes[25].verb == "rejected"
        assert await statuses(backend, leases[25].id, "never") == ["running", None]
        assert len(settled.effects.ended_groups) == 49
        await consistent(backend)

    @needs("fencing")
    async def test_stale_rejected_and_repeated_settlements_share_a_call(self, backend: Backend) -> None:
        """Each one is answered in its place, and the good one is applied."""
        await submit(backend, item("taken"))
        stale, rejected, again, good = await start(backend, *items(4))
        await backend.cancel([stale.id])
        await apply(backend, succeed(again))
        settled = await settle(
            backend, succeed(stale), succeed(rejected, item("taken")), succeed(again), succeed(good)
        )
        verbs = [(outcome.verb, outcome.again) for outcome in settled.outcomes]
        assert verbs == [("stale", False), ("rejected", False), ("applied", True), ("applied", False)]
        assert [closed.id for closed in settled.effects.ended_groups] == [good.id]
        await consistent(backend)
