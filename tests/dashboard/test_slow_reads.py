"""Pages while the store is slow, and while it is away."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.dashboard.conftest import AS_JSON, Visitor
from treadle import Treadle
from treadle.backend import Backend
from treadle.dashboard import site
from treadle.errors import StoreTooSlow, StoreUnavailable
from treadle.testing import Faults, FaultyBackend


async def test_a_read_that_takes_too_long_is_left_out(
    memory_store: Callable[[], Backend], visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the page is shown. A store that is away is an error."""
    faults = Faults()
    app = Treadle(FaultyBackend(memory_store(), faults))
    for path in ("/", "/queues", "/types", "/tenants"):
        slow = faults.fail("overview", error=lambda: StoreTooSlow("took too long"))
        answer = await visitor(app).get(path)
        assert (answer.status_code, "not in time" in answer.text, slow.hits) == (200, True, 1), path
        faults.fail("overview", error=lambda: StoreUnavailable("is away"))
        answer = await visitor(app).get(path)
        assert (answer.status_code, "is away" in answer.text) == (503, True), path
    # What a page cannot do without.
    monkeypatch.setattr(site, "PAGE_SECONDS", 0.01)
    for path, verb in (("/audit", "audits"), ("/bulk", "list"), ("/workers", "workers")):
        held = faults.hold(verb)
        answer = await visitor(app).get(path, headers=AS_JSON)
        assert (answer.status_code, answer.json()["error"]) == (503, "StoreTooSlow"), path
        held.release()
    await app.close()
