"""The dashboard of Django under ASGI tells open pages what has changed. Under WSGI they look."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.asgi import get_asgi_application
from django.test import Client, override_settings
from django.urls import path

from tests.contrib.django.conftest import backend_of, task_settings
from tests.contrib.django.shop import tasks
from tests.contrib.exchange import Exchange
from tests.engine.kit import PATIENCE
from treadle.contrib.django import dashboard
from treadle.dashboard import Access, live

may_see: list[bool] = []


def anyone(request: Any) -> Access | None:
    return Access(actor="ann", can="read") if may_see[0] else None


urlpatterns = [path("board/", dashboard(permission=anyone))]
SITE = {"ROOT_URLCONF": __name__, "ALLOWED_HOSTS": ["testserver"], "MIDDLEWARE": []}


@pytest.fixture(autouse=True)
def _site() -> Any:
    may_see[:] = [True]
    with override_settings(**SITE), task_settings(url="memory://"):
        yield


def open_page() -> Exchange:
    return Exchange(get_asgi_application(), "/board/live", headers={"host": "testserver"})


async def streams() -> int:
    """How many streams the app serves, on its own event loop."""

    async def count() -> int:
        return sum("AnswerStream._run" in repr(task) for task in asyncio.all_tasks())

    found: int = await asyncio.to_thread(backend_of().app.sync.call, count())
    return found


async def test_a_change_is_told_and_a_visitor_who_leaves_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_EVERY", 600.0)  # so an event is one that was published
    page = open_page()
    start = await page.message()
    headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    assert (start["status"], headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert headers["cache-control"] == "no-store"
    assert (await page.message())["body"] == b"retry: 3000\n\n"
    assert await streams() == 1
    await sync_to_async(tasks.add.enqueue)(1, 2)
    assert (await page.message())["body"] == b"event: changed\ndata: \n\n"
    page.leave()
    await page.ended()
    async with asyncio.timeout(PATIENCE):
        while await streams():  # noqa: ASYNC110  its end has no event
            await asyncio.sleep(0.01)


async def test_a_stream_ends_so_that_access_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(live, "ASK_EVERY", 0.0)
    page = open_page()
    assert (await page.message())["status"] == 200
    await page.ended()
    may_see[:] = [False]
    refused = open_page()
    assert (await refused.message())["status"] == 403
    await refused.ended()


def test_under_wsgi_there_is_no_stream() -> None:
    assert Client().get("/board/live").status_code == 204
