"""`app.problems()`: what a person should look at, by few reads."""

from __future__ import annotations

import pytest

from treadle import Client, InputError, MemoryBackend, Treadle, work
from treadle.testing import CountingBackend


@work(name="mail.send")
async def send() -> None: ...


async def test_problems_are_found_by_at_most_five_reads() -> None:
    backend = CountingBackend(MemoryBackend())
    app = Treadle(backend, work=[send])
    await app.enqueue(send(), id="ready")
    await app.enqueue(send(), id="later", delay=3600)
    await app.tenant("acme").enqueue(send(), id="blocked", after=["never-submitted"])
    await app.pause("default")
    app.schedule("nightly", every=60, run=send)
    backend.reset()
    found = await app.problems(max_wait=0)
    assert [each.kind for each in found] == ["no_worker", "not_submitted", "paused"]
    assert found[1].refs == ("blocked",)
    assert found[2].fix == "treadle resume default"
    assert backend.total() <= 5
    assert "never-submitted" not in str(await app.tenant("other").problems(max_wait=0))
    assert [each.kind for each in await app.tenant("acme").problems(max_wait=0)] == [
        "no_worker",
        "not_submitted",
        "paused",
    ]
    with pytest.raises(InputError, match="max_wait"):
        await app.problems(max_wait=-1)
    await app.close()
    with Client(backend).sync as client:
        assert [each.kind for each in client.problems(quick=True)] == ["no_worker", "paused"]
