"""Explain: the facts that say why an item is where it is."""

from __future__ import annotations

from treadle.backend import Backend
from treadle.item import GROUP_TYPE
from treadle.item_facts import Explanation, Prerequisite

from .build import (
    apply,
    cancel,
    claim_one,
    dependent,
    die,
    end,
    item,
    near,
    start_one,
    state,
    submit,
    succeed,
    verdicts,
    whole,
)
from .nested_groups import closing, nested
from .subject import Subject, needs


async def explain(backend: Backend, id: str, tenant: str | None = None) -> Explanation:
    found = await backend.explain(id, tenant=tenant)
    assert found is not None, f"{id} does not exist"
    return found


def named(found: Explanation) -> list[tuple[str, str, str]]:
    return [(one.id, one.status, one.type) for one in found.prerequisites]


class ExplainBlockedCases:
    @needs("watching")
    async def test_a_missing_item_has_no_explanation(self, backend: Backend) -> None:
        """None, as from `get`."""
        assert await backend.explain("missing") is None

    @needs("watching")
    async def test_a_blocked_item_says_what_it_needs(self, backend: Backend) -> None:
        """How many prerequisites it needs, how many counted, how many may count yet."""
        await end(backend, item("good"))
        await end(backend, item("bad"), how=die)
        await submit(backend, item("open"), dependent("good", "bad", "open", "later", id="x", need=3))
        found = await explain(backend, "x")
        assert found.item == await state(backend, "x")
        assert (found.item.status, found.item.waiting_for) == ("blocked", ("later",))
        assert (found.need, found.met, found.open, found.counting) == (3, 1, 2, "success")
        assert named(found) == [
            ("open", "ready", "work"),
            ("later", "missing", ""),
            ("bad", "dead", "work"),
            ("good", "success", "work"),
        ]
        assert (found.verdict, found.ahead, found.lanes) == (None, 0, 0)
        assert found.now == near(await backend.now())

    @needs("watching")
    async def test_any_end_may_count(self, backend: Backend) -> None:
        """Then a dead prerequisite counts like any other."""
        await end(backend, item("bad"), how=die)
        await end(backend, item("gone"), how=cancel)
        await submit(backend, item("p"), dependent("bad", "p", "gone", id="x", counting="done"))
        found = await explain(backend, "x")
        assert (found.need, found.met, found.open, found.counting) == (3, 2, 1, "done")
        assert [one.id for one in found.prerequisites] == ["p", "bad", "gone"]

    @needs("watching")
    async def test_a_blocked_item_shows_each_status_of_a_prerequisite(self, backend: Backend) -> None:
        """As `get` shows them. One that has ended goes to the end."""
        await submit(
            backend, item("scheduled", delay=500), item("ready"), dependent("scheduled", id="blocked")
        )
        await start_one(backend, item("running", "other"))
        await submit(backend, dependent("later", "running", "blocked", "ready", "scheduled", id="x"))
        assert [one.status for one in (await explain(backend, "x")).prerequisites] == [
            "missing",
            "running",
            "blocked",
            "ready",
            "scheduled",
        ]
        await end(backend, item("later", "late"))
        found = await explain(backend, "x")
        assert found.prerequisites[-1] == Prerequisite("later", "success", "late")
        assert found.item.waiting_for == ()
        assert (found.need, found.met, found.open) == (5, 1, 4)

    @needs("watching")
    async def test_a_prerequisite_that_is_named_twice_is_shown_once(self, backend: Backend) -> None:
        """It counts twice."""
        await submit(backend, item("p"), dependent("p", "q", "p", id="x"))
        found = await explain(backend, "x")
        assert [one.id for one in found.prerequisites] == ["p", "q"]
        assert (found.need, found.open) == (3, 3)

    @needs("watching")
    async def test_a_hundred_prerequisites_are_shown(self, backend: Backend) -> None:
        """Those that have not ended come first."""
        names = [f"p{n:03}" for n in range(150)]
        await end(backend, *(item(name) for name in names[:60]))
        await submit(backend, *(item(name) for name in names[60:]), dependent(*names, id="x"))
        found = await explain(backend, "x")
        assert (found.need, found.met, found.open) == (150, 60, 90)
        assert [one.id for one in found.prerequisites] == [*names[60:], *names[:10]]

    @needs("watching", "nested")
    async def test_an_item_that_waits_for_a_group_shows_how_it_stands(self, backend: Backend) -> None:
        """`running` while it is open, then `success` or `dead`, with the type of its root."""
        root = await start_one(backend, item("root", "flow"))
        await submit(backend, dependent(whole("root"), whole("none"), "p", id="x"))
        assert named(await explain(backend, "x")) == [
            (whole("root"), "running", "flow"),
            (whole("none"), "missing", ""),
            ("p", "missing", ""),
        ]
        await apply(backend, succeed(root, item("member")))
        assert named(await explain(backend, "x"))[0] == (whole("root"), "running", "flow")
        await apply(backend, succeed(await claim_one(backend)))
        found = await explain(backend, "x")
        assert named(found)[-1] == (whole("root"), "success", "flow")
        assert (found.need, found.met, found.open) == (3, 1, 2)
        await end(backend, item("none", "lone"), how=die)
        assert (whole("none"), "dead", "lone") in named(await explain(backend, "x"))
        await submit(backend, dependent(whole("member"), id="y"))
        assert named(await explain(backend, "y")) == [(whole("member"), "missing", "")]

    @needs("watching", "nested")
    async def test_the_item_that_closes_a_nested_group_waits_for_it(self, backend: Backend) -> None:
        """Under the id of the group. What waits for the group waits for that item."""
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, *nested("g", item("m")), dependent("g", id="next")))
        assert named(await explain(backend, "g")) == [(whole("g"), "running", GROUP_TYPE)]
        assert named(await explain(backend, "next")) == [("g", "blocked", GROUP_TYPE)]
        assert closing("g").after == (await explain(backend, "g")).item.after

    @needs("watching")
    async def test_an_item_that_is_released_shows_no_prerequisites(self, backend: Backend) -> None:
        """It waits for none."""
        await end(backend, item("p"))
        await submit(backend, dependent("p", id="x"))
        found = await explain(backend, "x")
        assert (found.item.status, found.need, found.met, found.open) == ("ready", 0, 0, 0)
        assert found.prerequisites == ()


