"""Steps over HTTP: callers send signals, and follow progress and streams without a gap or a repeat."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from tests.contrib.exchange import Exchange
from tests.engine.kit import PATIENCE, until, until_status
from treadle import Client, Context, InputError, Treadle, work
from treadle.backends.memory import MemoryBackend
from treadle.contrib.starlette import WorkAccess, work_router, work_state
from treadle.contrib.starlette.work_state import last_seen
from treadle.errors import StoreUnavailable, UnsupportedError
from treadle.item import MOST_UNREAD
from treadle.operate.operator import core_of

GO: dict[str, asyncio.Event] = {}
ALL = WorkAccess(None)


@work(name="approve")
async def approve(ctx: Context) -> Any:
    return await ctx.signal("approval", Any)


@work(name="tokens")
async def tokens(ctx: Context, first: int, rest: int) -> str:
    for n in range(first):
        await ctx.emit({"n": n, "text": f"line {n}\n"})
    await ctx.progress(first, first + rest, "half")
    await GO.setdefault("go", asyncio.Event()).wait()
    for n in range(first, first + rest):
        await ctx.emit(n)
    await ctx.progress(first + rest, first + rest)
    return "done"


WORK = [approve, tokens]


class Answer(msgspec.Struct):
    ok: bool


@pytest.fixture
async def app() -> AsyncGenerator[Treadle]:
    GO.clear()
    async with Treadle("memory://", work=WORK, drain=0) as app:
        yield app


def web_of(app: Client, access: WorkAccess | None = ALL, **settings: Any) -> Starlette:
    settings = {"signals": ["approval"], **settings}
    return Starlette(routes=[Mount("/work", work_router(app, access=lambda _: access, **settings))])


async def send(
    web: Any, id: str, name: str = "approval", body: bytes = b"true", **headers: str
) -> httpx.Response:
    given = {"content-type": "application/json", **{key.replace("_", "-"): x for key, x in headers.items()}}
    transport = httpx.ASGITransport(web)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as caller:
        return await caller.post(f"/work/{id}/signals/{name}", content=body, headers=given)


# -- signals -------------------------------------------------------------------------------------------------


async def test_a_signal_is_accepted_and_wakes_the_item(app: Treadle) -> None:
    handle = await app.enqueue(approve())
    await until_status(app, handle.id, "scheduled")
    answer = await send(web_of(app), handle.id, body=b'{"ok": true}')
    assert (answer.status_code, answer.json()) == (202, {"sent": True})
    assert await handle.result(PATIENCE) == {"ok": True}
    answer = await send(web_of(app), handle.id)
    assert (answer.status_code, answer.json()) == (409, {"detail": "this work has ended"})


async def test_an_idempotency_key_sends_a_signal_once(app: Treadle) -> None:
    await app.pause("default")
    handle = await app.enqueue(approve())
    for status, sent in ((202, True), (200, False)):
        answer = await send(web_of(app), handle.id, idempotency_key="click-7")
        assert (answer.status_code, answer.json()) == (status, {"sent": sent})
    (found,) = await app.backend.steps([handle.id])
    assert found is not None
    assert found.unread == 1


async def test_the_route_is_not_there_unless_asked_for(app: Treadle) -> None:
    handle = await app.enqueue(approve())
    web = Starlette(routes=[Mount("/work", work_router(app, access=lambda _: WorkAccess(None)))])
    assert (await send(web, handle.id)).status_code == 404
    assert (await send(web_of(app), handle.id, "other")).status_code == 404  # it is not among the names
    assert (await send(web_of(app, signals="all"), handle.id, "other")).status_code == 202


@pytest.mark.parametrize(
    ("access", "status"),
    [
        (None, 403),
        (WorkAccess("zoo"), 404),
        (WorkAccess(None, allows=lambda item: False), 404),
        (WorkAccess("acme"), 202),
    ],
)
async def test_a_caller_signals_only_what_it_may_see(
    app: Treadle, access: WorkAccess | None, status: int
) -> None:
    await app.pause("default")
    handle = await app.tenant("acme").enqueue(approve())
    assert (await send(web_of(app, access), handle.id)).status_code == status
    assert (await send(web_of(app, access), "unknown")).status_code == (403 if status == 403 else 404)


async def test_a_value_of_another_type_is_refused_before_it_is_sent(app: Treadle) -> None:
    await app.pause("default")
    handle, web = await app.enqueue(approve()), web_of(app, signals={"approval": Answer, "stop": None})
    for name, body, status in (
        ("approval", b'"maybe"', 422),
        ("approval", b'{"ok": "maybe"}', 422),
        ("approval", b'{"ok": true}', 202),
        ("stop", b"1", 422),
        ("stop", b"", 202),
        ("other", b"1", 404),
    ):
        answer = await send(web, handle.id, name, body)
        assert answer.status_code == status, answer.text
    (found,) = await app.backend.steps([handle.id])
    assert found is not None
    assert found.unread == 2


async def test_what_is_wrong_is_told(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    await app.pause("default")
    handle, web = await app.enqueue(approve()), web_of(app)
    for body, headers, status in (
        (b"{", {}, 400),
        (b"[" * 100_000, {}, 400),
        (b"1", {"idempotency_key": "x" * 5000}, 400),
        (b"1", {"content_type": "text/plain"}, 415),  # as a form of another site could send it
        (b'"' + b"x" * 1_100_000 + b'"', {}, 413),
        (b"", {}, 202),  # null
    ):
        answer = await send(web, handle.id, body=body, **headers)
        assert answer.status_code == status, (body[:10], answer.text)
    for _ in range(MOST_UNREAD - 1):
        await app.signal(handle.id, "approval")
    answer = await send(web, handle.id)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")


async def test_mistakes_are_errors_where_they_are_made(app: Treadle) -> None:
    class Plain(MemoryBackend):
        capabilities = MemoryBackend.capabilities - {"steps"}

    with pytest.raises(InputError, match="signals"):
        web_of(app, signals="approval")
    with pytest.raises(UnsupportedError, match="steps"):
        web_of(Client(Plain()))
    web_of(Client(Plain()), signals=())


# -- progress and streams ------------------------------------------------------------------------------------


async def read(app: Treadle, id: str, access: WorkAccess = ALL) -> Any:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(web_of(app, access)), base_url="http://shop.example"
    ) as caller:
        return (await caller.get(f"/work/{id}")).json()


async def test_a_state_has_progress_and_says_that_the_item_is_suspended(app: Treadle) -> None:
    waits, runs = await app.enqueue(approve()), await app.enqueue(tokens(1, 1))
    await until_status(app, waits.id, "scheduled")
    state = await read(app, waits.id)
    assert (state["status"], state["suspended"], state["due_at"]) == ("scheduled", True, None)
    assert state["progress"] is None
    while await runs.progress() is None:  # noqa: ASYNC110  there is no event for it
        await asyncio.sleep(0.01)
    state = await read(app, runs.id)
    assert state["progress"] == {"done": 1.0, "total": 2.0, "message": "half"}
    hidden = await read(app, runs.id, WorkAccess(None, results=False))
    assert hidden["progress"] == {"done": 1.0, "total": 2.0, "message": None}
    assert state["suspended"] is False


def events(text: str) -> list[tuple[str, str | None, Any]]:
    """The name, the id and the data of each."""
    found: list[tuple[str, str | None, Any]] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if "event" in fields:
            found.append((fields["event"], fields.get("id"), json.loads(fields["data"])))
    return found


async def follow(app: Treadle, id: str, seen: str = "", access: WorkAccess = ALL) -> Any:
    headers = {"last-event-id": seen} if seen else {}
    async with (
        asyncio.timeout(PATIENCE),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(web_of(app, access)), base_url="http://shop.example"
        ) as caller,
    ):
        return await caller.get(f"/work/{id}/events", headers=headers)


async def test_chunks_come_in_order_before_the_end_and_their_numbers_are_ids(app: Treadle) -> None:
    GO["go"] = asyncio.Event()
    GO["go"].set()
    handle = await app.enqueue(tokens(3, 1500))  # more than one read
    found = events((await follow(app, handle.id)).text)
    chunks = [(id, data) for name, id, data in found if name == "chunk"]
    assert [id for id, _ in chunks] == [str(n) for n in range(1, 1504)]
    assert chunks[0][1] == {"n": 0, "text": "line 0\n"}
    assert found[-1][:2] == ("end", "end.1503")
    assert found[-1][2]["progress"]["done"] == 1503
    assert all(id is None for name, id, _ in found if name == "state")
    # Whoever has seen a part of it gets the rest.
    rest = events((await follow(app, handle.id, "1500")).text)
    assert [(name, id) for name, id, _ in rest] == [
        ("chunk", "1501"),
        ("chunk", "1502"),
        ("chunk", "1503"),
        ("end", "end.1503"),
    ]
    assert (await follow(app, handle.id, "end.1503")).status_code == 204
    assert [id for _, id, _ in events((await follow(app, handle.id, "end.1502")).text)] == [
        "1503",
        "end.1503",
    ]


async def test_chunks_do_not_wait_for_the_next_look(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_state, "LOOK_EVERY", 1e9)
    await app.pause("default")
    handle = await app.enqueue(tokens(2, 1))
    followed = Exchange(web_of(app), f"/work/{handle.id}/events")
    assert (await followed.event())[1]["status"] == "ready"
    await app.resume("default")
    assert (await followed.event())[0] == "chunk"
    assert await followed.event() == ("chunk", {"n": 1, "text": "line 1\n"})
    GO["go"].set()
    assert await followed.event() == ("chunk", 2)
    assert (await followed.event())[0] == "end"
    await followed.ended()


async def test_chunks_are_found_where_nothing_is_published(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await app.enqueue(tokens(2, 1))
    monkeypatch.setattr(core_of(app).wakeups, "emitted", lambda item: None)
    monkeypatch.setattr(work_state, "LOOK_EVERY", 0.05)
    followed, names = Exchange(web_of(app), f"/work/{handle.id}/events"), list[str]()
    while names.count("chunk") < 2:
        names.append((await followed.event())[0])
    followed.leave()
    await followed.ended()


async def test_there_is_no_end_before_chunks_that_cannot_be_read(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    GO["go"] = asyncio.Event()
    GO["go"].set()
    handle = await app.enqueue(tokens(2, 1))
    await handle.result(PATIENCE)

    async def away(*args: Any, **options: Any) -> Any:
        raise StoreUnavailable("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(app.backend, "stream", away)
        assert events((await follow(app, handle.id)).text) == []
    assert len(events((await follow(app, handle.id)).text)) == 4


async def test_chunks_are_results(app: Treadle) -> None:
    GO["go"] = asyncio.Event()
    GO["go"].set()
    handle = await app.enqueue(tokens(2, 1))
    await handle.result(PATIENCE)
    hidden = WorkAccess(None, results=False)
    assert [name for name, _, _ in events((await follow(app, handle.id, "", hidden)).text)] == ["end"]
    assert (await follow(app, handle.id, "end", hidden)).status_code == 204
    async with Client(app.backend) as bare:
        found = events((await follow(bare, handle.id)).text)  # type: ignore[arg-type]
    assert [data for name, _, data in found if name == "chunk"] == ["***"] * 3


async def test_a_stream_listens_only_while_it_is_open(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = await app.enqueue(tokens(1, 1))
    web, listening = web_of(app), list[object]()
    wakeups = core_of(app).wakeups
    listen = wakeups.listen

    def counted(receive: Any, **options: Any) -> Any:
        listening.append(receive)
        stop = listen(receive, **options)

        def end() -> None:
            listening.remove(receive)
            stop()

        return end

    monkeypatch.setattr(wakeups, "listen", counted)
    several = [Exchange(web, f"/work/{handle.id}/events") for _ in range(3)]
    for each in several:
        await each.event()
    assert len(listening) == 3
    for each in several:
        each.leave()
        await each.ended()
    await until(lambda: not listening)


@pytest.mark.parametrize(
    ("id", "seen"),
    [
        ("", (False, 0)),
        ("17", (False, 17)),
        ("end", (True, 0)),
        ("end.17", (True, 17)),
        ("running.1", (False, 0)),  # as earlier versions had it
        ("-1", (False, 0)),
        ("9" * 30, (False, 0)),
        ("٣", (False, 0)),
    ],
)
def test_what_a_caller_has_seen(id: str, seen: tuple[bool, int]) -> None:
    assert last_seen(id) == seen


def access_by_method(request: Request) -> WorkAccess | None:
    return WorkAccess(None) if request.method == "GET" else None


async def test_an_access_function_may_let_callers_only_read(app: Treadle) -> None:
    handle = await app.enqueue(approve())
    web = Starlette(routes=[Mount("/work", work_router(app, access=access_by_method, signals="all"))])
    assert (await send(web, handle.id)).status_code == 403
