"""The routes with which callers ask for the state of their work, and what they may see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount

from tests.contrib.exchange import Exchange
from tests.engine.kit import PATIENCE, until
from treadle import Abort, Client, Context, Handle, InputError, Result, Secret, Treadle, work
from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend
from treadle.contrib.starlette import WorkAccess, work_router, work_state
from treadle.engine.wait.waiters import Waiters
from treadle.operate.operator import core_of
from treadle.operate.server_stop import server_stop
from treadle.testing import counting


@dataclass
class Login:
    user: str
    password: str
    pin: Annotated[str, Secret]


@work(name="add")
async def add(a: int, b: int) -> int:
    return a + b


@work(name="login")
async def login(user: str) -> Login:
    return Login(user, "hunter2", "1234")


@work(name="refuse")
async def refuse(card: str) -> None:
    raise Abort(f"{card} is stolen")


@work(name="gated")
async def gated(ctx: Context, gate: str) -> str:
    await GATES.setdefault(gate, asyncio.Event()).wait()
    return "open"


@work(name="fan_out")
async def fan_out(ctx: Context, gate: str) -> Result[None, str]:
    return ctx.queue(gated(gate))


@work(name="collect")
async def collect(ctx: Context, gate: str, fails: bool) -> Result[None, Any]:
    return ctx.queue(ctx.result(["first"]), refuse(gate) if fails else gated(gate))


GATES: dict[str, asyncio.Event] = {}
WORK = [add, login, refuse, gated, fan_out, collect]


@pytest.fixture
async def app() -> AsyncGenerator[Treadle]:
    GATES.clear()
    async with Treadle("memory://", work=WORK, drain=0) as app:
        yield app


def everything(request: Request) -> WorkAccess:
    return WorkAccess(None)


def web_of(app: Client, access: Any = everything, **settings: Any) -> Starlette:
    return Starlette(routes=[Mount("/work", work_router(app, access=access, **settings))])


async def get(web: Any, path: str, **headers: str) -> httpx.Response:
    async with (
        asyncio.timeout(PATIENCE),
        httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://shop.example") as caller,
    ):
        return await caller.get(
            path, headers={name.replace("_", "-"): each for name, each in headers.items()}
        )


# -- what is shown -------------------------------------------------------------------------------------------


async def test_the_state_of_an_item(app: Treadle) -> None:
    handle = await app.enqueue(add(1, 2))
    assert await handle.result(PATIENCE) == 3
    answer = await get(web_of(app), f"/work/{handle.id}")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    state = answer.json()
    assert {name: state[name] for name in ("id", "type", "status", "ended", "attempt", "result")} == {
        "id": handle.id,
        "type": "add",
        "status": "success",
        "ended": True,
        "attempt": 1,
        "result": 3,
    }
    assert (state["group"]["open"], state["group"]["value"]) == (0, 3)
    assert state["queued_at"] < state["ended_at"] == state["group"]["ended_at"]
    assert not {"worker", "input", "headers", "history", "queue", "tenant"} & set(state)


async def test_secrets_are_masked(app: Treadle) -> None:
    handle = await app.enqueue(login("ada"))
    await handle.result(PATIENCE)
    answer = await get(web_of(app), f"/work/{handle.id}")
    shown = {"user": "ada", "password": "***", "pin": "***"}
    assert (answer.json()["result"], answer.json()["group"]["value"]) == (shown, shown)
    assert "hunter2" not in answer.text
    assert "1234" not in answer.text


async def test_results_of_types_whose_code_is_unknown_are_masked(app: Treadle) -> None:
    handle = await app.enqueue(login("ada"))
    await handle.result(PATIENCE)
    async with Client(app.backend) as bare:
        answer = await get(web_of(bare), f"/work/{handle.id}")
    assert (answer.json()["result"], answer.json()["group"]["value"]) == ("***", "***")
    assert "1234" not in answer.text


@pytest.mark.parametrize(
    ("access", "shown"),
    [
        (WorkAccess(None), (None, None)),
        (WorkAccess(None, errors=True), ("Abort", "Abort: 4711 is stolen")),
    ],
)
async def test_errors_are_shown_only_if_wanted(
    app: Treadle, access: WorkAccess, shown: tuple[Any, Any]
) -> None:
    handle = await app.enqueue(refuse("4711"))
    answer = await get(web_of(app, lambda request: access), f"/work/{handle.id}?wait=10")
    state = answer.json()
    assert (state["status"], state["reason"], state["ended"]) == ("dead", "aborted", True)
    assert (state["error_type"], state["error"]) == shown
    assert ("4711" in answer.text) == access.errors


async def test_results_need_not_be_shown(app: Treadle) -> None:
    handle = await app.enqueue(add(1, 2))
    await handle.result(PATIENCE)
    web = web_of(app, lambda request: WorkAccess(None, results=False))
    state = (await get(web, f"/work/{handle.id}")).json()
    assert (state["status"], state["result"], state["group"]["value"]) == ("success", None, None)


async def test_numbers_that_json_cannot_hold_are_texts_or_null(app: Treadle) -> None:
    handle = await app.enqueue(add(2**60, 1))
    await handle.result(PATIENCE)
    assert (await get(web_of(app), f"/work/{handle.id}")).json()["result"] == str(2**60 + 1)


# -- access --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["{id}", "{id}?wait=5", "{id}/events"])
async def test_an_item_of_another_tenant_looks_like_one_that_does_not_exist(app: Treadle, path: str) -> None:
    theirs = await app.tenant("zoo").enqueue(add(1, 2), id="theirs")
    ours = await app.tenant("acme").enqueue(add(1, 2), id="ours")
    web = web_of(app, lambda request: WorkAccess("acme"))
    assert (await get(web, "/work/" + path.format(id=ours.id))).status_code == 200
    answers = [
        await get(web, "/work/" + path.format(id=id)) for id in (theirs.id, "nothing", "no%20id", "x" * 200)
    ]
    assert {(each.status_code, each.text) for each in answers} == {
        (404, '{"detail":"there is no such work"}')
    }


async def test_a_router_of_one_tenant_shows_no_other(app: Treadle) -> None:
    await app.tenant("zoo").enqueue(add(1, 2), id="theirs")
    for tenant in (None, "acme", "zoo"):
        web = web_of(app.tenant("acme"), lambda request, tenant=tenant: WorkAccess(tenant))
        assert (await get(web, "/work/theirs")).status_code == 404


async def test_an_access_function_may_look_at_the_item(app: Treadle) -> None:
    await app.enqueue(add(1, 2), id="of-ada", headers={"user": "ada"})

    async def access(request: Request) -> WorkAccess:
        user = request.headers["x-user"]
        return WorkAccess(None, allows=lambda item: item.headers.get("user") == user)

    web = web_of(app, access)
    assert (await get(web, "/work/of-ada", x_user="ada")).status_code == 200
    assert (await get(web, "/work/of-ada", x_user="bob")).status_code == 404
    assert (await get(web, "/work/of-ada/events", x_user="bob")).status_code == 404


@pytest.mark.parametrize("path", ["/work/any", "/work/any/events"])
@pytest.mark.parametrize(
    ("answered", "status", "body"),
    [
        (None, 403, {"detail": "you have no access to this"}),
        (JSONResponse({"log": "in"}, 401), 401, {"log": "in"}),
    ],
)
async def test_no_access_is_refused_before_the_item_is_read(
    app: Treadle, path: str, answered: Response | None, status: int, body: Any
) -> None:
    answer = await get(web_of(app, lambda request: answered), path)
    assert (answer.status_code, answer.json()) == (status, body)


async def test_mistakes_are_errors_where_they_are_made(app: Treadle) -> None:
    with pytest.raises(InputError, match="access"):
        work_router(app, access=None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="app"):
        work_router(app.sync, access=everything)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tenant"):
        WorkAccess("")
    with pytest.raises(TypeError, match="must return a WorkAccess or None, and returned True"):
        await get(web_of(app, lambda request: True), "/work/any")


# -- waiting -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Backend]:
    from tests.dashboard.conftest import make_store

    return make_store(request.param, request, tmp_path)


async def test_a_wait_ends_with_the_item_that_another_process_ends(store: Callable[[], Backend]) -> None:
    """The web process has a client of its own: only a wake-up tells it."""
    async with (
        Client(store(), work=[add], poll_interval=60) as client,
        Treadle(store(), work=[add], poll_interval=0.05) as worker,
    ):
        await worker.pause("default")
        handle = await client.tenant("acme").enqueue(add(1, 2))
        web = web_of(client, lambda request: WorkAccess("acme"))
        asked = asyncio.ensure_future(get(web, f"/work/{handle.id}?wait=30"))
        await until(lambda: bool(_waiting(client)))
        assert not asked.done()
        await worker.resume("default")
        assert (await asked).json()["result"] == 3


def _waiting(client: Client) -> set[Any]:
    waiters: Waiters = core_of(client).waiters
    return {*waiters.items.futures, *waiters.groups.futures}


async def test_a_root_has_ended_when_everything_it_queued_has(app: Treadle) -> None:
    handle = await app.enqueue(fan_out("g"))
    await handle.result(PATIENCE)
    web = web_of(app)
    state = (await get(web, f"/work/{handle.id}?wait=0.01")).json()
    assert (state["status"], state["ended"], state["group"]["open"]) == ("success", False, 1)
    asked = asyncio.ensure_future(get(web, f"/work/{handle.id}?wait=30"))
    await until(lambda: bool(_waiting(app)))
    GATES["g"].set()
    state = (await asked).json()
    assert (state["ended"], state["result"], state["group"]["value"]) == (True, None, "open")


def progress_of(state: dict[str, Any]) -> tuple[Any, ...]:
    return state["outcome"], state["done"], state["total"], state["ended"]


async def test_the_outcome_is_that_of_the_whole_group(app: Treadle) -> None:
    handle = await app.enqueue(collect("g", fails=False))
    web = web_of(app)
    await handle.result(PATIENCE)
    await until(lambda: "g" in GATES)
    state = (await get(web, f"/work/{handle.id}")).json()
    assert (state["status"], *progress_of(state)) == ("success", "running", 1, 2, False)
    assert (state["group"]["value"], state["group"]["partial"]) == (None, ["first"])
    GATES["g"].set()
    state = (await get(web, f"/work/{handle.id}?wait=30")).json()
    assert progress_of(state) == ("succeeded", 2, 2, True)
    assert (state["group"]["value"], state["group"]["partial"]) == ("open", None)


@pytest.mark.parametrize("errors", [True, False])
async def test_a_group_that_failed_is_no_success(app: Treadle, errors: bool) -> None:
    handle = await app.enqueue(collect("g", fails=True))
    web = web_of(app, lambda request: WorkAccess(None, errors=errors))
    state = (await get(web, f"/work/{handle.id}?wait=30")).json()
    assert (state["status"], *progress_of(state)) == ("success", "failed", 2, 2, True)
    group = state["group"]
    assert (group["value"], group["partial"], group["failed"]) == (None, ["first"], 1)
    if not errors:
        assert group["death"] is None
        return
    assert (group["death"]["type"], group["death"]["reason"]) == ("refuse", "aborted")
    assert (group["death"]["error_type"], group["death"]["error"]) == ("Abort", "Abort: g is stolen")


async def test_an_item_alone_has_an_outcome_too(app: Treadle) -> None:
    web = web_of(app)
    for made, outcome in ((add(1, 2), "succeeded"), (refuse("1"), "failed")):
        handle: Handle[Any, Any] = await app.enqueue(made)
        assert progress_of((await get(web, f"/work/{handle.id}?wait=30")).json()) == (outcome, 1, 1, True)
    handle = await app.enqueue(add(1, 2), delay=60)
    assert progress_of((await get(web, f"/work/{handle.id}")).json()) == ("running", 0, 1, False)
    await app.cancel(handle)
    assert progress_of((await get(web, f"/work/{handle.id}")).json()) == ("cancelled", 1, 1, True)


async def test_members_are_counted_without_a_look_at_them(app: Treadle) -> None:
    backend = counting.CountingBackend(app.backend)
    handle = await app.enqueue(fan_out("g"))
    await handle.result(PATIENCE)
    async with Client(backend, work=WORK) as client:
        web = web_of(client)
        assert progress_of((await get(web, f"/work/{handle.id}")).json()) == ("running", 1, 2, False)
        GATES["g"].set()
        assert progress_of((await get(web, f"/work/{handle.id}?wait=30")).json())[1:3] == (2, 2)
        assert backend.calls["list"] == 0


async def test_a_member_of_a_group_is_awaited_alone(app: Treadle) -> None:
    root = await app.enqueue(fan_out("g"))
    await root.result(PATIENCE)
    related = await app.related(root)
    assert related is not None
    asked = asyncio.ensure_future(get(web_of(app), f"/work/{related.children[0].id}?wait=30"))
    await until(lambda: bool(_waiting(app)))
    GATES["g"].set()
    state = (await asked).json()
    assert (state["ended"], state["result"], state["group"]) == (True, "open", None)


async def test_a_wait_is_cut_to_the_longest(app: Treadle) -> None:
    handle = await app.enqueue(gated("g"))
    state = (await get(web_of(app, max_wait=0.01), f"/work/{handle.id}?wait=1e9")).json()
    assert (state["status"], state["ended"]) == ("running", False)
    assert not _waiting(app)


@pytest.mark.parametrize("wait", ["-1", "nan", "inf", "soon", ""])
async def test_a_wait_is_a_number(app: Treadle, wait: str) -> None:
    handle = await app.enqueue(add(1, 2))
    answer = await get(web_of(app), f"/work/{handle.id}?wait={wait}")
    assert (answer.status_code, answer.json()) == (400, {"detail": "wait: a number of seconds, 0 or more"})


async def test_a_wait_ends_when_the_caller_goes(app: Treadle) -> None:
    handle = await app.enqueue(gated("g"))
    asked = Exchange(web_of(app), f"/work/{handle.id}", query="wait=30")
    await until(lambda: bool(_waiting(app)))
    asked.leave()
    await asked.ended()
    assert not _waiting(app)


async def test_a_wait_and_a_stream_end_when_the_server_stops(app: Treadle) -> None:
    handle = await app.enqueue(gated("g"))
    web = web_of(app)
    asked = asyncio.ensure_future(get(web, f"/work/{handle.id}?wait=30"))
    followed = Exchange(web, f"/work/{handle.id}/events")
    assert (await followed.event())[0] == "state"
    await until(lambda: len(core_of(app).waiters.groups.futures.get(("default", handle.id), ())) == 2)
    server_stop(app).tell()
    assert (await asked).json()["ended"] is False
    assert await followed.event() == ("", None)
    await followed.ended()
    again = (await get(web, f"/work/{handle.id}?wait=30")).json()  # it does not wait any more
    assert again["status"] == "running"


async def test_an_item_that_is_deleted_meanwhile_is_gone(app: Treadle) -> None:
    await app.pause("default")
    handle = await app.enqueue(add(1, 2))
    web = web_of(app)
    asked = asyncio.ensure_future(get(web, f"/work/{handle.id}?wait=30"))
    followed = Exchange(web, f"/work/{handle.id}/events")
    assert (await followed.event())[0] == "state"
    await until(lambda: len(core_of(app).waiters.groups.futures.get(("default", handle.id), ())) == 2)
    await app.delete([handle.id])
    assert (await asked).status_code == 404
    assert await followed.event() == ("", None)


async def test_too_many_waits_are_refused(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_state, "MOST_OPEN", 1)
    handle = await app.enqueue(gated("g"))
    web = web_of(app)
    followed = Exchange(web, f"/work/{handle.id}/events")
    assert (await followed.event())[0] == "state"
    for path in ("?wait=30", "/events"):
        answer = await get(web, f"/work/{handle.id}{path}")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert (await get(web, f"/work/{handle.id}")).status_code == 200
    followed.leave()
    await followed.ended()
    assert (await get(web, f"/work/{handle.id}?wait=0.01")).status_code == 200


# -- events --------------------------------------------------------------------------------------------------


async def test_a_stream_shows_every_state_to_the_end(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_state, "LOOK_EVERY", 0.01)
    await app.pause("default")
    handle = await app.enqueue(gated("g"))
    followed = Exchange(web_of(app), f"/work/{handle.id}/events")
    started = await followed.message()
    headers = {name.decode(): value.decode() for name, value in started["headers"]}
    assert (started["status"], headers["cache-control"], headers["x-accel-buffering"]) == (
        200,
        "no-store",
        "no",
    )
    assert headers["content-type"].startswith("text/event-stream")
    name, state = await followed.event()
    assert (name, state["status"], state["attempt"]) == ("state", "ready", 0)
    await app.resume("default")
    while state["status"] != "running":
        name, state = await followed.event()
    assert (name, state["attempt"]) == ("state", 1)
    GATES["g"].set()
    while name != "end":
        name, state = await followed.event()
    assert (state["ended"], state["result"]) == (True, "open")
    assert await followed.event() == ("", None)
    await followed.ended()
    assert not _waiting(app)


async def test_a_stream_of_what_has_ended_is_one_event_and_not_repeated(app: Treadle) -> None:
    handle = await app.enqueue(add(1, 2))
    await handle.result(PATIENCE)
    answer = await get(web_of(app), f"/work/{handle.id}/events")
    assert answer.text.startswith("retry: 2000\n\nevent: end\nid: end\ndata: {")
    assert answer.text.count("event:") == 1
    again = await get(web_of(app), f"/work/{handle.id}/events", last_event_id="end")
    assert (again.status_code, again.text) == (204, "")  # a browser stops asking


async def test_a_stream_ends_when_the_caller_goes(app: Treadle) -> None:
    handle = await app.enqueue(gated("g"))
    followed = Exchange(web_of(app), f"/work/{handle.id}/events")
    assert (await followed.event())[0] == "state"
    await until(lambda: bool(_waiting(app)))
    followed.leave()
    await followed.ended()
    assert not _waiting(app)


async def test_a_stream_ends_after_its_time_and_is_never_quiet(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LOOK_EVERY", 0.005), ("QUIET", 0.0), ("STREAM_SECONDS", 0.1)):
        monkeypatch.setattr(work_state, name, value)
    handle = await app.enqueue(gated("g"))
    answer = await get(web_of(app), f"/work/{handle.id}/events")
    assert ": still there\n\n" in answer.text
    assert "event: end" not in answer.text


class CountingBackend(MemoryBackend):
    """Counts the reads of items."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    async def get(self, ids: Any, *, tenant: str | None = None) -> Any:
        self.reads.append(len(ids))
        return await super().get(ids, tenant=tenant)


async def test_streams_share_their_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_state, "LOOK_EVERY", 0.1)
    store = CountingBackend()
    async with Client(store, work=WORK) as client:
        handles = [await client.enqueue(add(1, each)) for each in range(50)]
        web = web_of(client)
        followed = [Exchange(web, f"/work/{handle.id}/events") for handle in handles]
        for each in followed:
            assert (await each.event())[0] == "state"
        store.reads.clear()
        await until(lambda: 50 in store.reads)
        assert max(store.reads) == 50
        for each in followed:
            each.leave()
            await each.ended()


async def test_a_head_request_does_not_wait(app: Treadle) -> None:
    handle = await app.enqueue(gated("g"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(web_of(app)), base_url="http://a") as caller:
        for path in (f"/work/{handle.id}?wait=30", f"/work/{handle.id}/events"):
            async with asyncio.timeout(PATIENCE):
                assert (await caller.head(path)).status_code == 200
