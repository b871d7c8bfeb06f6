"""Accepted: the answer for work that was enqueued: 202, and where to ask for its state."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote

from starlette.responses import JSONResponse

from treadle.handle import Handle
from treadle.sync import SyncHandle


@dataclass(frozen=True, kw_only=True)
class AcceptedLinks:
    """Where to ask for the state of the work: see `work_router`."""

    state: str
    wait: str
    events: str


@dataclass(frozen=True, kw_only=True)
class AcceptedWork:
    """Work that was accepted: the body of the answer."""

    id: str
    existing: bool
    """Whether it is earlier work with the same key. Then nothing new was stored."""
    links: AcceptedLinks


class AcceptedResponse(JSONResponse):
    """The answer 202. `work` is its body."""

    def __init__(self, work: AcceptedWork) -> None:
        self.work = work
        super().__init__(
            asdict(work), 202, headers={"location": work.links.state, "cache-control": "no-store"}
        )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """For the schema that FastAPI shows: that of the body."""
        return handler.generate_schema(AcceptedWork)


Accepted: TypeAlias = Annotated[AcceptedResponse, AcceptedWork]
"""What a route returns that answers with `accepted(...)`. As the return type of a route of FastAPI it shows
the body in OpenAPI. FastAPI does not look into a bare response class."""


def accepted(handle: Handle[Any, Any] | SyncHandle[Any, Any], *, at: str = "/work") -> AcceptedResponse:
    """Answer that work was accepted: status 202, `Location`, and a body with its id and links.

    at: where `work_router` is, as a path or a whole URL.
    """
    state = f"{at.rstrip('/')}/{quote(handle.id, safe=':')}"
    links = AcceptedLinks(state=state, wait=f"{state}?wait=30", events=f"{state}/events")
    return AcceptedResponse(AcceptedWork(id=handle.id, existing=handle.existing, links=links))
