"""Marks: the fingerprints of deaths, which dead items share one, and lists by mark."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.backend import Backend
from treadle.item import ErrorInfo, Filter, Item, Lease, Settlement
from treadle.item_facts import DeadMark

from .build import apply, cancel, claim_one, die, end, item, items, near, only, start, state, submit, succeed
from .check import everything
from .subject import Subject, needs


def die_of(mark: str, lease: Lease, error: str = "Oops", message: str = "no") -> Settlement:
    return Settlement(
        lease=lease, kind="dead", reason="aborted", failure=ErrorInfo(error, message, "trace"), mark=mark
    )


async def kill(backend: Backend, mark: str, *new: Item, message: str = "no") -> None:
    """These items die with this mark, one after the other."""
    for lease in await start(backend, *new):
        await apply(backend, die_of(mark, lease, message=message))


async def listed(backend: Backend, **where: object) -> list[str]:
    return [one.id for one in await everything(backend, **where)]


class ItemMarkCases:
    @needs("watching")
    async def test_a_dead_item_keeps_the_mark_of_its_death(self, backend: Backend) -> None:
        """Everywhere where its state is read."""
        await kill(backend, "m", item("x"))
        assert (await state(backend, "x")).mark == "m"
        assert only((await backend.list(Filter())).items).mark == "m"
        found = await backend.ended([("default", "x")], [("default", "x")])
        assert found.items["default", "x"].mark == "m"
        assert only(found.groups["default", "x"].deaths).mark == "m"

    @needs("watching")
    async def test_only_dead_items_have_a_mark(self, backend: Backend) -> None:
        """A death without one has none either."""
        good, gone = await start(backend, item("good"), item("gone"))
        await apply(backend, replace(succeed(good), mark="m"), replace(cancel(gone), mark="m"))
        await end(backend, item("bad"), how=die)
        await submit(backend, item("open"))
        assert [(await state(backend, id)).mark for id in ("good", "gone", "bad", "open")] == [""] * 4

    @needs("watching")
    async def test_a_requeued_item_gets_the_mark_of_its_next_death(self, backend: Backend) -> None:
        """Until then it has none."""
        await kill(backend, "first", item("x"))
        assert [one.mark for one in (await backend.requeue(["x"])).items] == ["first"]
        assert (await state(backend, "x")).mark == ""
        assert list(await backend.marks()) == []
        await apply(backend, die_of("second", await claim_one(backend)))
        assert (await state(backend, "x")).mark == "second"
        assert [one.mark for one in await backend.marks()] == ["second"]
        await backend.requeue(["x"])
        await apply(backend, succeed(await claim_one(backend)))
        assert (await state(backend, "x")).mark == ""
        assert list(await backend.marks()) == []

    @needs("watching")
    async def test_items_are_listed_by_their_mark(self, backend: Backend) -> None:
        """Only dead ones. The empty mark finds those that died without one."""
        await kill(backend, "m", item("a"), item("b", "t"), item("c", tenant="x", queue="q"))
        await kill(backend, "other", item("d"))
        await kill(backend, "", item("e"))
        await end(backend, item("good"))
        await submit(backend, item("open"))
        assert await listed(backend, mark="m") == ["a", "b", "c"]
        assert await listed(backend, mark="") == ["e"]
        assert await listed(backend, mark="none") == []
        assert await listed(backend, mark="m", tenant="x") == ["c"]
        assert await listed(backend, mark="m", type="t", status=("dead",)) == ["b"]
        assert await listed(backend, mark="m", queue="q", reason="aborted") == ["c"]
        assert await listed(backend, mark="m", status=("ready", "success")) == []
        newest = await backend.list(Filter(mark="m"), limit=2)
        assert [one.id for one in newest.items] == ["c", "b"]
        page = await backend.list(Filter(mark="m"), limit=2, cursor=newest.cursor)
        assert ([one.id for one in page.items], page.cursor) == (["a"], None)

    @needs("watching")
    async def test_items_are_requeued_by_their_mark(self, backend: Backend) -> None:
        """The oldest first, up to the limit."""
        await kill(backend, "m", item("a"), item("b"))
        await kill(backend, "other", item("c"), item("d"))
        changed = await backend.requeue(Filter(mark="other"), limit=1)
        assert [one.id for one in changed.items] == ["c"]
        assert await listed(backend, status=("dead",)) == ["a", "b", "d"]


class DeadMarkCases:
    @needs("watching")
    async def test_dead_items_are_counted_by_their_mark(self, subject: Subject) -> None:
        """With what the newest of them died of, when the first was submitted, and when the last one died."""
        backend = subject.backend
        await submit(backend, item("a", "t"))
        begun = await backend.now()
        await subject.advance(100)
        await kill(backend, "m", item("b", "u"), message="second")
        await subject.advance(100)
        await apply(backend, die_of("m", await claim_one(backend, types={"t": 1}), "Crash", "third"))
        await submit(backend, item("open"))
        await end(backend, item("good"))
        # Which of several stores have them is not compared.
        assert [replace(mark, stores=()) for mark in await backend.marks()] == [
            DeadMark("m", "t", "Crash", "third", 2, False, near(begun), near(begun + 200), "a", "default")
        ]

    @needs("watching")
    async def test_the_marks_with_the_newest_deaths_come_first(self, subject: Subject) -> None:
        """An item that died again is new again."""
        backend = subject.backend
        for mark in ("a", "b", "c"):
            await kill(backend, mark, item(mark))
            await subject.advance(10)
        assert [one.mark for one in await backend.marks()] == ["c", "b", "a"]
        await kill(backend, "a", item("a2"))
        await subject.advance(10)
        assert [(one.mark, one.sample) for one in await backend.marks()] == [
            ("a", "a2"),
            ("c", "c"),
            ("b", "b"),
        ]
        assert [one.mark for one in await backend.marks(count=2)] == ["a", "c"]
        await backend.requeue(["b"])
        await apply(backend, die_of("b", await claim_one(backend)))
        assert [(one.mark, one.sample) for one in await backend.marks(count=2)] == [("b", "b"), ("a", "a2")]

    @needs("watching")
    async def test_a_mark_is_counted_up_to_the_cap(self, backend: Backend) -> None:
        """`capped` says that there are more."""
        await kill(backend, "many", *items(7))
        await kill(backend, "few", *items(4))
        assert {one.mark: (one.count, one.capped) for one in await backend.marks(cap=4)} == {
            "many": (4, True),
            "few": (4, False),
        }
        assert {one.mark: (one.count, one.capped) for one in await backend.marks(cap=7)} == {
            "many": (7, False),
            "few": (4, False),
        }

    @needs("watching")
    async def test_the_oldest_item_of_a_mark_is_found_beyond_the_cap(self, subject: Subject) -> None:
        """Though it died after others, and though many of another tenant were submitted before it."""
        backend = subject.backend
        leases = await start(backend, *items(250, tenant="other"))
        await apply(backend, *(die_of("m", lease) for lease in leases))
        await subject.advance(100)
        begun = await backend.now()
        (oldest,) = await start(backend, item("oldest", tenant="a"))
        await subject.advance(100)
        await kill(backend, "m", *items(4, tenant="a"))
        await subject.advance(100)
        await apply(backend, die_of("m", oldest))
        mine = only(await backend.marks(tenant="a", cap=2))
        assert (mine.count, mine.capped, mine.oldest_queued_at) == (2, True, near(begun))
        assert only(await backend.marks(cap=2)).oldest_queued_at == near(begun - 100)

    @needs("watching")
    async def test_deaths_without_a_mark_are_counted_together(self, backend: Backend) -> None:
        """Those of items that died before there were fingerprints, or of a worker that makes none."""
        await end(backend, item("x", "t"), item("y", "u"), how=die)
        lease = only(await start(backend, item("z")))
        await apply(backend, Settlement(lease=lease, kind="dead", reason="expired"))
        found = only(await backend.marks())
        assert (found.mark, found.count, found.sample) == ("", 3, "z")
        assert (found.error_type, found.error) == ("", "")

    @needs("watching")
    async def test_each_tenant_sees_its_own_deaths(self, subject: Subject) -> None:
        """Without a tenant they are counted together."""
        backend = subject.backend
        await kill(backend, "m", item("x", tenant="a"), item("y", tenant="a"), message="mine")
        await subject.advance(10)
        await kill(backend, "m", item("x", tenant="b"), message="theirs")
        await kill(backend, "n", item("z", tenant="b"))
        mine = only(await backend.marks(tenant="a"))
        assert (mine.mark, mine.count, mine.tenant, mine.error) == ("m", 2, "a", "mine")
        assert mine.last_at == near(await backend.now() - 10)
        both = {one.mark: one for one in await backend.marks()}
        assert (both["m"].count, both["m"].tenant, both["m"].sample) == (3, "b", "x")
        assert both["n"].count == 1
        assert list(await backend.marks(tenant="none")) == []
        assert [one.count for one in await backend.marks(tenant="a", cap=1)] == [1]

    @needs("watching")
    async def test_removed_items_are_counted_no_more(self, subject: Subject) -> None:
        """Whether an operator deletes them or they are pruned."""
        backend = subject.backend
        await kill(backend, "m", item("a"), item("b", keep_dead=50), item("c"))
        await backend.delete(["a"])
        assert only(await backend.marks()).count == 2
        await subject.advance(100)
        await backend.prune()
        assert (only(await backend.marks()).count, await listed(backend, mark="m")) == (1, ["c"])
        await backend.delete(["c"])
        assert list(await backend.marks()) == []

    @needs("watching")
    async def test_hundreds_of_marks_are_found(self, backend: Backend) -> None:
        """Up to the number asked for."""
        leases = await start(backend, *items(300))
        await apply(backend, *(die_of(f"m{n % 150}", lease) for n, lease in enumerate(leases)))
        assert len(await backend.marks()) == 100
        found = await backend.marks(count=1000)
        assert {one.count for one in found} == {2}
        assert len({one.mark for one in found}) == 150
        assert list(await backend.marks(count=0)) == []

    @needs("watching")
    async def test_errors_of_any_text_are_read(self, backend: Backend) -> None:
        """Lone surrogates, NUL and control characters."""
        text = "\x00\ud800\x1b[31m\n" + "x" * 10_000
        await kill(backend, "m", item("x"), message=text)
        assert only(await backend.marks()).error == text