class ExplainDoomedCases:
    @needs("watching")
    async def test_an_item_that_cannot_be_released_is_doomed(self, backend: Backend) -> None:
        """It shows the prerequisites, those that have ended without counting first."""
        await end(backend, item("good"))
        await end(backend, item("bad"), how=die)
        await submit(backend, dependent("good", "bad", id="x"))
        found = await explain(backend, "x")
        assert (found.item.status, found.verdict) == ("blocked", "unsatisfiable")
        assert found.met + found.open < found.need == 2
        assert named(found) == [("bad", "dead", "work"), ("good", "success", "work")]
        assert await verdicts(backend) == {"x": "unsatisfiable"}
        assert (await explain(backend, "x")).verdict == "unsatisfiable"

    @needs("watching")
    async def test_an_expired_item_is_doomed(self, subject: Subject) -> None:
        """From the claim on that notices it. It stays in its status, and nothing is ahead of it."""
        backend = subject.backend
        await submit(
            backend, item("first"), item("late", expires_in=50), item("soon", delay=500, expires_in=50)
        )
        await submit(backend, dependent("first", id="stuck", expires_in=50))
        assert (await explain(backend, "late")).verdict is None
        assert (await explain(backend, "late")).ahead == 1
        await subject.advance(60)
        await verdicts(backend)
        for id, status in (("late", "ready"), ("soon", "scheduled"), ("stuck", "blocked")):
            found = await explain(backend, id)
            assert (found.verdict, found.item.status) == ("expired", status)
            assert (found.ahead, found.lanes) == (0, 0)
        assert named(await explain(backend, "stuck")) == [("first", "ready", "work")]
        assert (await explain(backend, "first")).verdict is None

    @needs("watching")
    async def test_an_item_of_an_unknown_type_is_doomed(self, subject: Subject) -> None:
        """Once a claim has noticed that it waited longer than the grace."""
        backend = subject.backend
        await submit(backend, item("x", "alien"))
        await subject.advance(100)
        assert await verdicts(backend, types={"work": 1}, unknown_grace=50) == {"x": "unknown_type"}
        found = await explain(backend, "x")
        assert (found.verdict, found.item.status) == ("unknown_type", "ready")
