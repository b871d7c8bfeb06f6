"""Items in the admin of Django: a list, a page for each, and actions. Nothing can be edited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, get_args

from treadle.app import Treadle
from treadle.base.timing import to_datetime
from treadle.base.wording import capped, plural
from treadle.errors import InputError, TreadleError, message_of
from treadle.item import TERMINAL, ItemState, Status
from treadle.sync import SyncClient

from .backend import TreadleBackend
from .dashboard_view import VERBS, ItemVerb, allowed_verbs
from .django_api import PermissionDenied, task_backends
from .models import Item

if TYPE_CHECKING:
    CHANGE: Any
    ContentType: Any
    HttpResponseRedirect: Any
    LogEntry: Any
    TemplateResponse: Any
    messages: Any
    reverse: Any
    site: Any = ...

    class Http404(Exception): ...

    class ModelAdmin:
        admin_site: Any

else:
    from django.contrib import messages
    from django.contrib.admin import ModelAdmin, site
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.contenttypes.models import ContentType
    from django.http import Http404, HttpResponseRedirect
    from django.template.response import TemplateResponse
    from django.urls import reverse

PAGE: Final = 50
MEMBERS: Final = 100
"""Members of a group that are counted before it is deleted."""
STATUSES: Final = get_args(Status)


class ItemAdmin(ModelAdmin):
    """Reads through the app: pages by cursor, without counting. Changes need the permissions of the model
    `Item`, and are written to the audit of treadle and to the log of the admin."""

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: Any, extra_context: Mapping[str, Any] | None = None) -> Any:
        """The list of items, and the actions on those that are ticked."""
        alias, app = _backend_of(request)
        if request.method == "POST":
            ids = request.POST.getlist("_selected_action")
            return self._chosen(request, ids) or self._act(request, app, ids)
        self._check_view(request)
        given: dict[str, Any] = {
            name: request.GET.get(name) or None for name in ("status", "type", "queue", "cursor")
        }
        try:
            page = app.sync.list(limit=PAGE, **given)
        except InputError as error:
            raise Http404(message_of(error)) from error
        context = {
            "items": [_row(state) for state in page.items],
            "cursor": page.cursor,
            "given": given,
            "statuses": STATUSES,
            "aliases": [each for each in task_backends if isinstance(task_backends[each], TreadleBackend)],
            "alias": alias,
        }
        return self._page(request, "changelist", "Items", context, extra_context)

    def change_view(
        self, request: Any, object_id: str, form_url: str = "", extra_context: Mapping[str, Any] | None = None
    ) -> Any:
        """One item."""
        alias, app = _backend_of(request)
        if request.method == "POST":
            return self._act(request, app, [object_id])
        self._check_view(request)
        state = _read(app, object_id)
        shown = app.values.item(state)
        context = {
            "item": _row(state),
            "facts": [(name, value) for name, value in shown.items() if value not in (None, "", [], {})],
            "history": [{"attempt": each, "at": to_datetime(each.at)} for each in state.history],
            "alias": alias,
        }
        return self._page(request, "item", f"{state.type} {state.id}", context, extra_context)

    def delete_view(
        self, request: Any, object_id: str, extra_context: Mapping[str, Any] | None = None
    ) -> Any:
        """Items are deleted by the action, with their groups."""
        raise PermissionDenied

    def _page(
        self, request: Any, name: str, title: str, context: dict[str, Any], extra: Mapping[str, Any] | None
    ) -> Any:
        verbs = [verb for verb in VERBS if verb in allowed_verbs(request.user)]
        site = self.admin_site.each_context(request)
        shown = {**site, "title": title, "verbs": verbs, "opts": _META, **context, **(extra or {})}
        return TemplateResponse(request, f"admin/treadle/item/{name}.html", shown)

    def _check_view(self, request: Any) -> None:
        if not request.user.has_perm("treadle.view_item"):
            raise PermissionDenied

    # -- actions ---------------------------------------------------------------------------------------

    def _chosen(self, request: Any, ids: list[str]) -> Any:
        """What to answer if no action was chosen, or no item. None: both were."""
        if request.POST.get("action") and ids:
            return None
        what = "item is ticked" if request.POST.get("action") else "action is chosen"
        messages.warning(request, f"No {what}: nothing has changed.")
        return _to_list(request)

    def _act(self, request: Any, app: Treadle, ids: list[str]) -> Any:
        """Carry out an action on these items, one by one: what one refuses does not stop the others. Before
        it deletes, it asks."""
        verb = request.POST.get("action")
        if verb not in VERBS or verb not in allowed_verbs(request.user):
            raise PermissionDenied
        reason = request.POST.get("reason", "")
        if verb == "delete" and not request.POST.get("confirmed"):
            groups = list(_groups(app, ids))
            title = f"Delete {plural(len(groups), 'group')}?"
            context = {"groups": groups, "reason": reason, "back": request.get_full_path()}
            return self._page(request, "delete", title, context, None)
        client = app.by(request.user.get_username(), reason=reason, address=_address(request)).sync
        done = 0
        for id in ids:
            try:
                state = _read(app, id)
                _CHANGES[verb](client, state)
            except (TreadleError, Http404) as error:
                messages.error(request, message_of(error))
            else:
                _log(request.user, state, verb, reason)
                done += 1
        if done:
            messages.success(request, f"{verb}: {plural(done, 'item')}.")
        return _to_list(request)


_LIST: Final = "admin:treadle_item_changelist"
_META: Final[Any] = getattr(Item, "_meta")  # noqa: B009
_CHANGES: Final[Mapping[ItemVerb, Callable[[SyncClient, ItemState], object]]] = {
    "requeue": lambda client, state: client.requeue(state.id, cancelled=True),
    "cancel": lambda client, state: client.cancel(state.id),
    "trigger": lambda client, state: client.trigger(state.id),
    "delete": lambda client, state: client.delete(state.group_id),
}


def _to_list(request: Any) -> Any:
    return HttpResponseRedirect(f"{reverse(_LIST)}?{request.GET.urlencode()}".rstrip("?"))


def _groups(app: Treadle, ids: list[str]) -> Iterator[dict[str, Any]]:
    """The groups of these items: what is deleted with them."""
    found = {state.group_id: state for state in app.sync.get(ids) if state is not None}
    for group_id, state in found.items():
        page = app.sync.list(group_id=group_id, limit=MEMBERS)
        still_open = sum(each.status not in TERMINAL for each in page.items)
        more = page.cursor is not None
        yield {
            "item": _row(state),
            "members": plural(len(page.items), "item", more),
            "open": capped(still_open, more) if still_open else "",
        }


def _log(user: Any, state: ItemState, verb: str, reason: str) -> None:
    """Write to the log of the admin, beside the audit of treadle."""
    LogEntry.objects.create(
        user_id=user.pk,
        content_type_id=ContentType.objects.get_for_model(Item).pk,
        object_id=state.id,
        object_repr=f"{state.type} {state.id}"[:200],
        action_flag=CHANGE,
        change_message=f"{verb}: {reason}" if reason else verb,
    )


def _address(request: Any) -> str:
    return str(request.META.get("REMOTE_ADDR") or "")


def _backend_of(request: Any) -> tuple[str, Treadle]:
    """The backend that the request names, or the first one of treadle."""
    aliases = [each for each in task_backends if isinstance(task_backends[each], TreadleBackend)]
    alias = request.GET.get("backend") or next(iter(aliases), "")
    backend = task_backends[alias] if alias in aliases else None
    if not isinstance(backend, TreadleBackend):
        raise Http404("no such backend in TASKS")
    return alias, backend.app


def _read(app: Treadle, id: str) -> ItemState:
    try:
        (state,) = app.sync.get([id])
    except InputError:
        state = None
    if state is None:
        raise Http404("there is no such item")
    return state


def _row(state: ItemState) -> dict[str, Any]:
    return {
        "id": state.id,
        "type": state.type,
        "status": state.status,
        "queue": state.queue,
        "tenant": state.tenant,
        "attempt": state.attempt,
        "error": state.error or "",
        "queued_at": to_datetime(state.queued_at),
    }


site.register(Item, ItemAdmin)
