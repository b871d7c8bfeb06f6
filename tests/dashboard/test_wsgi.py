"""The dashboard as a WSGI app: plain calls, a server with threads, Django."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from http.cookies import SimpleCookie
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from urllib.parse import quote
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import WSGIApplication
from wsgiref.util import setup_testing_defaults, shift_path_info
from wsgiref.validate import validator

import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse

from treadle import Treadle, work
from treadle.dashboard import Access
from treadle.dashboard.forms import MOST_BYTES
from treadle.dashboard.wsgi import dashboard_wsgi
from treadle.errors import InputError


@work(name="mail.send", queue="größe/✓ <b>")
async def send(to: str) -> None: ...


def everyone(request: Request) -> Access:
    return Access(actor="ada", can="all")


@pytest.fixture
def app() -> Iterator[Treadle]:
    app = Treadle("memory://", work=[send])
    app.sync.enqueue(send("a@example.com"), id="first")
    yield app
    app.sync.close()


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


def call(
    web: WSGIApplication,
    path: str,
    method: str = "GET",
    *,
    body: bytes = b"",
    query: str = "",
    **environ: str,
) -> Answered:
    """Call a WSGI app as a server does. path: with its percent-encoding resolved, as bytes of UTF-8."""
    given: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path.encode("utf-8", "surrogateescape").decode("latin-1"),
        "QUERY_STRING": query,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        **environ,
    }
    setup_testing_defaults(given)
    started: list[Any] = []

    def start_response(
        status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        started.extend((int(status[:3]), dict(headers)))
        return lambda data: None

    answer = validator(web)(given, start_response)
    try:
        text = b"".join(answer).decode()
    finally:
        answer.close()  # type: ignore[attr-defined]
    return Answered(started[0], started[1], text)


def test_pages_below_a_path(app: Treadle) -> None:
    web = dashboard_wsgi(app, access=everyone, title="Shop")
    page = call(web, "/queues", SCRIPT_NAME="/ops")
    assert page.status == 200
    assert "· Shop</title>" in page.body
    assert "content-security-policy" in page.headers
    queue = f"/ops/queues/{quote('größe~2F✓ <b>', safe='~')}"
    assert f'href="{queue}"' in page.body
    assert "<b>" not in page.body.replace("<b></b>", "").split("<main")[1].split("oldest since")[1]
    # A server resolves percent-encodings, and gives the bytes as Latin-1.
    types = call(web, "/types/mail.send", SCRIPT_NAME="/ops", HTTP_ACCEPT="application/json")
    assert (types.status, '"type":"mail.send"' in types.body) == (200, True)
    name = "größe~2F✓ <b>"
    items = call(web, f"/queues/{name}/nothing", SCRIPT_NAME="/ops")
    assert items.status == 404
    asset = page.body.split('rel="stylesheet" href="')[1].split('"')[0]
    assert (
        call(web, asset.removeprefix("/ops"), SCRIPT_NAME="/ops")
        .headers["content-type"]
        .startswith("text/css")
    )
    assert call(web, "", SCRIPT_NAME="/ops").headers["location"] == "http://127.0.0.1/ops/"
    assert call(web, "/\udcff\udcfe").status == 404  # no UTF-8
    live = call(web, "/live")
    assert (live.status, live.body) == (204, "")  # the page looks by itself
    assert "content-security-policy" in live.headers


def test_head_is_a_get_without_a_body(app: Treadle) -> None:
    web = dashboard_wsgi(app, access=everyone)
    seen, head = call(web, "/limits"), call(web, "/limits", "HEAD")
    assert (head.status, head.body) == (200, "")
    assert head.headers["content-length"] == str(len(seen.body.encode()))
    assert head.headers["etag"] == seen.headers["etag"]
    assert call(web, "/limits", HTTP_IF_NONE_MATCH=seen.headers["etag"]).status == 304


def test_who_is_asked_and_where(app: Treadle) -> None:
    asked: list[tuple[object, object]] = []

    def plain(request: Request) -> Access | RedirectResponse | None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()  # Django's ORM would refuse
        asked.append((threading.current_thread(), request.scope["environ"]["shop.user"]))
        user = request.cookies.get("user")
        if user == "eve":
            return None
        return Access(actor=user, can="read") if user else RedirectResponse("/login")

    web = dashboard_wsgi(app, access=plain)
    environ = {"shop.user": "from the session"}
    assert call(web, "/limits", HTTP_COOKIE="user=ada", **environ).status == 200
    assert call(web, "/limits", HTTP_COOKIE="user=eve", **environ).status == 403
    assert call(web, "/live", HTTP_COOKIE="user=eve", **environ).status == 403
    assert call(web, "/limits", **environ).headers["location"] == "/login"
    assert asked == [(threading.current_thread(), "from the session")] * 4

    async def asynchronous(request: Request) -> Access:
        await asyncio.sleep(0)
        return Access(actor="ada")

    assert call(dashboard_wsgi(app, access=asynchronous), "/limits").status == 200

    def broken(request: Request) -> Access:
        raise LookupError("no session")

    answer = call(dashboard_wsgi(app, access=broken), "/limits")
    assert answer.status == 500
    assert "no session" not in answer.body
    with pytest.raises(InputError, match="access"):
        dashboard_wsgi(app, access="everyone")  # type: ignore[arg-type]


def test_forms(app: Treadle) -> None:
    web = dashboard_wsgi(app, access=everyone)
    form = {"HTTP_SEC_FETCH_SITE": "same-origin", "CONTENT_TYPE": "application/x-www-form-urlencoded"}
    kept = call(web, "/settings", "POST", body=b"scheme=dark&back=/limits", SCRIPT_NAME="/ops", **form)
    assert (kept.status, kept.headers["location"]) == (303, "/ops/limits")
    assert "treadle_scheme=dark" in kept.headers["set-cookie"]
    large = call(web, "/settings", "POST", body=b"scheme=" + b"x" * (MOST_BYTES + 10), **form)
    assert (large.status, "larger than" in large.body) == (400, True)
    chunked = {"CONTENT_LENGTH": "", "wsgi.input_terminated": "1"}
    assert call(web, "/settings", "POST", body=b"rows=wide", **form, **chunked).headers["set-cookie"]
    sent = call(web, "/items/first/signal", "POST", body=b"name=go&value=1", **form)
    assert (sent.status, sent.headers["location"]) == (303, "/items/first?done=signal.1")
    other = call(web, "/settings", "POST", body=b"scheme=dark", HTTP_SEC_FETCH_SITE="cross-site")
    assert other.status == 403


class Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


def test_a_server_with_threads(app: Treadle) -> None:
    with make_server("127.0.0.1", 0, dashboard_wsgi(app, access=everyone), Threads, Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:

            def get(path: str) -> tuple[int, str]:
                connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
                connection.request("GET", path, headers={"Accept": "application/json"})
                answer = connection.getresponse()
                return answer.status, answer.read().decode()

            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(get, ["/queues", "/types", "/workers", "/limits"] * 4))
            assert {status for status, _ in answers} == {200}
            assert all("größe/✓" in body for _, body in answers[::4])
            app.sync.enqueue(send("b@example.com"))  # the app is used beside it
            path = quote("/queues/größe~2F✓ <b>/none", safe="/~")
            assert get(path)[0] == 404
        finally:
            server.shutdown()
            thread.join()


def test_beside_django(app: Treadle) -> None:
    """A session of Django lets a visitor in."""
    from django.contrib.sessions.backends.signed_cookies import SessionStore
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpRequest, HttpResponse
    from django.test import override_settings
    from django.urls import path
    from django.utils.asyncio import async_unsafe

    from tests.support.django_connection import setup_django

    def login(request: HttpRequest) -> HttpResponse:
        request.session["user"] = "ada"
        return HttpResponse("hello")

    @async_unsafe
    def user_of(session: SessionStore) -> str | None:
        return session.get("user")

    def access(request: Request) -> Access | None:
        user = user_of(SessionStore(request.cookies.get("sessionid")))
        return Access(actor=user, can="all") if user else None

    class Urls:
        urlpatterns = [path("login", login)]  # noqa: RUF012

    setup_django()
    with override_settings(
        ROOT_URLCONF=Urls,
        ALLOWED_HOSTS=["127.0.0.1"],
        SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
        MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
    ):
        site, board = get_wsgi_application(), dashboard_wsgi(app, access=access)

        def application(environ: Any, start_response: Any) -> Any:
            if environ["PATH_INFO"].split("/")[1] == "treadle":
                shift_path_info(environ)
                return board(environ, start_response)
            return site(environ, start_response)

        assert call(application, "/treadle/types").status == 403
        cookie = SimpleCookie(call(application, "/login").headers["Set-Cookie"])["sessionid"].value
        seen = call(application, "/treadle/types", HTTP_COOKIE=f"sessionid={cookie}")
        assert seen.status == 200
        assert 'href="/treadle/types/mail.send"' in seen.body
        assert ">ada<" in seen.body
