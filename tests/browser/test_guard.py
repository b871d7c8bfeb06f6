"""The guard of all browser tests finds what it is there for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.browser.conftest import Watch
from tests.browser.serving import background_loop, listening

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CSP = "default-src 'none'; script-src 'self'; img-src * data:"
SCRIPTS = {
    "calm": "document.title = 'calm'",
    "console": "console.error('an error')",
    "script": "throw new Error('a script')",
    "dialog": "alert('a dialog')",
    "elsewhere": "document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.2:1/x.png'}))",
    "policy": "document.body.insertAdjacentHTML('beforeend', '<img src=/calm.js onerror=alert(1)>')",
}


async def page(request: Request) -> Response:
    name = request.path_params["name"]
    body = f'<link rel=icon href="data:,"><body><script src="/{name}.js"></script>'
    return Response(body, media_type="text/html", headers={"Content-Security-Policy": CSP})


async def script(request: Request) -> Response:
    return Response(SCRIPTS[request.path_params["name"]], media_type="text/javascript")


@pytest.fixture(scope="module")
def origin():
    web = Starlette(routes=[Route("/{name}.js", script), Route("/{name}", page)])
    with background_loop() as loop, listening(web, loop) as origin:
        yield origin


@pytest.mark.usefixtures("checks_tests")
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("calm", ""),
        ("console", "console: an error"),
        ("script", "script: a script"),
        ("dialog", "dialog: a dialog"),
        ("elsewhere", "request elsewhere: http://127.0.0.2:1/x.png"),
        ("policy", "Content Security Policy"),
    ],
)
def test_a_fault_is_found(browser: Browser, origin: str, name: str, found: str) -> None:
    context = browser.new_context()
    watch = Watch(context, origin, expected=None)
    opened = context.new_page()
    opened.goto(f"{origin}/{name}")
    opened.wait_for_load_state()
    faults = watch.end()
    assert any(found in fault for fault in faults) if found else not faults, faults
