"""LinkAccess: access by a link that works once, for a dashboard on this machine."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from .access import Access, AccessAnswer, Can

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
