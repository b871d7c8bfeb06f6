"""What a visitor gets while the store is away: what was typed is not lost."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from tests.dashboard.jobs import said, send
from treadle import Treadle
from treadle.backends.memory import MemoryBackend
from treadle.testing.faults import FaultyBackend


async def test_a_form_that_is_sent_during_an_outage_can_be_sent_again(make_app: Any, visitor: Any) -> None:
    backend = FaultyBackend(MemoryBackend())
    app: Treadle = make_app(lambda: backend, send)
    await app.enqueue_many([send(f"{at}") for at in range(120)])
    ann = visitor(app)
    typed = {
        "q": "type:mail.send",
        "confirmed": "1",
        "reason": 'an "old" <one>',
        "rate": "50",
        "back": "/dead",
    }
    with backend.faults.outage():
        answer = await ann.post("/act/cancel", data=typed)
        assert answer.status_code == 503
        assert "data-live" not in answer.text
        page = await ann.get("/queues")
        assert page.status_code == 503
        assert "data-live data-error" in page.text
    assert "may or may not have happened" in answer.text
    assert "an &#34;old&#34; &lt;one&gt;</dd>" in answer.text
    assert 'action="/act/cancel"' in answer.text
    fields = re.findall(
        r'<input type="hidden" name="(\w+)" value="([^"]*)"', answer.text.partition("<main")[2]
    )
    assert {name: unescape(value) for name, value in fields} == typed
    status, where = said(await ann.post("/act/cancel", data=typed))
    assert status == 303
    assert where.startswith("/bulk/")
