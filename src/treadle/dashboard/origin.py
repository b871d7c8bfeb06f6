"""Origin: refuse requests that change something and were made by a page of another site.

Browsers say with `Sec-Fetch-Site`, or at least with `Origin`, which page made a request. There is no session
and no token in forms that could expire.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from starlette.requests import Request

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
BY_BROWSERS = ("basic", "digest", "negotiate", "ntlm")
"""Schemes of `Authorization` that browsers send by themselves, also to another site."""


def refused_origin(request: Request, origins: Collection[str]) -> str | None:
    """Why a request may not change anything. None: it may.

    origins: others from which it may be made: `https://admin.example`.
    """
    if request.method in SAFE_METHODS:
        return None
    headers = request.headers
    origin = headers.get("origin")
    if origin is not None and origin in origins:
        return None
    site = headers.get("sec-fetch-site")
    if site is not None:
        return None if site in ("same-origin", "none") else f"it was made by another site ({site})"
    if origin is not None:
        if _is_own(origin, request):
            return None
        return "it was made by a page of another origin"
    if _has_token(headers):
        return None
    return "it does not say which page made it: send Sec-Fetch-Site: none, an Origin, or a bearer token"


def _is_own(origin: str, request: Request) -> bool:
    """Whether it is the origin of the dashboard itself. A proxy may speak TLS to browsers, and not here."""
    scheme, _, host = origin.partition("://")
    schemes = ("http", "https") if request.url.scheme == "http" else ("https",)
    return scheme in schemes and bool(host) and host == request.headers.get("host")


def _has_token(headers: Mapping[str, str]) -> bool:
    """Whether a request has a header that a browser does not send by itself."""
    scheme = headers.get("authorization", "").partition(" ")[0].lower()
    return "x-api-key" in headers or (bool(scheme) and scheme not in BY_BROWSERS)
