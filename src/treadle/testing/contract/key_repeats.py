"""Several items of one call that have the same key, and such a call that is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Item

from .build import claim_ids, end, exists, item, state, submit, submit_each, submit_refused
from .check import consistent
from .key_policies import first, refusing, replacing
from .subject import Subject, needs


async def submit_apart(backend: Backend, *new: Item) -> None:
    await submit_each(backend, *new)


class KeyRepeatCases:
    @needs("updates")
    async def test_one_item_of_a_key_is_stored_whatever_the_scopes_are(self, subject: Subject) -> None:
        """The first one takes the key over from an ended item. It answers for the others of the call."""
        backend = subject.backend
        await end(backend, first("old"))
        await subject.advance(1)
        answers = await submit(
            backend, first("a"), item("b", key="k", key_scope=0.0), item("c", key="k", key_scope="open")
        )
        assert [(one.id, one.existing) for one in answers] == [("a", False), ("a", True), ("a", True)]
        assert not await exists(backend, "b")
        await subject.advance(1)
        refused = await submit_refused(backend, item("d", key="k", key_scope=0.0), refusing("e"))
        assert (refused.why, refused.ids) == ("duplicate_key", ("d",))
        assert await claim_ids(backend) == ["a"]
        await consistent(backend)

    @needs("updates")
    async def test_the_first_taken_key_is_named_first(self, backend: Backend) -> None:
        """In the order of the submission: the error that a user sees names the first."""
        await submit(backend, item("p", key="z"), item("q", key="y"), item("r", key="x"))
        new = [
            item(id, key=key, key_policy="error")
            for id, key in (("c", "x"), ("b", "z"), ("d", "y"), ("a", "x"))
        ]
        refused = await submit_refused(backend, *new)
        assert (refused.ids, refused.keys) == (("r", "p", "q"), ("x", "z", "y"))

    @needs("updates")
    @pytest.mark.parametrize("how", [submit, submit_apart], ids=["together", "apart"])
    @pytest.mark.parametrize("count", [2, 25])
    async def test_a_repeated_call_leaves_the_newest_data(
        self, backend: Backend, how: Any, count: int
    ) -> None:
        """Its answer was lost. The last item of the first try stays the last."""
        await submit(backend, first(delay=100))
        new = [replacing(f"b{n}", input=str(n).encode(), delay=100) for n in range(count)]
        await how(backend, *new)
        before = await state(backend, "a")
        assert before.input == str(count - 1).encode()
        await how(backend, *new)
        assert (await state(backend, "a")).input == before.input
        await consistent(backend)

    @needs("updates")
    async def test_a_part_of_a_repeated_call_changes_nothing(self, backend: Backend) -> None:
        """Submissions of one call may be repeated each for itself, in any order."""
        await submit(backend, first(delay=100))
        old, new = replacing("b", input=b"old", delay=100), replacing("c", input=b"new", delay=100)
        await submit_each(backend, old, new)
        await submit_each(backend, old)
        assert (await state(backend, "a")).input == b"new"

    @needs("updates")
    async def test_a_repeated_call_leaves_the_newest_data_of_a_new_item(self, backend: Backend) -> None:
        """The item that took over the others is of the same call."""
        new = [replacing(id, input=id.encode(), delay=100) for id in "abc"]
        await submit(backend, *new)
        await submit(backend, *new)
        assert (await state(backend, "a")).input == b"c"
        await consistent(backend)

    @needs("updates")
    async def test_the_answer_has_the_status_after_the_call(self, backend: Backend) -> None:
        """Also that of the new item which took over what a later one has."""
        answers = await submit(backend, replacing("a", delay=100), replacing("b"))
        assert [(one.id, one.status) for one in answers] == [("a", "ready"), ("a", "ready")]
        assert await claim_ids(backend) == ["a"]
