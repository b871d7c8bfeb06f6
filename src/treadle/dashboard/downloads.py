"""Downloads: long inputs and results as files."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.responses import Response

from .access import Forbidden, NotShown
from .payloads import What, json_text, read_payload
from .visit import Visit


async def _download(visit: Visit, what: What) -> Response:
    if not visit.access.payloads:
        raise Forbidden(f"{visit.access.actor} may not see inputs and results")
    id = visit.part("id")
    (state,) = await visit.item_client.get(id)
    if state is None:
        raise NotShown(f"there is no item {id!r}")
    value, _ = read_payload(visit, state, what)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{id}.{what}.json")
    return Response(
        json_text(value).encode("utf-8", "replace"),
        media_type="application/json",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


async def download_input(visit: Visit) -> Response:
    return await _download(visit, "input")


async def download_result(visit: Visit) -> Response:
    return await _download(visit, "result")


DOWNLOADS: Final[Mapping[str, Callable[[Visit], Awaitable[Response]]]] = {
    "/items/{id}/input": download_input,
    "/items/{id}/result": download_result,
}
"""By path, as routes of Starlette."""
