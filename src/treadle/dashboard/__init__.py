"""A dashboard for operators, as an ASGI app (extra `web`).

from treadle.dashboard import Access, dashboard

async def access(request):
    return Access(actor=request.user.email, can="all" if request.user.is_admin else "read")

web.mount("/treadle", dashboard(app, access=access))
"""

from __future__ import annotations

try:
    import jinja2 as _jinja2  # noqa: F401
    import starlette as _starlette  # noqa: F401
except ImportError as error:
    raise ImportError("the dashboard needs starlette and jinja2: pip install 'treadle[web]'") from error

from .access import ACTIONS, Access, Action
from .app import dashboard

__all__ = ["ACTIONS", "Access", "Action", "dashboard"]
