"""Telling somebody of problems: `on_problem=`, once in the whole fleet, and again if it was not taken."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, MakeApp
from tests.engine.receiver import SECRET, Receiver, receiving
from treadle import Abort, InputError, ItemState, MemoryBackend, Retry, Treadle, UnsupportedError, work
from treadle.item import OPEN, TELL_TYPE
from treadle.operate import tell, webhook
from treadle.operate.operator import core_of
from treadle.operate.tell import KnownProblem, ProblemCompare, ProblemWatch
from treadle.operate.webhook import signature
from treadle.problems import PROBLEM_KINDS, Problem, ProblemChange, Webhook, verify_webhook
from treadle.testing import CountingBackend


@work(name="mail.send")
async def send(to: str = "ann") -> None:
    raise Abort(ValueError(to))


@work(name="scan")
async def scan() -> None:
    raise Abort(ValueError("no"))


async def until(receiver: Receiver, count: int) -> list[dict[str, Any]]:
    """The messages, when there are this many."""
    return await asyncio.to_thread(receiver.wait_for, count, PATIENCE)


async def failed_message(app: Treadle) -> ItemState:
    """The message, when an attempt to tell it has failed."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = (await app.list(tuple(OPEN), type=TELL_TYPE, history=True)).items
            if found and found[0].history:
                return found[0]
            await asyncio.sleep(0.02)


def compared(known: list[KnownProblem], *found: Problem) -> ProblemCompare:
    return ProblemCompare(known, found, 100.0)


def changes(compare: ProblemCompare) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(change, problem.kind, problem.refs) for change, problem in compare.changes]


def test_a_problem_appears_gets_worse_and_ends() -> None:
    overdue = Problem("schedule", "1 schedule overdue", "treadle why", ("nightly",))
    first = compared([], overdue, Problem("dead", "2 dead items", "treadle dead", ("a", "b"), 2))
    assert changes(first) == [("appeared", "schedule", ("nightly",)), ("appeared", "dead", ("a", "b"))]
    assert [each.since for each in first.known] == [100.0, 100.0]
    # Another text, fewer types and a few more items are no change.
    same = ProblemCompare(first.known, [overdue, Problem("dead", "19", "", ("b",), 19)], 200.0)
    assert changes(same) == []
    assert [(each.since, each.items) for each in same.known] == [(100.0, 0), (100.0, 2)]
    worse = compared(same.known, overdue, Problem("dead", "20", "", ("b",), 20))
    assert changes(worse) == [("changed", "dead", ("b",))]
    assert worse.known[1].items == 20
    other = compared(worse.known, overdue, Problem("dead", "20", "", ("b", "c"), 20))
    assert changes(other) == [("changed", "dead", ("b", "c"))]
    over = compared(other.known, Problem("schedule", "", "", ("other",)))
    assert changes(over) == [
        ("appeared", "schedule", ("other",)),
        ("ended", "schedule", ("nightly",)),
        ("ended", "dead", ("b", "c")),
    ]


def test_problems_that_become_one_are_told_once() -> None:
    types = [Problem("no_worker", "", "", (name,)) for name in "abc"]
    before = compared([], *types)
    assert len(before.changes) == 3
    one = compared(before.known, Problem("no_worker", "", "", ("a", "b", "c", "d")))
    assert changes(one) == [("changed", "no_worker", ("a", "b", "c", "d"))]
    assert changes(compared(one.known, *types)) == []
    # Items come and go: there is one such problem.
    stuck = compared([], Problem("not_submitted", "", "", ("id1",), 1))
    assert changes(compared(stuck.known, Problem("not_submitted", "", "", ("id2",), 2))) == []
    # Each pause is one.
    acme = Problem("paused", "", "treadle resume mail --tenant acme", ("mail",))
    pauses = compared([], acme)
    mail = Problem("paused", "", "treadle resume mail", ("mail",))
    assert changes(compared(pauses.known, acme, mail)) == [("appeared", "paused", ("mail",))]
    # No worker at all is another problem than none for a type.
    assert [change for change, *_ in changes(compared(before.known, Problem("no_worker", "", "")))] == [
        "appeared",
        *["ended"] * 3,
    ]


