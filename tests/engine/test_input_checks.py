"""What a caller may give: filters, names, tenants, and how much in one step."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, MakeApp, failure
from treadle import (
    Client,
    Context,
    InputError,
    NotFound,
    PayloadTooLarge,
    Result,
    Treadle,
    Worker,
    at_least,
    dependency,
    work,
)
from treadle.errors import UnknownWorkError

memory_only = pytest.mark.parametrize("store", ["memory"], indirect=True)  # the store is not involved


@work(name="keep")
async def keep(text: str) -> int:
    return len(text)


def test_a_bound_client_cannot_be_bound_to_another_tenant() -> None:
    for bound in (Client(tenant="acme"), Client().tenant("acme"), Treadle(tenant="acme")):
        assert bound.tenant("acme") is bound
        with pytest.raises(InputError, match="tenant='zoo' is refused: this client is bound to 'acme'"):
            bound.tenant("zoo")
        with pytest.raises(InputError, match="tenant=None must be a str"):
            bound.tenant(None)  # type: ignore[arg-type]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"status": "done"}, "status='done' does not exist: it is one of blocked, scheduled, ready, running"),
    ({"status": ["dead", "Ready"]}, "status='Ready' does not exist"),
    ({"status": 0.0}, "status=0.0 must be a status, or a list"),
    ({"status": False}, "status=False must be a status, or a list"),
    ({"status": 5}, "status=5 must be a status, or a list"),
    ({"status": b""}, "status=b'' must be a status, or a list"),
    ({"status": ""}, "status='' does not exist"),
    ({"mark": 0.0}, "mark=0.0 must be a str"),
    ({"mark": []}, r"mark=\[\] must be a str"),
    ({"mark": b""}, "mark=b'' must be a str"),
    ({"reason": ""}, "reason='' does not exist"),
    ({"reason": "tired"}, "reason='tired' does not exist: it is one of exhausted, aborted"),
    ({"limit": 0}, "limit=0 must be a whole number"),
    ({"limit": "9"}, "limit='9' must be a whole number"),
    ({"cursor": "zzz"}, "cursor='zzz' is not"),
    ({"cursor": 7}, "cursor=7 must be a str"),
    ({"oldest_first": "asc"}, "oldest_first='asc' must be True or False"),
    ({"queue": "a\u202eb"}, "queue=.*invisible"),
    ({"type": ""}, "type='' must not be empty"),
    ({"tenant": 1}, "tenant=1 must be a str"),
    ({"workflow": "a\nb"}, "workflow=.*control"),
    ({"key": "\x00"}, "key=.*control"),
    ({"group_id": "two words"}, "group_id='two words' must be"),
    ({"since": "yesterday"}, "since"),
]


@memory_only
@pytest.mark.parametrize(("where", "message"), WRONG, ids=[next(iter(where)) for where, _ in WRONG])
async def test_an_unknown_filter_value_is_refused(
    make_app: MakeApp, where: dict[str, Any], message: str
) -> None:
    """It found nothing, or failed in the store."""
    app = make_app(keep)
    with pytest.raises(InputError, match=message):
        await app.list(**where)
    if "status" not in where:
        with pytest.raises(InputError, match=message):
            await app.dead.list(**where)
    if not where.keys() & {"status", "limit", "cursor", "oldest_first"}:
        with pytest.raises(InputError, match=message):
            await app.dead.requeue(**where)


async def test_a_misspelt_filter_of_dead_items_is_named(make_app: MakeApp) -> None:
    """Also beside ids."""
    dead = make_app(keep).dead
    for verb in (dead.list, dead.requeue, dead.delete):
        with pytest.raises(
            TypeError, match=rf"dead.{verb.__name__} has no option 'relase': did you mean 'rel"
        ):
            await verb(relase="v2")
    with pytest.raises(TypeError, match="has no option 'tpye': did you mean 'type'"):
        await dead.requeue(["a"], tpye="mail.send")


async def test_every_status_and_reason_can_be_asked_for(make_app: MakeApp) -> None:
    app = make_app(keep)
    with pytest.raises(InputError, match="cursor='zzz' is not"):
        await app.list(cursor="zzz")
    assert (await app.list(["blocked", "scheduled", "ready", "running", "success"])).items == ()
    assert (await app.dead.list(reason="bad_result")).items == ()


@memory_only
async def test_names_are_checked_wherever_they_are_given(make_app: MakeApp) -> None:
    app = make_app(keep)
    for name in ("", "a\u2028b"):
        with pytest.raises(InputError, match="queue="):
            await app.pause(name)
        with pytest.raises(InputError, match="queue="):
            await app.resume(name)
        with pytest.raises(InputError, match="workflow="):
            await app.workflow(name)
        with pytest.raises(InputError, match="queues="):
            await app.claim_one(queues=[name])
        with pytest.raises(InputError, match="types="):
            Worker(app, types=[name])
        with pytest.raises(InputError, match="key="):
            await app.enqueue(keep("a"), key=name)


NO_IDS: list[Any] = ["", "a\0b", "\ud800", "a\n", "x" * 129, 5, None, b"a", b"", 1.5]


@memory_only
@pytest.mark.parametrize("id", NO_IDS, ids=ascii)
async def test_ids_are_checked_wherever_they_are_given(make_app: MakeApp, id: Any) -> None:
    app = make_app(keep)
    for client in (app, app.tenant("acme")):
        with pytest.raises(InputError, match="id="):
            client.handle(id)
        for verb in (client.get, client.cancel, client.requeue, client.trigger, client.delete):
            for given in (id, [id], ["fine", id]):
                with pytest.raises(InputError, match="id="):
                    await verb(given)
        for verb in (client.group, client.complete, client.dead.delete, client.dead.requeue):
            with pytest.raises(InputError, match="id="):
                await verb([id] if id is None else id)
    for call in (app.sync.get, app.sync.cancel, app.sync.handle):
        with pytest.raises(InputError, match="id="):
            await asyncio.to_thread(call, id)


@memory_only
@pytest.mark.parametrize("names", ["mail", b"", 0.0])
async def test_limits_are_named_in_a_list(make_app: MakeApp, names: Any) -> None:
    with pytest.raises(TypeError, match="names takes a list"):
        await make_app(keep).limits(names)


@memory_only
@pytest.mark.parametrize("id", [*NO_IDS, [], ["a"], ["a", "b"]], ids=ascii)
async def test_verbs_for_one_id_take_one_id(make_app: MakeApp, id: Any) -> None:
    app = make_app(keep)
    for client in (app, app.tenant("acme")):
        for verb in (client.why, client.related, client.group, client.complete, client.repair):
            with pytest.raises(InputError, match="id="):
                await verb(id)


@memory_only
@pytest.mark.parametrize("id", NO_IDS, ids=ascii)
async def test_ids_are_checked_in_a_handler(make_app: MakeApp, id: Any) -> None:
    @work(name="asks")
    async def asks(ctx: Context) -> list[str]:
        problems: list[str] = []
        for call in (ctx.states([id]), ctx.results([id])):
            try:
                await call
            except InputError as error:
                problems.append(error.parameters[0])
        return problems

    async with make_app(asks) as app:
        assert await app.enqueue(asks()).result(PATIENCE) == ["id", "id"]


@memory_only
async def test_one_id_is_not_read_as_many(make_app: MakeApp) -> None:
    app = make_app(keep)
    handle = await app.enqueue(keep("a"))
    (state,) = await app.get(handle.id)
    assert state is not None
    for given in (handle.id, handle, [handle], (state for _ in range(1))):
        assert [each.id for each in await app.get(given) if each] == [handle.id]


@pytest.mark.parametrize("where", ["type", "enqueue", "options"])
async def test_the_empty_lane_can_be_named(make_app: MakeApp, where: str) -> None:
    """It is the lane of items without one. So one option can undo another."""
    lane = {"lane": ""}

    @work(
        name="lanes",
        **(lane if where == "type" else {}),
        options=lambda _: lane if where == "options" else None,
    )  # type: ignore[call-overload]
    async def lanes() -> str:
        return "ran"

    async with make_app(lanes) as app:
        handle = await app.enqueue(lanes(), **(lane if where == "enqueue" else {}))
        assert await handle.result(PATIENCE) == "ran"
        assert (await handle.state()).lane == ""


# ------------------------------------------------------------------------------------------ total sizes


async def test_enqueue_many_has_a_limit_in_all(make_app: MakeApp) -> None:
    """Each input is small enough. Together they are not. Nothing is stored."""
    app = make_app(keep, max_submission=1000)
    with pytest.raises(
        PayloadTooLarge, match=r"enqueue_many of 11 works takes 1210 bytes.*in portions"
    ) as caught:
        await app.enqueue_many([keep("x" * 99) for _ in range(11)])
    assert (caught.value.size, caught.value.limit) == (1210, 1000)
    assert (await app.list()).items == ()
    assert len(await app.enqueue_many([keep("x" * 99) for _ in range(8)])) == 8
    assert await app.enqueue(keep("x" * 2000)), "a single item has only its own limit"


@memory_only
async def test_the_children_of_one_result_have_the_same_limit(make_app: MakeApp, sound: None) -> None:
    @work(name="fan")
    async def fan(ctx: Context, count: int) -> Result[None, int]:
        return ctx.queue([keep("x" * 99) for _ in range(count)])

    async with make_app(fan, keep, max_submission=1000) as app:
        died = await failure(app.enqueue(fan(11)).result(PATIENCE))
        assert (died.reason, died.attempts, died.error_type) == ("bad_result", 1, "PayloadTooLarge")
        assert "what 'fan' queued takes" in died.error
        assert await app.enqueue(fan(8)).group(PATIENCE) == 99


@pytest.mark.parametrize("name", ["max_payload", "max_submission"])
@pytest.mark.parametrize("value", [0, -1, "1", 1.5, True])
def test_limits_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{name}=.* must be a whole number of bytes"):
        Client(**{name: value})  # type: ignore[arg-type]


# --------------------------------------------------------------------------------- mistakes that ran nothing


@work(name="keep two")
async def keep_two(ctx: Context, text: str, times: int = 2) -> int:
    return len(text) * times


@memory_only
@pytest.mark.parametrize(
    "types", [["keeep"], [keep_two], [keep, "keep  two"]], ids=["typo", "unregistered", "one"]
)
async def test_a_worker_of_types_that_the_client_does_not_know_does_not_start(
    make_app: MakeApp, types: Any
) -> None:
    worker = Worker(make_app(keep), types=types)
    with pytest.raises(UnknownWorkError, match=r"did you mean 'keep'|register it with app.register"):
        await worker.start()


@memory_only
async def test_a_worker_may_be_made_before_its_types_are_registered(make_app: MakeApp) -> None:
    app = make_app()
    worker = Worker(app, types=["keep"])
    app.register(keep)
    async with worker:
        assert await app.enqueue(keep("abc")).result(PATIENCE) == 3


@memory_only
@pytest.mark.parametrize(
    "run", [keep, keep_two, lambda text: keep(text + "b")], ids=["type", "context", "function"]
)
def test_a_schedule_whose_run_needs_arguments_is_refused(make_app: MakeApp, run: Any) -> None:
    with pytest.raises(
        InputError, match=r"run=.* is called without arguments, and needs text: use run=lambda"
    ):
        make_app(keep).schedule("keeping", every=5, run=run)


@memory_only
def test_a_schedule_takes_what_can_be_called_without_arguments(make_app: MakeApp) -> None:
    @work(name="default")
    async def default(ctx: Context, text: str = "a", *args: int, **more: int) -> None: ...

    for run in (default, lambda: keep("a"), functools.partial(keep, "a"), lambda *args: keep("a")):
        make_app(keep).schedule("keeping", every=5, run=run)


@memory_only
@pytest.mark.parametrize("options", [{}, {"after": []}], ids=str)
async def test_at_least_without_items_to_wait_for_is_refused(
    make_app: MakeApp, options: dict[str, Any]
) -> None:
    app = make_app(keep)
    with pytest.raises(InputError, match=r"when=AtLeast.* needs after=: there is nothing to wait for"):
        await app.enqueue(keep("a"), when=at_least(2), **options)
    with pytest.raises(InputError, match="needs after="):
        await app.enqueue(dependency(on=[], queue=keep("a"), when=at_least(1)))
    assert (await app.list()).items == ()


@memory_only
def test_an_item_that_expires_at_once_is_refused(make_app: MakeApp) -> None:
    for options in ({"expires_in": 0}, {"expires_in": timedelta()}):
        with pytest.raises(InputError, match=r"expires_in=.* must be more than zero"):
            make_app(keep).enqueue(keep("a"), **options)


# --------------------------------------------------------------------------------------- what a mistake hears


async def plain_middleware(ctx: Context, call_next: Any) -> Any:
    return await call_next()


async def plain_lifespan() -> None: ...


async def bare_lifespan() -> AsyncGenerator[None]:
    yield


ALONE: list[tuple[Callable[[], object], str]] = [
    (lambda: Treadle(work=keep), r"work takes a list, as in work=\[add\], not <WorkType keep>"),  # type: ignore[arg-type]
    (lambda: Treadle(work="keep"), "work takes a list"),  # type: ignore[arg-type]
    (lambda: Treadle(work=pytest), "work takes a list"),  # type: ignore[arg-type]
    (lambda: Treadle(middleware=plain_middleware), "middleware takes a list"),  # type: ignore[arg-type]
    (lambda: Treadle(queues="mail"), r"queues takes a list, as in queues=\['mail'\]"),
    (lambda: Treadle(queues=5), "queues takes a list"),  # type: ignore[arg-type]
    (lambda: Worker(Client(), types=keep), "types takes a list"),  # type: ignore[arg-type]
    (lambda: Worker(Client(), types="keep"), r"types takes a list, as in types=\[keep\]"),
    (lambda: Worker(Client(), types=[5]), "types=5 must be a str"),  # type: ignore[list-item]
    (lambda: Treadle(lifespan=plain_lifespan), "decorate it with @asynccontextmanager"),  # type: ignore[arg-type]
    (lambda: Treadle(lifespan=bare_lifespan), "decorate it with @asynccontextmanager"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "message"), ALONE, ids=[message for _, message in ALONE])
def test_an_argument_of_the_wrong_form_says_what_is_wanted(make: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, InputError), match=message):
        make()


def test_a_context_that_does_not_come_first_is_refused_at_definition() -> None:
    with pytest.raises(TypeError, match="takes its Context as 'ctx': it must come first"):

        @work
        async def late(text: str, ctx: Context) -> None: ...


def test_a_method_is_refused_at_definition() -> None:
    with pytest.raises(TypeError, match=r"Shop.sell is a method, and a call has no 'self'"):

        class Shop:
            @work
            async def sell(self, text: str) -> None: ...


def test_a_static_method_is_no_method() -> None:
    class Shop:
        @staticmethod
        @work
        async def sell(text: str) -> None: ...

    assert Shop.sell("a").input == {"text": "a"}


@memory_only
@pytest.mark.parametrize("many", [list, tuple])
async def test_a_handler_that_returns_works_hears_of_ctx_queue(make_app: MakeApp, many: Any) -> None:
    @work(name="listing")
    async def listing() -> Any:
        return many([keep("a"), keep("b")])

    async with make_app(listing, keep) as app:
        died = await failure(app.enqueue(listing()).result(PATIENCE))
        assert died.reason == "bad_result"
        assert "return ctx.queue(*works) instead" in str(died)


@memory_only
async def test_a_forgotten_await_is_named(make_app: MakeApp) -> None:
    app = make_app(keep)
    call: Any = app.enqueue(keep("a"))
    with pytest.raises(AttributeError, match=r"'id': nothing is submitted yet; `handle = await app.enqueue"):
        _ = call.id
    with pytest.raises(AttributeError, match=r"'ident'$"):
        _ = call.ident
    with pytest.raises(InputError, match=r"id=<enqueue of .*, not awaited> must be a str"):
        await app.get(call)
    await call


@memory_only
async def test_a_handle_of_another_tenant_is_not_found(make_app: MakeApp) -> None:
    app = make_app(keep)
    handle = await app.tenant("acme").enqueue(keep("a"))
    with pytest.raises(NotFound, match="or is another tenant's"):
        await app.tenant("zoo").enqueue(keep("b"), after=handle)


@memory_only
async def test_an_app_that_app_sync_uses_says_how_to_end_that(make_app: MakeApp) -> None:
    app = make_app(keep)
    await asyncio.to_thread(app.sync.get, "none")
    with pytest.raises(RuntimeError, match=r"app.sync.close\(\)"):
        await app.get("none")
    await asyncio.to_thread(app.sync.close)
    assert await app.get("none") == [None]
