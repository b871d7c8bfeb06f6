"""Prerequisites that must exist: those that were submitted before, and may have been removed since."""

from __future__ import annotations

from treadle.backend import Backend
from treadle.item import Rejected, Submission

from .build import dependent, item, settle_one, start_one, statuses, submit, submit_refused, succeed


class MustExistCases:
    async def test_what_must_exist_and_does_not_is_refused(self, backend: Backend) -> None:
        """With the whole submission, and no other of the call. Other ids may come later."""
        await submit(backend, item("there"))
        answers = await backend.submit(
            [
                Submission((item("a"), dependent("gone", "there", id="b", must_exist=("gone", "there")))),
                Submission((dependent("gone", id="c"),)),
                Submission((dependent("there", id="d", must_exist=("there",)),)),
                Submission((item("e"), dependent("e", id="f", must_exist=("e",)))),
                Submission((dependent("gone", id="g", must_exist=("gone",)),)),
            ]
        )
        assert [answers[0], answers[4]] == [Rejected("not_found", ("gone",))] * 2
        assert not any(isinstance(answer, Rejected) for answer in answers[1:4])
        states = await backend.get(["a", "b", "c", "d", "e", "f", "g"])
        assert [state and state.status for state in states] == [
            *(None, None, "blocked", "blocked", "ready", "blocked", None)
        ]

    async def test_an_id_of_another_tenant_does_not_exist(self, backend: Backend) -> None:
        """An item that waits for one of another tenant is refused, and says nothing about that tenant."""
        await submit(backend, item("there", tenant="other"))
        refused = await submit_refused(backend, dependent("there", id="a", must_exist=("there",)))
        assert refused == Rejected("not_found", ("there",))

    async def test_a_child_whose_prerequisite_must_exist_is_refused(self, backend: Backend) -> None:
        """Nothing of the settlement happens."""
        lease = await start_one(backend, item("parent"))
        child = dependent("gone", id="child", must_exist=("gone",))
        outcome = await settle_one(backend, succeed(lease, child))
        assert (outcome.verb, outcome.rejected) == ("rejected", Rejected("not_found", ("gone",)))
        assert await statuses(backend, "parent") == ["running"]