def test_a_problem_has_an_id_until_it_ends() -> None:
    def late(*queues: str) -> list[Problem]:
        return [Problem("late", "an item has been ready for 5 min", "", (name,)) for name in queues]

    first = compared([], *late("mail", "news"), Problem("dead", "", "", ("a",), 1))
    ids = [problem.id for _, problem in first.changes]
    assert [id.rpartition("-")[0] for id in ids] == ["late", "late", "dead"]
    assert len(set(ids)) == 3
    assert [each.id for each in compared(first.known, *late("mail", "news")).known[:2]] == ids[:2]
    worse = ProblemCompare(first.known, [Problem("dead", "", "", ("a", "b"), 2)], 200.0)
    assert [(change, problem.id) for change, problem in worse.changes] == [("changed", ids[2])]
    again = ProblemCompare([], late("mail"), 900.0)
    assert again.known[0].id not in ids
    other = ProblemCompare([], late("mail"), 100.0, "acme")
    assert other.known[0].id not in ids
    # Several that become one, and are several again.
    one = compared(first.known, Problem("late", "", "", ("mail", "news")))
    assert one.known[0].id == ids[0]
    assert len({each.id for each in compared(one.known, *late("mail", "news")).known}) == 2


def test_a_problem_that_is_over_is_told_without_its_age() -> None:
    def over(kind: str, *refs: str, lasted: float = 720.0) -> str:
        change = ProblemChange(
            id="m", change="ended", kind=kind, text="for 5 min", refs=refs, at=9.0, since=0.0, lasted=lasted
        )
        return change.message

    assert over("late", "mail") == "Problem over (late) after 12 min: late items: mail"
    assert over("silent", "0f" * 16) == "Problem over (silent) after 12 min: workers that were silent"
    assert over("no_worker") == "Problem over (no_worker) after 12 min: items without a worker"
    for kind in PROBLEM_KINDS:
        assert "5 min" not in over(kind)
    assert over("of a later version").endswith(": for 5 min")


def test_suspects_that_become_few_or_many_are_told() -> None:
    """Of items that ended workers, those that lost the most are told."""

    def killing(*ids: str) -> list[Problem]:
        beside = Problem("killing", "others", "", ("beside",), 1)
        return [Problem("killing", f"{len(ids)}", "", ids, len(ids)), beside]

    first = compared([], *killing("a", "b", "c"))
    assert changes(first) == [("appeared", "killing", ("a", "b", "c"))]
    few = compared(first.known, *killing("a", "b", "c", "d"))
    assert (changes(few), few.known[0].refs) == ([], ("a", "b", "c"))
    many = compared(few.known, *killing(*"abcdefghijklm"))
    assert [(change, len(refs)) for change, _, refs in changes(many)] == [("changed", 13)]
    assert changes(compared(many.known, *killing(*"abcdefghijkl"))) == []
    one = compared(many.known, *killing("c"))
    assert changes(one) == [("changed", "killing", ("c",))]
    assert changes(compared(one.known, *killing("c"))) == []
    assert changes(compared(one.known, *killing("z"))) == [("changed", "killing", ("z",))]
    assert changes(compared(one.known)) == [("ended", "killing", ("c",))]


def test_a_problem_that_comes_and_goes_is_one() -> None:
    """Whichever worker is blocked. It is over when it was gone for some minutes, and others at once."""

    def blocked(*workers: str) -> Problem:
        return Problem("blocked", "", "", workers)

    compare = ProblemCompare([], [blocked("w1")], 100.0)
    assert changes(compare) == [("appeared", "blocked", ("w1",))]
    for now, found in ((115.0, []), (130.0, [blocked("w2")]), (145.0, []), (160.0, []), (400.0, [])):
        before = compare.known
        compare = ProblemCompare(before, found, now)
        assert (now, changes(compare)) == (now, [])
        assert compare.is_changed == (now not in (160.0, 400.0)), "what is known is stored"
    assert changes(ProblemCompare(compare.known, [blocked("w1", "w2", "w3")], 410.0)) == [
        ("changed", "blocked", ("w1", "w2", "w3"))
    ]
    over = ProblemCompare(compare.known, [], 446.0)
    assert (changes(over), over.known) == ([("ended", "blocked", ("w1",))], [])


