"""The dashboard as a view of Django: `path("treadle/", dashboard())`.

It runs in the thread of the request, under WSGI and ASGI alike. Who may do what is said by Django's users and
permissions. Under ASGI pages are told what has changed by server-sent events. Under WSGI they look for news
every few seconds.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from treadle.app import Treadle
from treadle.client import Client

from .backend import TreadleBackend
from .django_api import (
    HttpResponse,
    PermissionDenied,
    StreamingHttpResponse,
    csrf_exempt,
    import_string,
    re_path,
    task_backends,
)

if TYPE_CHECKING:
    from treadle.dashboard.access import Access
    from treadle.dashboard.wsgi import WsgiDashboard

_ACCESS: Final = "treadle.django_access"
"""Where the environment of a request carries what its user may do."""
_USER_MARKS: Final = ("is_staff", "is_superuser", "is_authenticated")


def dashboard(
    app: Client | None = None,
    *,
    backend: str = "default",
    permission: str | Callable[[Any], Access | None] = "is_staff",
    title: str = "treadle",
    links: Mapping[str, str] | None = None,
) -> tuple[list[Any], None, None]:
    """Return the dashboard, for `urlpatterns`: `path("treadle/", dashboard())`.

    app: the app, or a client. Without it, that of the task backend `backend`.
    permission: who may see it. `is_staff`, `is_superuser`, `is_authenticated`, or a permission, as
        `treadle.view_item`. A superuser may do everything. Others may do what they have permissions for:
        `treadle.requeue_item`, `cancel_item`, `trigger_item`, `delete_item`. Or a function of the request
        that returns an `Access`, or None.
    title, links: as for `treadle.dashboard.dashboard`.
    """
    made: dict[int, WsgiDashboard] = {}

    def web() -> WsgiDashboard:
        from treadle.dashboard.wsgi import WsgiDashboard

        found = _app_of(backend) if app is None else app
        if id(found) not in made:
            made.clear()
            made[id(found)] = WsgiDashboard(found, _access_in, title=title, links=links)
        return made[id(found)]

    @csrf_exempt  # the dashboard itself refuses what another site has sent
    def view(request: Any, path: str) -> Any:
        access = _access_of(request, permission)
        if access is None:
            return _refuse(request)
        environ = {**_environ(request, path), _ACCESS: access}
        return _stream(web(), environ) if _streams(request, path) else _answer(web(), environ)

    return [re_path(r"^(?P<path>.*)$", view, name="treadle")], None, None


def _app_of(alias: str) -> Treadle:
    backend = task_backends[alias]
    if not isinstance(backend, TreadleBackend):
        raise TypeError(f"TASKS[{alias!r}] is not a TreadleBackend: give the app, as in dashboard(app)")
    return backend.app


# -- who -----------------------------------------------------------------------------------------------


def _access_of(request: Any, permission: str | Callable[[Any], Access | None]) -> Access | None:
    from treadle.dashboard import Access

    if callable(permission):
        return permission(request)
    user = request.user
    allowed = getattr(user, permission) if permission in _USER_MARKS else user.has_perm(permission)
    if not (user.is_active and allowed):
        return None
    return Access(actor=user.get_username(), can="all" if user.is_superuser else allowed_verbs(user))


def _access_in(request: Any) -> Access:
    access: Access = request.scope["environ"][_ACCESS]
    return access


def _refuse(request: Any) -> Any:
    """To the login, for a visitor who has not logged in. Others may not see it."""
    if getattr(request, "user", None) is None or request.user.is_authenticated or request.method != "GET":
        raise PermissionDenied
    return import_string("django.contrib.auth.views.redirect_to_login")(request.get_full_path())


# -- Django and WSGI -----------------------------------------------------------------------------------


def _environ(request: Any, path: str) -> dict[str, Any]:
    """The request, with the dashboard at the root. Under ASGI, Django has most of it in META too."""
    root = request.path[: len(request.path) - len(path)].rstrip("/")
    body = request.body
    return {
        **request.META,
        "SCRIPT_NAME": _as_latin(root),
        "PATH_INFO": _as_latin(f"/{path}"),
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.url_scheme": request.scheme,
    }


def _as_latin(text: str) -> str:
    """WSGI has the bytes of a path as a text of Latin-1."""
    return text.encode().decode("latin-1")


def _streams(request: Any, path: str) -> bool:
    """Whether the answer is a stream of events. Under WSGI it would keep a thread."""
    return path == "live" and request.method == "GET" and hasattr(request, "scope")


def _stream(web: WsgiDashboard, environ: dict[str, Any]) -> Any:
    stream = web.stream(environ)
    status, headers = stream.head()
    return StreamingHttpResponse(stream, status=status, headers=dict(headers))


def _answer(web: WsgiDashboard, environ: dict[str, Any]) -> Any:
    response = HttpResponse()

    def start(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
        response.status_code = int(status.partition(" ")[0])
        for name, value in headers:
            if name.lower() == "set-cookie":
                response.cookies.load(value)
            else:
                response.headers[name] = value

    response.content = b"".join(web(environ, start))
    return response


ItemVerb: TypeAlias = Literal["requeue", "cancel", "trigger", "delete"]
VERBS: Final[tuple[ItemVerb, ...]] = ("requeue", "cancel", "trigger", "delete")


def allowed_verbs(user: Any) -> set[ItemVerb]:
    """Those that this user has the permission for: `treadle.requeue_item`, and so on."""
    return {verb for verb in VERBS if user.has_perm(f"treadle.{verb}_item")}
