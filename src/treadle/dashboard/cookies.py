"""Cookies: what a browser keeps for the pages of the dashboard alone."""

from __future__ import annotations

from starlette.responses import Response

from .addresses import PageAddresses


def keep(page: PageAddresses, response: Response, name: str, value: str, *, seconds: int) -> None:
    """Let the browser keep a text. Other sites can neither read nor send it."""
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=page.root or "/",
        secure=page.request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
