"""Names: the work types, queues and marks that are known here, and remarks on names that are not.

A name that is not known is no error: a queue may be paused before its first item. So a command does as it was
told, and says which name was perhaps meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from treadle.backend import left_out
from treadle.base.ids import check_id, check_name
from treadle.base.wording import close_names, did_you_mean, listed, plural
from treadle.bulk_action import BULK_QUEUE
from treadle.errors import InputError, NotFound, TreadleError
from treadle.item import DEFAULT_QUEUE
from treadle.logs.tracebacks import MARK_LENGTH
from treadle.operate.operator import tenant_of
from treadle.operate.tenant_view import paused_queues
from treadle.operate.why.wording import command
from treadle.store.fleet import queues_of

if TYPE_CHECKING:
    from treadle.backend import Backend
    from treadle.client import Client
    from treadle.define.work_type import AnyWorkType
    from treadle.item_facts import DeadMark, Overview

    from .shell import Shell

MOST_MARKS: Final = 1000
_WHOLE_MARK: Final = re.compile(rf"[0-9a-f]{{{MARK_LENGTH}}}")


# -------------------------------------------------------------------------------------- types and queues


async def _overview(client: Client) -> Overview:
    """How the store stands. For one tenant without workers: they serve the types and queues of others too."""
    overview = await client.overview(quick=True)
    return overview if tenant_of(client) is None else replace(overview, workers=())


async def known_types(client: Client) -> list[str]:
    """Types of the app, and of items and workers in the store."""
    overview = await _overview(client)
    served = (type for worker in overview.workers for type in worker.types or ())
    return sorted({*client.types, *(each.type for each in overview.counts), *served})


async def known_queues(client: Client) -> list[str]:
    """Queues of the types of the app, of items and workers in the store, and those that are paused."""
    overview = await _overview(client)
    return sorted({*used_queues(overview, client.types), *paused_queues(overview.paused)})


def used_queues(overview: Overview, types: Mapping[str, AnyWorkType]) -> list[str]:
    """The same without those that are only paused: a wrong name can be paused too."""
    own = (type.options.get("queue") for type in types.values())
    found = {DEFAULT_QUEUE, *(each.queue for each in overview.counts), *queues_of(overview.workers)}
    return sorted({*found, *(queue for queue in own if queue is not None)})


async def type_remark(client: Client, name: str) -> str:
    """What is said of a type that nothing here has. Empty: something has it, or the store cannot say."""
    try:
        known = await known_types(client)
    except TreadleError:
        return ""
    return _remark("work type", name, known, tenant_of(client))


async def queue_remark(client: Client, name: str) -> str:
    """The same for a queue."""
    try:
        known = used_queues(await _overview(client), client.types)
    except TreadleError:
        return ""
    return "" if name == BULK_QUEUE else _remark("queue", name, known, tenant_of(client))


def _remark(what: str, name: str, known: Sequence[str], tenant: str | None = None) -> str:
    if name in known:
        return ""
    who = "no item, worker or app here" if tenant is None else f"no item of {tenant!r}, and no app here,"
    others = f"there are {listed(known)}" if known else "there are none"
    return f"{who} has the {what} {name!r}: {did_you_mean(name, known, others)}"


async def misspelt_queues(app: Client, backend: Backend, queues: Iterable[str]) -> list[str]:
    """Remarks on queues of a worker that are perhaps misspelt: nothing has them, and a name is close."""
    try:
        known = used_queues(await backend.overview(quick=True), app.types)
    except TreadleError:
        return []
    return [
        _remark("queue", name, known) for name in queues if name not in known and close_names(name, known)
    ]


async def remark_filters(shell: Shell, type: str | None, queue: str | None) -> None:
    """Say which names of filters are perhaps misspelt: nothing here has them."""
    remarks = (
        "" if type is None else await type_remark(shell.client, type),
        "" if queue is None else await queue_remark(shell.client, queue),
    )
    for remark in filter(None, remarks):
        shell.warn(remark)


# ------------------------------------------------------------------------------------------------- marks


async def find_mark(shell: Shell, text: str) -> DeadMark:
    """The mark that a person means: all of it, or how it begins. `NotFound`, or InputError if several do."""
    marks = await shell.backend.marks(tenant=shell.tenant, count=MOST_MARKS)
    text = text.strip("'")
    if exact := [mark for mark in marks if mark.mark == text]:
        return exact[0]
    begins = [mark for mark in marks if text and mark.mark.startswith(text)]
    if len(begins) > 1:
        raise InputError.of("MARK", text, f"may be one of {plural(len(begins), 'mark')}: give more of it")
    if not begins:
        if await _is_id(shell, text):
            show = command("show", text, tenant=shell.tenant)
            raise InputError(f"no mark {text!r} here, but an item has that id: `{show}`")
        raise NotFound(text, "mark", away=left_out())
    return begins[0]


async def _is_id(shell: Shell, text: str) -> bool:
    try:
        (item,) = await shell.backend.get([check_id(text)], tenant=shell.tenant)
    except InputError:
        return False
    return item is not None


async def whole_mark(shell: Shell, text: str) -> str:
    """The mark that `--mark` means. A whole one is not looked up."""
    text = text.strip("'")
    if not text or _WHOLE_MARK.fullmatch(check_name(text, "--mark")):
        return text
    return (await find_mark(shell, text)).mark
