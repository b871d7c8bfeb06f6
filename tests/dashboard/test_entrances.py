"""What comes before a page: the server, the link, the origin, the form, the stream of events."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Message

from tests.dashboard.conftest import FROM_HERE
from tests.dashboard.jobs import send
from treadle import Treadle
from treadle.cli.web import server_config
from treadle.dashboard import Access, dashboard, live
from treadle.dashboard.access import LinkAccess
from treadle.operate.server_stop import server_stop


def ann(request: Request) -> Access:
    return Access(actor="ann", can="all")


@pytest.fixture
def app(memory_store: Any, make_app: Any) -> Treadle:
    made: Treadle = make_app(memory_store, send)
    return made


def browser(web: Any, host: str = "http://127.0.0.1:8400") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(web, client=("127.0.0.1", 5000))
    return httpx.AsyncClient(transport=transport, base_url=host)


@pytest.mark.parametrize(("believed", "address"), [(False, "127.0.0.1"), (True, "1.2.3.4")])
async def test_the_address_in_the_audit_is_the_visitors_unless_a_proxy_is_believed(
    app: Treadle, believed: bool, address: str
) -> None:
    config = server_config(dashboard(app, access=ann), proxy_headers=believed)
    config.load()
    async with browser(config.loaded_app) as visitor:
        answer = await visitor.post("/queues/a/pause", headers={**FROM_HERE, "x-forwarded-for": "1.2.3.4"})
    assert answer.status_code == 303
    assert [each.address for each in (await app.audits()).entries] == [address]


@pytest.mark.parametrize(
    ("served", "origin", "status"),
    [
        ("http", "http://board.example", 303),
        ("https", "https://board.example", 303),
        ("http", "https://board.example", 303),  # behind a proxy that speaks TLS to browsers
        ("https", "http://board.example", 403),
        ("http", "ftp://board.example", 403),
    ],
)
async def test_an_origin_has_the_scheme_of_the_dashboard(
    app: Treadle, served: str, origin: str, status: int
) -> None:
    async with browser(dashboard(app, access=ann), f"{served}://board.example") as visitor:
        answer = await visitor.post("/queues/a/pause", headers={"origin": origin})
    assert answer.status_code == status


async def test_the_type_of_a_form_may_be_written_in_capitals(app: Treadle) -> None:
    async with browser(dashboard(app, access=ann)) as visitor:
        answer = await visitor.post(
            "/queues/a/pause",
            content=b'{"reason": "flood"}',
            headers={**FROM_HERE, "content-type": "APPLICATION/JSON"},
        )
    assert answer.status_code == 303
    assert [each.reason for each in (await app.audits()).entries] == ["flood"]


async def test_a_link_lets_in_one_browser_and_drops_no_change_of_it(app: Treadle) -> None:
    link = LinkAccess("ann@here")
    web = dashboard(app, access=link)
    address = link.link("/")
    async with browser(web) as first, browser(web) as second:
        for method in ("HEAD", "POST"):  # they do not use it up
            assert (await second.request(method, address, headers=FROM_HERE)).status_code == 403
        answer = await first.get(address)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert list(answer.cookies) == ["treadle_visitor_8400"]  # cookies are shared by all ports
        assert (await first.get("/queues")).status_code == 200
        assert (await second.get(address)).status_code == 403
        answer = await first.post(f"/queues/a/pause{address[1:]}", headers=FROM_HERE)
        assert answer.status_code == 303
    assert (await app.backend.orders()).orders


async def test_a_stream_of_events_ends_with_the_access(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASK_EVERY", "LOOK_EVERY", "DEBOUNCE"):
        monkeypatch.setattr(live, name, 0.0)
    answers = [ann, ann, ann]

    def access(request: Request) -> Access | None:
        return answers.pop()(request) if answers else None

    async with browser(dashboard(app, access=access)) as visitor, asyncio.timeout(10):
        answer = await visitor.get("/live")  # the first answer lets in
    assert answer.text.count("event: changed") == 2


async def test_one_visitor_does_not_take_all_streams(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_OF_ACTOR", 1)
    pages = live.Live(app.backend, server_stop(app))
    request = Request({"type": "http", "method": "GET", "headers": []})

    async def allowed() -> bool:
        return True

    async def gone(message: Message) -> None:
        raise OSError("the visitor is gone")

    opened, refused = await asyncio.gather(*(pages.serve(request, "ann", allowed) for _ in range(2)))
    assert isinstance(opened, StreamingResponse)
    assert refused.status_code == 204  # though the first has sent nothing yet
    assert (await pages.serve(request, "bob", allowed)).status_code == 200
    with pytest.raises(ClientDisconnect):
        await opened({"type": "http", "asgi": {"spec_version": "2.4"}}, request.receive, gone)
    assert (await pages.serve(request, "ann", allowed)).status_code == 200
