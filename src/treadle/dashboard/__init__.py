"""A dashboard for operators, as an ASGI app (extra `web`).

from treadle.dashboard import Access, dashboard

async def access(request):
    return Access(actor=request.user.email, can="all" if request.user.is_admin else "read")

web.mount("/treadle", dashboard(app, access=access))
"""

from __future__ import annotations

from importlib.util import find_spec

for _name in ("jinja2", "starlette"):
    if find_spec(_name) is None:
        raise ImportError(f"the dashboard needs {_name}: pip install 'treadle[web]'", name=_name)

from .access import ACTIONS, Access, Action  # noqa: E402
from .app import dashboard  # noqa: E402
from .wsgi import dashboard_wsgi  # noqa: E402

__all__ = ["ACTIONS", "Access", "Action", "dashboard", "dashboard_wsgi"]
