"""The work router: callers ask for the state of what they enqueued, wait for its end, or follow it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias, cast
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, Router

from treadle.backend import check_capable
from treadle.base.callables import call, check_callable
from treadle.base.timing import Duration, seconds
from treadle.client import Client
from treadle.codec.shape import Shape
from treadle.errors import (
    AlreadyEnded,
    DecodeError,
    InputError,
    MailboxFull,
    NotFound,
    PayloadError,
    PayloadTooLarge,
    Stopped,
    StoreUnavailable,
)
from treadle.handle import Handle
from treadle.sync import SyncHandle

from .work_state import (
    TooManyWait,
    WorkAccess,
    WorkAccessFn,
    WorkNotShown,
    WorkStates,
    json_text,
    last_seen,
    state_json,
)

NO_STORE: Final = {"cache-control": "no-store"}
LARGEST_SIGNAL: Final = 1_000_000
"""Bytes of the value of a signal."""


class EventStream(StreamingResponse):
    """Server-sent events."""

    media_type = "text/event-stream"


SignalNames: TypeAlias = Literal["all"] | Collection[str] | Mapping[str, Any]
"""The names of the signals that callers may send, or their types by name."""


def work_router(
    app: Client, *, access: WorkAccessFn, max_wait: Duration = 30.0, signals: SignalNames = ()
) -> Router:
    """Return the routes that callers of your API ask for the state of their work. Mount them where `accepted`
    says they are: `Mount("/work", work_router(treadle, access=access))`.

    - `GET /{id}`: the state of an item, as `WorkState`. A root item stands for its whole group.
    - `GET /{id}?wait=30`: the same, when it has ended, or after 30 seconds at the latest.
    - `GET /{id}/events`: its states, and the chunks of its stream, as server-sent events. The last one is
      `end`.
    - `POST /{id}/signals/{name}`: send it a signal, with the JSON value of the body. Only with `signals`.

    What a caller may not see does not exist: 404. Without `signals` they only read.

    app: the app, or a client of its store.
    access: `access(request)` returns what a caller may see: a `WorkAccess`, or None for nothing (403). It may
        be async, and it may return a response, such as 401. There is no default: the routes are closed.
    max_wait: the longest wait. Longer ones are cut to it: choose less than proxies allow.
    signals: the signals that callers may send to the items that they see: their types by name, as
        `{"approval": bool}`, their names alone, or `"all"`. A value of another type is refused: it would kill
        the item. `access` knows from `request.method` that a signal is sent.
    """
    check_callable(access, "access")
    answers = WorkAnswers(app, max_wait, signals)

    async def read_work(request: Request) -> Response:
        wait = request.query_params.get("wait", "0")
        return await answers.state(request, request.path_params["id"], await call(access, request), wait)

    async def follow_work(request: Request) -> Response:
        return await answers.events(request, request.path_params["id"], await call(access, request))

    async def signal_work(request: Request) -> Response:
        id, name = request.path_params["id"], request.path_params["name"]
        return await answers.signal(request, id, name, await call(access, request))

    routes = [
        Route("/{id}", read_work, methods=["GET"], name="work_state"),
        Route("/{id}/events", follow_work, methods=["GET"], name="work_events"),
    ]
    if signals:
        routes.append(Route("/{id}/signals/{name}", signal_work, methods=["POST"], name="work_signal"))
    return Router(routes)


class WorkAnswers:
    """The answers of the routes, for any framework with requests of Starlette."""

    def __init__(self, app: Client, max_wait: Duration, signals: SignalNames = ()) -> None:
        if not isinstance(app, Client):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError.of("app", app, "must be a Treadle app or a Client")
        if isinstance(signals, str) and signals != "all":
            raise InputError.of("signals", signals, 'must be types by name, a list of names, or "all"')
        if signals:
            check_capable(app.backend, "steps")
        self._signals = signals if isinstance(signals, str) else frozenset(signals)
        self._shapes: dict[str, Shape] = {}
        if isinstance(signals, Mapping):
            typed = cast("Mapping[str, Any]", signals)
            self._shapes = {name: Shape.for_type(type) for name, type in typed.items()}
        self._states = WorkStates(app)
        self._max_wait = seconds(max_wait, field="max_wait")

    async def state(self, request: Request, id: str, access: object, wait: str | float) -> Response:
        """The state of an item. access: what the access function has returned."""

        async def answer(allowed: WorkAccess) -> Response:
            longest = _seconds(wait)
            if longest is None:
                return _message(400, "wait: a number of seconds, 0 or more")
            if request.method == "HEAD":
                longest = 0.0
            state = await self._states.wait(allowed, id, min(longest, self._max_wait), request)
            return Response(json_text(state_json(state)), headers=NO_STORE, media_type="application/json")

        return await _answer(access, answer)

    async def events(self, request: Request, id: str, access: object) -> Response:
        """The states of an item as a stream of events."""

        async def answer(allowed: WorkAccess) -> Response:
            found = await self._states.find(allowed, id)
            seen = last_seen(request.headers.get("last-event-id", ""))
            has_more = allowed.results and found.chunks > seen.chunk
            if found.state.ended and seen.end and not has_more:
                return Response(status_code=204, headers=NO_STORE)  # the browser does not ask again
            headers = {**NO_STORE, "x-accel-buffering": "no"}
            if request.method == "HEAD":
                return Response(headers=headers, media_type=EventStream.media_type)
            self._states.check_room()
            return EventStream(self._states.events(allowed, found, seen.chunk), headers=headers)

        return await _answer(access, answer)

    async def signal(self, request: Request, id: str, name: str, access: object) -> Response:
        """Send a signal to an item: 202, or 200 if one of this name with this `Idempotency-Key` was sent
        before."""

        async def answer(allowed: WorkAccess) -> Response:
            if self._signals != "all" and name not in self._signals:
                return _message(404, "there is no such signal")
            # Pages of other sites cannot send this type by themselves.
            if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                return _message(415, "send the value as application/json")
            try:
                body = await _body(request) or b"null"
                value = msgspec.json.decode(body)
                if name in self._shapes:
                    self._shapes[name].decode(body)
                key = request.headers.get("idempotency-key")
                sent = await self._states.send(allowed, id, name, value, key)
            except (msgspec.DecodeError, RecursionError, InputError) as error:
                return _message(400, str(error))
            except DecodeError as error:
                return _message(422, str(error))
            except PayloadError as error:
                return _message(413, str(error))
            except MailboxFull:
                return _message(429, "too many signals wait for this work", {"retry-after": "5"})
            except AlreadyEnded:
                return _message(409, "this work has ended")
            except NotFound:
                raise WorkNotShown(id) from None
            return JSONResponse({"sent": sent}, 202 if sent else 200, headers=NO_STORE)

        return await _answer(access, answer)


async def _body(request: Request) -> bytes:
    """The body. `PayloadTooLarge`."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_SIGNAL:
            raise PayloadTooLarge("the value of the signal", len(body), LARGEST_SIGNAL)
    return bytes(body)


async def _answer(access: object, answer: Callable[[WorkAccess], Awaitable[Response]]) -> Response:
    """Ask for access first, and answer errors that a caller can do something about."""
    if isinstance(access, Response):
        return access
    if access is None:
        return _message(403, "you have no access to this")
    if not isinstance(access, WorkAccess):
        raise TypeError(f"the access function must return a WorkAccess or None, and returned {access!r:.80}")
    try:
        return await answer(access)
    except WorkNotShown:
        return _message(404, "there is no such work")
    except (StoreUnavailable, Stopped, TooManyWait):
        return _message(503, "this cannot be answered now: try again", {"retry-after": "5"})


def _message(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"detail": detail}, status, headers={**NO_STORE, **(headers or {})})


def _seconds(wait: str | float) -> float | None:
    try:
        given = float(wait)
    except ValueError:
        return None
    return given if given >= 0 and math.isfinite(given) else None


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
