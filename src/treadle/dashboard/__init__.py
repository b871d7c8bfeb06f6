"""A dashboard for operators, as an ASGI app (extra `web`).

from treadle.dashboard import Access, dashboard

async def access(request):
    return Access(actor=request.user.email, can="all" if request.user.is_admin else "read")

web.mount("/treadle", dashboard(app, access=access))

    app, wsgi                   its routes, one for each page and action, as ASGI and as WSGI
    site                        one dashboard: settings, templates, and which requests are refused
    access, visit               who a visitor is and what is allowed; one request
    views/                      pages, one module each
    actions/                    what forms do: act (many items), item_verbs, edit, enqueue, fleet
    live                        what goes on beside requests: pages that change by themselves, reads shared by
                                visitors, portions of bulk actions in a fleet without workers for them
    counting                    how many items there are, where a page has no time to count them
    queue_states, throughput    how queues stand; rates
    backlog                     how much was due in a queue over time
    charts, timeline            pictures
    cell_labels                 tables whose rows are cards on a narrow screen
    steps                       what an item has recorded, how far it is, the end of its stream
    forms, notices, addresses   what was sent; what is said of it; where pages are
    payloads, template_filters  values, instants and numbers as a page shows them
    cron_words                  when a schedule is due, in words
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
