"""The backend of examples/third_party_backend.py passes the contracts, and its audit log is right."""

from __future__ import annotations

import json

from examples.third_party_backend import (
    AuditedSubject,
    TestAuditedBackend,
    TestAuditedWorkers,
    subject,
)
from treadle import Treadle, work

__all__ = ["TestAuditedBackend", "TestAuditedWorkers", "subject"]


async def test_the_audit_log_has_every_change() -> None:
    @work(name="pay")
    async def pay() -> None: ...

    audited = AuditedSubject()
    async with Treadle(audited.backend, work=[pay]) as app:
        await app.enqueue(pay()).result(10)
    lines = [json.loads(line) for line in audited.log]
    assert [(line["verb"], line["outcome"]) for line in lines] == [("submit", "ok"), ("settle", "ok")]
