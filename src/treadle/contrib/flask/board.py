"""The dashboard in a Flask app."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from flask import Flask
from flask import Response as FlaskResponse
from starlette.requests import Request
from starlette.responses import Response
from werkzeug.exceptions import HTTPException
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.wrappers import Response as PlainResponse

from treadle.app import Treadle
from treadle.base.callables import check_plain
from treadle.dashboard import Access, dashboard_wsgi
from treadle.dashboard.access import AccessAnswer
from treadle.errors import InputError

FlaskAccessFn: TypeAlias = Callable[[], Access | FlaskResponse | PlainResponse | None]
"""Says what a visitor may do. It is called in the context of the request."""


def mount(flask: Flask, path: str, app: Treadle, access: FlaskAccessFn, settings: Mapping[str, Any]) -> None:
    """Serve the dashboard of an app under a path of a Flask app."""
    check_plain(access, "access")
    if not path.startswith("/") or path.endswith("/"):
        raise InputError.of("path", path, "must begin with a slash, and not end with one")

    def ask(request: Request) -> AccessAnswer:
        with flask.request_context(_site_environ(request.scope["environ"], path)):
            try:
                answer = access()
            except HTTPException as error:  # abort(403)
                answer = error.get_response()
        return _starlette_response(answer) if isinstance(answer, PlainResponse) else answer

    board = dashboard_wsgi(app, access=ask, **settings)
    flask.wsgi_app = DispatcherMiddleware(flask.wsgi_app, {path: board})  # type: ignore[method-assign]


def _site_environ(environ: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A request to the dashboard as the site sees it: its addresses are those of the site."""
    root = str(environ.get("SCRIPT_NAME", ""))
    return {
        **environ,
        "SCRIPT_NAME": root.removesuffix(path),
        "PATH_INFO": path + str(environ.get("PATH_INFO", "")),
    }


def _starlette_response(answer: PlainResponse) -> Response:
    headers: Iterable[tuple[str, str]] = answer.headers.items()
    response = Response(answer.get_data(), answer.status_code)
    response.raw_headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers
    ]
    return response
