"""Access: who a visitor is, which actions are allowed, and which tenants are shown."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, Literal, TypeAlias, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from treadle.backend import left_out
from treadle.base.ids import check_name
from treadle.errors import InputError, TreadleError

Action: TypeAlias = Literal[
    "requeue",
    "cancel",
    "trigger",
    "hold",
    "unhold",
    "complete",
    "signal",
    "update",
    "delete",
    "enqueue",
    "edit",
    "pause",
    "resume",
    "set_limit",
    "clear_limit",
    "pause_schedule",
    "resume_schedule",
    "trigger_schedule",
    "cancel_schedule",
    "drain_worker",
    "stop_bulk",
]
"""What a visitor may be allowed to do."""
ACTIONS: Final[frozenset[Action]] = frozenset(get_args(Action))
Can: TypeAlias = Literal["all", "read"] | Collection[Action]


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What a visitor may see and do.

    actor: who it is. The audit names it.
    can: `"all"`, `"read"`, or the names of single actions: `{"requeue", "pause"}`. Everyone may read.
    tenants: the tenants that are shown. None: all of them, and the pages about the whole fleet.
    payloads: whether inputs, results, messages of errors and tracebacks are shown.
    """

    actor: str
    can: Can = "read"
    tenants: Collection[str] | None = None
    payloads: bool = True

    def __post_init__(self) -> None:
        if not self.actor.strip():
            raise InputError.of("actor", self.actor, "must be a text that says who it is")
        if isinstance(self.can, str):
            if self.can not in ("all", "read"):
                raise InputError.of("can", self.can, 'must be "all", "read", or a set of actions')
        else:
            for each in self.can:
                if each not in ACTIONS:
                    names = ", ".join(sorted(ACTIONS))
                    raise InputError.of("can", each, f"is no action: there are {names}")
        if self.tenants is not None:
            if isinstance(self.tenants, str) or not self.tenants:
                raise InputError.of("tenants", self.tenants, "must be a list of tenants, or None for all")
            for tenant in self.tenants:
                check_name(tenant, field="tenants")

    def allows(self, action: Action) -> bool:
        """Whether this action is allowed. What is not shown cannot be edited."""
        if action == "edit" and not self.payloads:
            return False
        if isinstance(self.can, str):
            return self.can == "all"
        return action in self.can

    def allowed(self, actions: Iterable[Action]) -> list[Action]:
        """Those of these actions that are allowed."""
        return [action for action in actions if self.allows(action)]

    def shows(self, tenant: str) -> bool:
        """Whether the items of this tenant are shown."""
        return self.tenants is None or tenant in self.tenants


AccessAnswer: TypeAlias = Access | Response | None
AccessFn: TypeAlias = Callable[[Request], AccessAnswer | Awaitable[AccessAnswer]]
"""Says what a visitor may do. None: nothing, which is answered with 403. A response, such as a redirect to a
login page, is sent as it is."""


class Forbidden(TreadleError):
    """The visitor may not do this."""


class NotShown(TreadleError):
    """There is no such page, or the visitor may not see it: both look alike."""


def not_there(what: str, why: str = "") -> NotShown:
    """what: as in "there is no item 'a'". why: what follows if no store was left out."""
    if left_out():
        return NotShown(f"{what} in the stores that answer")
    return NotShown(f"{what}: {why}" if why else what)


LOOPBACK_HOSTS: Final = frozenset(("127.0.0.1", "localhost", "[::1]", "::1"))


class LinkAccess:
    """Lets in the browser that opens the link first, and no other.

    Other names of this machine are refused: a page elsewhere could have its own name point here.
    """

    def __init__(self, actor: str, *, can: Can = "all", tenants: Collection[str] | None = None) -> None:
        self._access = Access(actor=actor, can=can, tenants=tenants)
        self._token: str | None = secrets.token_urlsafe(32)
        self._cookie = secrets.token_urlsafe(32)

    def link(self, address: str) -> str:
        """The link. address: where the dashboard is served, with a slash at the end."""
        return f"{address}?token={self._token}"

    def __call__(self, request: Request) -> AccessAnswer:
        if (request.url.hostname or "") not in LOOPBACK_HOSTS:
            return _text("this dashboard is served to this machine only: open it at 127.0.0.1")
        name = f"treadle_visitor_{request.url.port or 80}"  # the ports of a host share their cookies
        known = hmac.compare_digest(request.cookies.get(name, "").encode(), self._cookie.encode())
        token = request.query_params.get("token")
        if token is None or request.method != "GET":
            return self._access if known else _text("open the link that `treadle web` has printed")
        if not known and not self._redeem(token):
            return _text("this link was used, or is not the newest: start `treadle web` again for another")
        # Two slashes would be the name of another host.
        response = RedirectResponse("/" + request.url.path.lstrip("/"), 303)
        response.set_cookie(name, self._cookie, httponly=True, samesite="strict")
        return response

    def _redeem(self, token: str) -> bool:
        if self._token is None or not hmac.compare_digest(token.encode(), self._token.encode()):
            return False
        self._token = None
        return True


def _text(message: str) -> Response:
    return Response(f"{message}\n", 403, media_type="text/plain")
