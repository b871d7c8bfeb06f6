"""Who may not, may not: every route, every kind of visitor that has to be refused.

The routes are those of the app, so that none can be forgotten. A new route needs a line in `FILLED`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Route

from tests.dashboard.conftest import AS_JSON, FROM_HERE, HOST
from tests.dashboard.filled import MARKER, SECRET, WORK, fill
from treadle import Treadle
from treadle.dashboard import ACTIONS, Access, dashboard
from treadle.dashboard.app import ACTION_ROUTES, HEADERS

FORM = {
    "reason": "because",
    "confirmed": "1",
    "value": "1",
    "input": "{}",
    "priority": "5",
    "open": "1",
    "input.to": "x",
    "scheme": "dark",
}
FILLED = {"id": "late", "queue": "mails", "name": "nightly", "type": "mail.send", "verb": "cancel"}
"""What stands for the parts of paths."""
QUERIES = {"/act/{verb}": {"id": "late"}}
SETTINGS = ("/settings",)
"""What every visitor may do: how pages look."""


def routes(web: Starlette, method: str) -> Iterator[str]:
    """The addresses of all routes, with something that exists in place of names."""
    for route in web.routes:
        if isinstance(route, Route) and method in (route.methods or ()):
            path = route.path.replace("{rest:path}", "nothing/there")
            yield path.format(**FILLED)


@pytest.fixture
async def app(memory_store: Any, make_app: Any, monkeypatch: pytest.MonkeyPatch) -> Treadle:
    """A store of which every page has something to show, and MARKER in each payload."""
    app: Treadle = make_app(memory_store, *WORK)
    monkeypatch.setitem(FILLED, "mark", await fill(app))
    return app


def web_of(app: Treadle, access: Any) -> Starlette:
    return dashboard(app, access=access)


def client(web: Starlette, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    sent = FROM_HERE if headers is None else headers
    return httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url=HOST, headers=sent)


async def everything(app: Treadle) -> list[Any]:
    """All that an action could change."""
    return [
        (await app.list(limit=1000)).items,
        await app.orders(),
        await app.backend.schedules(),
        await app.bulk.list(),
        [entry for entry in (await app.audits()).entries if entry.count],
        (await app.backend.overview()).workers,
    ]


async def refused(
    app: Treadle,
    access: Any,
    statuses: tuple[int, ...],
    headers: dict[str, str] | None = None,
    also: tuple[str, ...] = (),
) -> None:
    """Every POST is refused, and changes nothing."""
    web = web_of(app, access)
    before = await everything(app)
    async with client(web, headers) as visitor:
        for path in routes(web, "POST"):
            if path in SETTINGS and path not in also:
                continue
            for accept in ({}, AS_JSON):
                data = {**FORM, **({"id": "late a"} if path.startswith("/act/") else {})}
                answer = await visitor.post(path, data=data, headers=accept)
                assert answer.status_code in statuses, (path, answer.status_code, answer.text)
                check_headers(answer)
    assert await everything(app) == before


def check_headers(answer: httpx.Response) -> None:
    for name, value in HEADERS.items():
        assert answer.headers.get(name) == value, (answer.url, name)


def visitor_who(
    can: Any, *, tenants: list[str] | None = None, payloads: bool = True
) -> Callable[[Request], Access]:
    """The access function of a dashboard for one visitor."""
    return lambda request: Access(actor="ann", can=can, tenants=tenants, payloads=payloads)


everyone = visitor_who("all")


async def test_the_form_would_change_something(app: Treadle) -> None:
    """The other tests prove something only if these requests are good."""
    web = web_of(app, everyone)
    worked: list[str] = []
    async with client(web) as visitor:
        for path in (
            "/items/late/update?of=a",
            "/queues/mails/pause",
            "/act/cancel",
            "/types/mail.send/enqueue",
        ):
            data = {**FORM, **({"id": "late a"} if path.startswith("/act/") else {})}
            answer = await visitor.post(path, data=data)
            worked += [path] if answer.status_code == 303 else [answer.text]
    assert worked == [
        "/items/late/update?of=a",
        "/queues/mails/pause",
        "/act/cancel",
        "/types/mail.send/enqueue",
    ]


async def test_readers_change_nothing(app: Treadle) -> None:
    await refused(app, visitor_who("read"), (403, 404))
    await refused(app, visitor_who(()), (403, 404))


async def test_every_single_permission_allows_its_own_routes_only(app: Treadle) -> None:
    for allowed in ACTIONS:
        web = web_of(app, visitor_who({allowed}))
        async with client(web) as visitor:
            for route in ACTION_ROUTES:
                needs = FILLED["verb"] if route.action is None else route.action
                path = route.path.format(**{**FILLED, "id": "unknown"})
                answer = await visitor.request(route.method, path, params=QUERIES.get(route.path))
                assert (answer.status_code == 403) == (needs != allowed), (allowed, route.name)


async def test_another_tenant_is_not_touched_and_looks_unknown(app: Treadle) -> None:
    web = web_of(app, visitor_who("all", tenants=["b"]))
    before = await everything(app)
    async with client(web) as visitor:
        for route in ACTION_ROUTES:
            if "{id}" in route.path or "{verb}" in route.path:
                for params in ({}, {"of": "a"}, {"tenant": "a"}):
                    answers = [
                        await visitor.request(
                            route.method,
                            route.path.format(**{**FILLED, "id": id}),
                            params={**params, "id": f"{id} a"},
                            data={**FORM, **params, "id": f"{id} a"} if route.method == "POST" else None,
                        )
                        for id in ("late", "none")
                    ]
                    assert [each.status_code for each in answers] == [404, 404], (route.name, params)
                    assert answers[0].text.replace("late", "none") == answers[1].text, route.name
        for path in ("/schedules/nightly/pause", "/schedules/nightly/cancel", "/schedules/nightly/trigger"):
            assert (await visitor.post(path, data=FORM)).status_code == 404
        for typed in ({"tenant": "a"}, {"tenant": "treadle.operators"}):
            answer = await visitor.post("/types/mail.send/enqueue", data={**FORM, **typed})
            assert answer.status_code in (400, 404)
        answer = await visitor.post("/act/cancel", data={"q": "tenant:a", "confirmed": "1", "reason": "x"})
        assert answer.status_code == 404
    assert await everything(app) == before


OTHER_SITES: list[dict[str, str]] = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "same-site", "origin": "http://dashboard.example"},
    {"origin": "http://evil.example"},
    {"origin": "http://dashboard.example.evil.example"},
    {"origin": "null"},
    {},
    {"authorization": "Basic YTpi"},
]


@pytest.mark.parametrize("headers", OTHER_SITES, ids=str)
async def test_pages_of_other_sites_change_nothing(app: Treadle, headers: dict[str, str]) -> None:
    await refused(app, everyone, (403,), headers, also=SETTINGS)


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "none"},
        {"origin": HOST},
        {"authorization": "Bearer token"},
        {"sec-fetch-site": "cross-site", "origin": "https://admin.example"},
    ],
    ids=str,
)
async def test_own_pages_programs_and_allowed_origins_may_act(app: Treadle, headers: dict[str, str]) -> None:
    web = dashboard(app, access=everyone, origins=["https://admin.example"])
    async with client(web, headers) as visitor:
        assert (await visitor.post("/queues/mails/pause")).status_code == 303


def raises(request: object) -> Access:
    raise RuntimeError(f"secret {MARKER}")


async def raises_later(request: object) -> Access:
    raise RuntimeError(f"secret {MARKER}")


async def nobody(request: object) -> None:
    return None


NO_ACCESS: list[tuple[Callable[[Any], Any], int]] = [
    (lambda request: None, 403),
    (nobody, 403),
    (lambda request: RedirectResponse("https://login.example/"), 307),
    (raises, 500),
    (raises_later, 500),
    (lambda request: True, 500),
    (lambda request: "all", 500),
    (lambda request: Access(actor="", can="all"), 500),
    (lambda request: Access(actor="bob", can="everything"), 500),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("access", "status"), NO_ACCESS)
async def test_without_access_there_is_nothing_to_see_or_do(
    app: Treadle, access: Callable[[Any], Awaitable[Any]], status: int
) -> None:
    await refused(app, access, (status,), also=SETTINGS)
    web = web_of(app, access)
    async with client(web) as visitor:
        for path in routes(web, "GET"):
            if path.startswith("/static/"):
                continue  # assets hold nothing of the store
            answer = await visitor.get(path)
            assert answer.status_code == status, path
            assert MARKER not in answer.text
            check_headers(answer)


async def test_async_access_is_awaited(app: Treadle) -> None:
    async def access(request: object) -> Access:
        return Access(actor="ann", can="all")

    async with client(web_of(app, access)) as visitor:
        assert (await visitor.get("/audit")).status_code == 200


async def test_no_get_changes_anything_and_all_answers_have_the_headers(app: Treadle) -> None:
    web = web_of(app, everyone)
    before = await everything(app)
    async with client(web, {"sec-fetch-site": "cross-site", "x-http-method-override": "POST"}) as visitor:
        for path in routes(web, "GET"):
            if path in ("/live",):
                continue  # it has no end
            for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"):
                for accept in ({}, AS_JSON):
                    params = {"of": "a", **FORM, "id": "late a", "_method": "POST"}
                    answer = await visitor.request(method, path, params=params, headers=accept)
                    assert answer.status_code < 500, (method, path, answer.text)
                    if answer.status_code == 200 and path.startswith("/static/"):
                        assert answer.headers["x-content-type-options"] == "nosniff"
                    else:
                        check_headers(answer)
    assert await everything(app) == before


async def test_hidden_payloads_are_on_no_page(app: Treadle) -> None:
    web = web_of(app, visitor_who("all", payloads=False))
    open_web = web_of(app, everyone)
    shown = 0
    async with client(web) as visitor, client(open_web) as other:
        for template in routes(web, "GET"):
            if template == "/live":
                continue
            for id in ("late", "dead", "done", "read") if "late" in template else ("late",):
                path = template.replace("late", id)
                for accept in ({}, AS_JSON, {"x-fragment": "main"}):
                    answer = await visitor.get(path, params={"of": "a"}, headers=accept)
                    assert MARKER not in answer.text, path
                    shown += MARKER in (await other.get(path, params={"of": "a"}, headers=accept)).text
        for path in ("/items/dead/edit", "/items/dead/edit?of=a"):
            answer = await visitor.post(path, data={"input": '{"to": 1}'})
            assert MARKER not in answer.text
            assert answer.status_code in (403, 404)
    assert shown


async def test_secrets_are_on_no_page(app: Treadle) -> None:
    web = dashboard(app, access=everyone, mask=["subject"])
    async with client(web) as visitor:
        for template in routes(web, "GET"):
            if template == "/live":
                continue
            for id in ("late", "dead", "paid", "read") if "late" in template else ("late",):
                for accept in ({}, AS_JSON):
                    params = {"of": "a", "id": f"{id} a"}
                    answer = await visitor.get(template.replace("late", id), params=params, headers=accept)
                    assert SECRET not in answer.text, answer.url


async def test_visitors_do_not_get_what_was_read_for_others(app: Treadle) -> None:
    """What pages read is kept for a second, and shared by those who see the same."""

    def access(request: Request) -> Access:
        name = request.headers["x-name"]
        tenants = {"b": ["b"], "a": ["a"]}.get(name)
        return Access(
            actor=name, can="all" if name == "ann" else "read", tenants=tenants, payloads=name != "eve"
        )

    web, seen = web_of(app, access), 0
    async with client(web) as visitor:
        for path in routes(web, "GET"):
            if path == "/live" or path.startswith("/static/"):
                continue
            answers: dict[str, httpx.Response] = {}
            for name in ("ann", "eve", "b", "a", "bob"):
                headers = {**FROM_HERE, "x-name": name}
                answers[name] = await visitor.get(
                    path, params={"of": "a"} if name != "b" else {}, headers=headers
                )
            assert MARKER not in answers["eve"].text, path
            assert MARKER not in answers["b"].text, path
            assert "paid" not in answers["b"].text, path
            seen += "paid" in answers["ann"].text
            assert ">ann<" not in answers["bob"].text, path
    assert seen


async def test_portions_of_bulk_actions_are_no_items_to_act_on(app: Treadle) -> None:
    """A visitor who may requeue, and not delete, could run a deletion again."""
    action = await app.by("ann").bulk.start("delete", status="dead")
    web = web_of(app, visitor_who({"requeue", "cancel", "complete", "edit"}))
    async with client(web) as visitor:
        for verb in ("requeue", "cancel", "complete", "edit"):
            answer = await visitor.post(f"/items/{action.id}/{verb}", data=FORM)
            assert answer.status_code == 409, verb
        answer = await visitor.post("/act/cancel", data={"id": action.id, "confirmed": "1"})
        assert answer.status_code == 409
        assert (await visitor.post(f"/bulk/{action.id}/stop")).status_code == 403


async def test_large_and_broken_forms_are_refused(app: Treadle) -> None:
    async with client(web_of(app, everyone)) as visitor:
        for content, kind in (
            (b"reason=" + b"x" * 1_100_000, "application/x-www-form-urlencoded"),
            (b"&".join(b"a=1" for _ in range(6000)), "application/x-www-form-urlencoded"),
            (b"reason=%ff", "application/x-www-form-urlencoded"),
            (b"\xff", "application/x-www-form-urlencoded"),
            (b"[1]", "application/json"),
            (b"[" * 100_000, "application/json"),
        ):
            answer = await visitor.post(
                "/queues/mails/pause", content=content, headers={"content-type": kind}
            )
            assert answer.status_code == 400, content[:20]
    assert not await app.orders()


async def test_a_visitor_of_two_tenants_acts_in_the_one_that_is_shown(app: Treadle) -> None:
    of_both = web_of(app, visitor_who("all", tenants=["a", "b"]))
    async with client(of_both) as visitor:
        assert (await visitor.post("/items/late/cancel?tenant=b")).status_code == 404
        answer = await visitor.post("/items/late/cancel?tenant=a")
        assert answer.headers["location"] == "/items/late?tenant=a&done=cancel.1"
        await visitor.post("/queues/mails/pause?tenant=b")
        await visitor.post("/types/mail.send/enqueue?tenant=b", data={"input.to": "x"})
    assert {(each.queue, each.tenant) for each in await app.orders()} == {("mails", "b")}
    assert [each.tenant for each in (await app.list("ready")).items] == ["b"]


async def test_deep_nesting_is_refused(app: Treadle) -> None:
    deep = '{"to": ' + "[" * 900 + "]" * 900 + "}"
    async with client(web_of(app, everyone)) as visitor:
        for path, form in (
            ("/items/dead/edit?of=a", {"input": deep}),
            ("/items/late/complete?of=a", {"value": deep, "reason": "x"}),
            (
                "/types/report.make/enqueue",
                {"input.day": "2030-01-31", "input.pages": "1", "input.tags": deep},
            ),
        ):
            assert (await visitor.post(path, data=form)).status_code == 400
