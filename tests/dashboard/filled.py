"""A store in which every page of the dashboard has something to show."""

from __future__ import annotations

from datetime import date

from tests.dashboard.jobs import pay, read_card, report, send
from treadle import Treadle
from treadle.item import Heartbeat
from treadle.worker_info import UndecodableType, WorkerInfo, encode_worker_info

MARKER = "c0ffee-marker"
"""In every payload of the store."""
SECRET = "s3cret-marker"
"""In every payload that is secret."""
WORK = (send, report, pay, read_card)
DAY = date(2030, 1, 31)


async def fill(app: Treadle) -> str:
    """Queue items of tenant `a` in many states, with MARKER in each payload. Tenant `c` has one with the same
    id, key and workflow as one of `a`. Returns the mark of the dead item."""
    of_a = app.tenant("a")
    await of_a.enqueue(
        send(MARKER, SECRET, password=SECRET), id="dead", workflow="flow", headers={"note": MARKER}
    )
    lease = await of_a.claim_one()
    assert lease is not None
    await lease.fail(f"it failed: {MARKER}")
    for client in (of_a, app.tenant("c")):
        await client.enqueue(send(MARKER, SECRET), id="late", delay=3600, workflow="late", key="k")
    await of_a.enqueue(pay(1, SECRET), id="paid", delay=3600)
    await of_a.enqueue(report(DAY, 2), id="blocked", after=["paid"])
    await of_a.enqueue(read_card(MARKER), id="read")
    await of_a.complete("read", {"name": MARKER, "password": SECRET})  # it is the value of its group too
    await of_a.enqueue(report(DAY, 1, tags=[MARKER]), id="done")
    await of_a.complete("done", DAY)
    app.schedule("nightly", every=3600, run=lambda: send(MARKER))
    await app.schedules.resume("nightly")  # so that it is stored, though nothing runs
    unread = UndecodableType(count=1, error=f"no text: {MARKER}", until=4e9)
    info = WorkerInfo(host="far", pid=7, lease=60, undecodable={"mail.send": unread})
    await app.backend.beat(Heartbeat(worker="w1", lease=60, info=encode_worker_info(info)))
    return (await app.dead.marks())[0].mark
