"""A real Chromium, driven by Playwright's sync API.

The browser lives as long as a process has tests of this package: Playwright's event loop
counts as running in its thread, where the asynchronous tests of other packages could not start theirs.
With our CSP `page.wait_for_function` fails, and server-sent events keep `networkidle` from coming: wait for
what is shown, with `expect(locator)`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from tests.browser.get_browser import NoBrowser, find

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, Request

OpenPage = Callable[..., "Page"]
"""`open_page(url, **options)`: a page in a context of its own. Options: those of `Browser.new_context`;
`faults=`, a regular expression of faults that the test expects; `origin=`, if it is not that of the URL."""


def left_out(reason: str) -> NoReturn:
    if os.environ.get("TREADLE_BROWSER_REQUIRED"):
        pytest.fail(f"browser tests are required, and cannot run: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for the tests of this package."""
    try:
        path = find()
    except NoBrowser as error:
        left_out(str(error))
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        left_out("Playwright is not installed; `make browser` installs it.")
    if not path:
        left_out("there is no Chromium; `make browser` gets one, or says why it cannot.")
    with sync_playwright() as playwright:
        started = launch(playwright, path)
        yield started
        started.close()


def launch(playwright: Playwright, path: Path) -> Browser:
    """Start the browser, in its sandbox where there can be one: not for root, nor in most containers. Without
    one it opens only the pages that we serve."""
    try:
        return playwright.chromium.launch(executable_path=path, chromium_sandbox=os.geteuid() != 0)
    except Exception:  # noqa: BLE001  # Playwright's error, which is imported only where it is installed
        return playwright.chromium.launch(executable_path=path)


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open pages that are watched. At the end of the test they must have been free of faults: errors on the
    console (what the CSP refuses is one), errors of scripts, dialogs, and requests to another origin."""
    watches: list[Watch] = []

    def opened(url: str, *, origin: str | None = None, faults: str | None = None, **options: Any) -> Page:
        context = browser.new_context(**{"reduced_motion": "reduce", **options})
        context.set_default_timeout(10_000)
        watches.append(Watch(context, origin or url, faults))
        page = context.new_page()
        page.goto(url)
        return page

    yield opened
    found = [fault for watch in watches for fault in watch.end()]
    assert not found


class Watch:
    """Collects what must not happen in a context."""

    def __init__(self, context: BrowserContext, url: str, expected: str | None) -> None:
        self._context = context
        self._origin = "/".join(url.split("/", 3)[:3]) + "/"
        self._expected = expected
        self._faults: list[str] = []
        context.on("console", self._console)
        context.on("weberror", lambda error: self._add(f"script: {error.error}"))
        context.on("dialog", self._dialog)
        context.on("request", self._request)

    def end(self) -> list[str]:
        """Close the context. What was found in it."""
        self._context.close()
        return self._faults

    def _add(self, fault: str) -> None:
        if not (self._expected and re.search(self._expected, fault)):
            self._faults.append(fault)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._add(f"console: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self._add(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self._origin, "data:")):
            self._add(f"request elsewhere: {request.url}")