async def test_a_short_absence_is_stored_and_not_told(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Problem] = []
    look = tell.look_at

    async def look_at(*args: Any, **named: Any) -> Any:
        return (await look(*args, **named))._replace(problems=tuple(found))

    monkeypatch.setattr(tell, "look_at", look_at)
    for name, value in (("EVERY", 0.0), ("SHARE", 0)):
        monkeypatch.setattr(tell, name, value)
    told: list[ProblemChange] = []
    async with make_app(send, log_failures=False) as app:
        watch = ProblemWatch(core_of(app), None, told.append)
        for there in (True, False, False, True, False):
            found[:] = [Problem("late", "", "", ("mail",), 1)] if there else []
            await watch.run_once()
        assert [each.change for each in told] == ["appeared"]
        assert {each.status for each in (await app.list(type=TELL_TYPE)).items} == {"success"}
        monkeypatch.setattr(tell, "LINGER", 0.0)
        await watch.run_once()
        assert [each.change for each in told] == ["appeared", "ended"]
        assert len((await app.list(type=TELL_TYPE)).items) == 5


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"], indirect=True)
async def test_each_change_is_told_once_whoever_watches(make_app: MakeApp) -> None:
    with receiving() as receiver:
        hook = Webhook(receiver.url, secret=SECRET, every=0.05)
        app = make_app(send, scan, on_problem=hook, queues=["default"], log_failures=False)
        async with app:
            watchers = [asyncio.ensure_future(app.watch_problems(hook)) for _ in range(2)]
            await app.enqueue(send())
            (first,) = await until(receiver, 1)
            await app.enqueue(scan())
            await until(receiver, 2)
            await app.delete(
                [each.group_id for each in (await app.list("dead")).items if each.type != TELL_TYPE]
            )
            await until(receiver, 3)
            await asyncio.sleep(0.1)
            for each in watchers:
                each.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
            assert receiver.told == [("appeared", "dead"), ("changed", "dead"), ("ended", "dead")]
            assert await app.schedules.list() == []
            assert await app.problems() == []
            messages = (await app.list(type=TELL_TYPE)).items
            assert [each.status for each in messages] == ["success"] * 3
    assert first["text"] == "New problem (dead): 1 dead item: mail.send\n→ treadle dead"
    assert (first["problem"], first["refs"], first["items"]) == ("1 dead item: mail.send", ["mail.send"], 1)
    assert (first["at"], first["tenant"]) == (first["since"], None)
    ended = receiver.messages[2]
    assert re.fullmatch(r"Problem over \(dead\) after [^:]+: dead items: (mail.send|scan).*", ended["text"])
    assert ended["lasted"] > 0
    assert len({each["problem_id"] for each in receiver.messages}) == 1
    for headers, body in receiver.taken:
        assert headers["content-type"] == "application/json"
        assert verify_webhook(SECRET, headers["treadle-signature"], body)
    ids = [headers["treadle-message"] for headers, _ in receiver.taken]
    assert ids == [each["id"] for each in receiver.messages]


@pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)
async def test_a_receiver_that_is_down_is_told_later(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tell, "RETRY", Retry(attempts=100, base=0.05, factor=1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://ann:pass-word@127.0.0.1:{port}/hook/token-1234"
    app = make_app(send, on_problem=Webhook(url, secret=SECRET, every=0.05), log_failures=False)
    async with app:
        await app.enqueue(send())
        untold = await failed_message(app)
        assert "cannot be reached" in untold.history[0].message
        with receiving(port) as receiver:
            receiver.status = 503
            await asyncio.to_thread(receiver.wait_for_refusals, 1, PATIENCE)
            receiver.status = 200
            await until(receiver, 1)
            await asyncio.sleep(0.2)
            assert receiver.told == [("appeared", "dead")]
            assert receiver.taken[0][0]["authorization"] == "Basic YW5uOnBhc3Mtd29yZA=="
        (message,) = (await app.list(type=TELL_TYPE, history=True)).items
        assert (message.status, message.history[-1].error_type) == ("success", "WebhookError")
        shown = f"{message} {caplog.text} {app.worker} {await app.audits()}"
    assert f"http://127.0.0.1:{port}/*** answered 503" in shown
    for secret in ("token-1234", "pass-word", SECRET):
        assert secret not in shown


async def test_a_function_is_told_in_one_process_and_again_if_it_raises(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tell, "RETRY", Retry(attempts=100, base=0.05, factor=1))
    told: list[ProblemChange] = []
    failed: list[ProblemChange] = []

    def tell_me(change: ProblemChange) -> None:
        if not failed:
            failed.append(change)
            raise RuntimeError("busy")
        told.append(change)

    app = make_app(send, log_failures=False)
    async with app:
        await app.enqueue(send())
        await app.worker.drain()
        assert await app.watch_problems(tell_me, once=True) is False
        assert (len(failed), told) == (1, [])
        assert await app.watch_problems(print, once=True) is True
        watch = ProblemWatch(core_of(app), None, tell_me)
        async with asyncio.timeout(PATIENCE):
            while not told:
                await asyncio.sleep(0.1)
                await watch.tell()
    assert told == failed
    assert (told[0].change, told[0].kind) == ("appeared", "dead")


async def test_a_tenant_is_told_of_its_own(make_app: MakeApp) -> None:
    told: list[ProblemChange] = []
    async with make_app(send, log_failures=False) as app:
        await app.tenant("acme").enqueue(send())
        await app.tenant("beta").enqueue(send())
        await app.worker.drain()
        await app.tenant("acme").watch_problems(told.append, once=True)
        assert [(each.tenant, each.items) for each in told] == [("acme", 1)]
        assert told[0].message.startswith("New problem of tenant acme (dead): ")
        assert {each.tenant for each in (await app.list(type=TELL_TYPE)).items} == {"acme"}


async def test_messages_are_for_those_who_tell(make_app: MakeApp) -> None:
    """A claim of any type by hand leaves them, as do changes of all items."""
    async with make_app(send, log_failures=False) as app:
        await app.enqueue(send())
        await app.worker.drain()

        def away(change: ProblemChange) -> None:
            raise RuntimeError("away")

        await app.watch_problems(away, once=True)
        await app.trigger([each.id for each in (await app.list(type=TELL_TYPE)).items])
        assert await app.claim_one() is None
        (message,) = (await app.list(type=TELL_TYPE)).items
        assert message.status in OPEN
        assert [each.kind for each in await app.problems()] == ["dead"]
        overview = await app.overview()
        seen = (overview.counts, overview.ages, await app.backlogs(), (await app.look()).overview)
        assert "treadle.problem" not in str(seen)
        assert (await app.workflows()).items == ()
        assert (await app.bulk.start("cancel", everything=True)).total == 0


def test_a_redirect_is_not_followed() -> None:
    change = ProblemChange(id="m1", change="ended", kind="late", text="x", at=1.0, since=0.0)
    with receiving() as there, receiving() as receiver:
        receiver.status, receiver.location = 307, there.url
        with pytest.raises(Exception, match=r"127.0.0.1:\d+/\*\*\* answered 307"):
            Webhook(receiver.url).send(change)
        assert there.taken == []
        receiver.status = 200
        Webhook(receiver.url).send(change)
        assert "treadle-signature" not in receiver.taken[0][0]


async def test_a_webhook_for_the_url_of_the_app_is_as_that_one(make_app: MakeApp) -> None:
    """Who sends must not matter for the receiver."""
    with receiving() as receiver:
        own = Webhook(receiver.url, secret=SECRET, ignore=["paused"])
        app = make_app(send, on_problem=own, log_failures=False)
        await app.pause("mail")
        await app.enqueue(send(), id="late")
        for url in (receiver.url, f"{receiver.url}/2"):
            assert await app.watch_problems(Webhook(url), once=True)
        (headers, body), *others = receiver.taken
        assert [each["kind"] for each in receiver.messages] == ["no_worker", "no_worker", "paused"]
        assert verify_webhook(SECRET, headers["treadle-signature"], body)
        assert not any("treadle-signature" in headers for headers, _ in others)
        other = Webhook(receiver.url, secret="another one", every=1, max_wait=2, ignore=["dead"]).like(own)
        assert (other.every, other.max_wait, *other.ignore) == (1.0, 2.0, "dead")
        other.send(ProblemChange(id="m1", change="ended", kind="late", text="x", at=1.0, since=0.0))
        headers, body = receiver.taken[-1]
        assert verify_webhook("another one", headers["treadle-signature"], body)


def test_an_answer_without_an_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its status is all that matters. Each wait would keep a thread of the program."""
    monkeypatch.setattr(webhook, "TIMEOUT", 1.0)
    change = ProblemChange(id="m1", change="ended", kind="late", text="x", at=1.0, since=0.0)

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nx")
        ended.wait(PATIENCE)
        connection.close()

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        try:
            Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/").send(change)
        finally:
            ended.set()
            thread.join()


def test_what_a_webhook_refuses() -> None:
    for url in ("", "ftp://x/y", "file:///etc/passwd", "https://", "http://a b/c", "http://h:99999/", 7):
        with pytest.raises(InputError, match="url must be one as https://") as raised:
            Webhook(url)  # type: ignore[arg-type]
        assert "passwd" not in str(raised.value)
    with pytest.raises(InputError, match="secret"):
        Webhook("https://example.org/", secret="short")
    with pytest.raises(InputError, match="every=0 must be more than 0"):
        Webhook("https://example.org/", every=0)
    with pytest.raises(InputError, match=r"ignore='pause' is no kind of problem: .*Did you mean 'paused'"):
        Webhook("https://example.org/", ignore=["pause"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"ignore takes a list, as in ignore=\['paused'\]"):
        Webhook("https://example.org/", ignore="paused")  # type: ignore[arg-type]
    assert repr(Webhook("https://ann:pw@hooks.example.org:8443/T0/x?y=z")) == (
        "Webhook('https://hooks.example.org:8443/***')"
    )


async def test_who_cannot_be_told(make_app: MakeApp) -> None:
    """Nothing is stored then. The error shows no URL."""
    url = "https://example.org/token-1234"

    async def two(change: ProblemChange, more: str) -> None: ...

    async with make_app(send) as app:
        await app.pause("mail")
        for receiver, text in (
            (url, "to Webhook.url., or to a function that takes a ProblemChange: not to a str"),
            ([Webhook(url)], "not to a list"),
            (lambda: None, "lambda> does not take one argument"),
            (two, "two does not take one argument"),
        ):
            with pytest.raises(TypeError, match=text) as raised:
                Treadle(on_problem=receiver)  # type: ignore[arg-type]
            assert "token-1234" not in str(raised.value)
            with pytest.raises(TypeError, match=text):
                await app.watch_problems(receiver, once=True)  # type: ignore[arg-type]
        assert (await app.list(type=TELL_TYPE)).items == ()
        told: list[object] = []
        for taken in (print, told.append, lambda *_: None, lambda change, more=1: None):
            assert await app.watch_problems(taken, once=True)


def test_a_signature_is_checked_with_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    header = signature(SECRET, b"{}", 1000)
    assert verify_webhook(SECRET, header, b"{}")
    assert not verify_webhook(SECRET, header, b"{ }")
    assert not verify_webhook("another one", header, b"{}")
    assert not verify_webhook(SECRET, header.replace("t=1000", "t=1001"), b"{}")
    assert not verify_webhook(SECRET, signature(SECRET, b"{}", 699), b"{}")
    assert not verify_webhook(SECRET, "nonsense", b"{}")
    assert not verify_webhook(SECRET, None, b"{}")
    assert not verify_webhook(SECRET, header.replace("1000", "١٠٠٠"), b"{}")


def test_what_a_signature_is_not_checked_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that is not set is empty: everybody knows it."""
    monkeypatch.setattr("time.time", lambda: 1000.0)
    for secret in ("", "1234567", None, b"12345678"):
        header = signature(secret if isinstance(secret, str) else SECRET, b"{}", 1000)
        with pytest.raises(InputError, match="secret must be a text of 8 characters or more"):
            verify_webhook(secret, header, b"{}")  # type: ignore[arg-type]
    header = signature(SECRET, b"{}", 1000)
    for within in (float("nan"), float("inf"), -1.0):
        with pytest.raises(InputError, match="within="):
            verify_webhook(SECRET, header, b"{}", within=within)
    with pytest.raises(TypeError, match="body must be the bytes that came, not str"):
        verify_webhook(SECRET, header, "{}")  # type: ignore[arg-type]
    assert verify_webhook(SECRET, header, b"{}", within=timedelta(minutes=1))


def test_a_store_that_cannot_be_watched_says_so() -> None:
    from treadle.ports import PortsBackend, memory_pubsub, memory_queue, memory_store

    ports = PortsBackend(memory_queue(), memory_pubsub(), memory_store())
    with pytest.raises(UnsupportedError, match="on_problem"):
        Treadle(ports, on_problem=print)


async def test_a_message_of_a_process_that_died_is_told_by_another(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tell, "LEASE", 0.3)
    began, told = asyncio.Event(), list[ProblemChange]()

    async def receive(change: ProblemChange) -> None:
        if not began.is_set():
            began.set()
            await asyncio.sleep(PATIENCE)
        told.append(change)

    async with make_app(send, log_failures=False) as app:
        await app.pause("mail")
        dying = asyncio.ensure_future(app.watch_problems(receive))
        await asyncio.wait_for(began.wait(), PATIENCE)
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        watch = ProblemWatch(core_of(app), None, receive)
        async with asyncio.timeout(PATIENCE):
            while not told:
                await watch.tell()
                await asyncio.sleep(0.02)
        await watch.tell()
    assert [(each.change, each.kind) for each in told] == [("appeared", "paused")]


async def test_what_a_look_costs() -> None:
    """One process looks. The others ask when it is their turn."""
    backend = CountingBackend(MemoryBackend())
    app = Treadle(backend, work=[send])
    await app.connect()
    first, second = (ProblemWatch(core_of(app), None, print) for _ in range(2))
    backend.reset()
    await first.run_once()
    assert backend.total() <= 9
    backend.reset()
    await second.run_once()
    assert dict(backend.calls) == {"now": 1, "put_schedule": 1}
    await app.close()


async def test_a_function_that_hangs_is_not_called_again_meanwhile(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call would keep one more of the few threads that the program shares, for names of hosts too."""
    monkeypatch.setattr(tell, "PATIENCE", 0.01)
    monkeypatch.setattr(tell, "RETRY", Retry(attempts=100, base=0.05, factor=1))
    calls, ended = list[str](), threading.Event()

    def hang(change: ProblemChange) -> None:
        calls.append(change.id)
        ended.wait(PATIENCE)

    async with make_app(send) as app:
        await app.pause("bulk")
        watch = ProblemWatch(core_of(app), None, hang)
        await watch.run_once()
        for _ in range(3):
            await asyncio.sleep(0.1)
            await watch.tell()
        assert len(calls) == 1
        ended.set()
        async with asyncio.timeout(PATIENCE):
            while len(calls) < 2:
                await asyncio.sleep(0.1)
                await watch.tell()
        assert calls[0] == calls[1]


def test_code_that_is_not_async_watches_too() -> None:
    told: list[ProblemChange] = []
    with Treadle(MemoryBackend(), work=[send]).sync as app:
        app.pause("mail")
        app.watch_problems(told.append, once=True)
    assert [each.kind for each in told] == ["paused"]
    with Treadle(MemoryBackend()).sync as app, pytest.raises(InputError, match="say whom to tell"):
        app.watch_problems()


async def test_a_worker_can_be_drained_while_a_message_waits(make_app: MakeApp) -> None:
    def away(change: ProblemChange) -> None:
        raise RuntimeError("away")

    async with make_app(send, on_problem=away, log_failures=False) as app:
        await app.enqueue(send())
        await app.worker.drain()
        await app.watch_problems(once=True)
        async with asyncio.timeout(PATIENCE):
            await app.worker.drain()
        assert {each.status for each in (await app.list(type=TELL_TYPE)).items} == {"scheduled"}
