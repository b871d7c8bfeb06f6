"""Items in the admin, and the dashboard as a view."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.test import Client, override_settings

from tests.contrib.django.conftest import backend_of, task_settings
from tests.contrib.django.shop import tasks
from tests.contrib.django.test_backend import PATIENCE
from tests.support.django_connection import django_database
from treadle import Context, Result, Retry, work
from treadle.contrib.django.models import Item
from treadle.contrib.django.testing import run_enqueued

SETTINGS: dict[str, Any] = {
    "ROOT_URLCONF": "tests.contrib.django.urls",
    "SESSION_ENGINE": "django.contrib.sessions.backends.signed_cookies",
    "STATIC_URL": "/static/",
    "ALLOWED_HOSTS": ["testserver"],
    "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
}


@pytest.fixture
def site() -> Iterator[None]:
    """A project with users, in a database in memory, and its items in memory too."""
    given = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    with (
        django_database("default", given) as connection,
        override_settings(**SETTINGS),
        task_settings(url="memory://", retry=Retry(attempts=1)),
    ):
        with connection.schema_editor() as editor:
            for model in (ContentType, Permission, Group, User, LogEntry):
                editor.create_model(model)
        ContentType.objects.clear_cache()
        kind = ContentType.objects.create(app_label="treadle", model="item")
        for verb in ("view", "requeue", "cancel", "trigger", "delete"):
            Permission.objects.create(codename=f"{verb}_item", name=verb, content_type=kind)
        yield
        ContentType.objects.clear_cache()


def visitor(*verbs: str, staff: bool = True, superuser: bool = False, csrf: bool = False) -> Client:
    """A browser of a user with these permissions."""
    user = User.objects.create(username="ann", is_staff=staff, is_superuser=superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=[f"{verb}_item" for verb in verbs]))
    client = Client(enforce_csrf_checks=csrf, headers={"Sec-Fetch-Site": "same-origin"})
    client.force_login(user)
    return client


@work
def child() -> None: ...


@work
def parent(ctx: Context) -> Result[None]:
    return ctx.queue(child(), child())


def failed() -> str:
    """The id of an item that has failed."""
    result = tasks.attempt.enqueue(9)
    run_enqueued()
    return str(result.id)


LIST = "/admin/treadle/item/"


# -- the admin -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("site")
def test_the_admin_lists_items_and_shows_one() -> None:
    id, other = failed(), tasks.add.using(queue_name="mail").enqueue(1).id
    client = visitor("view")

    page = client.get(LIST).content.decode()
    assert id in page
    assert other in page
    assert 'name="action"' not in page, "there is nothing that this user may do"
    assert id not in client.get(LIST, {"status": "ready"}).content.decode()
    assert other in client.get(LIST, {"queue": "mail"}).content.decode()
    shown = client.get(f"{LIST}{id}/change/").content.decode()
    assert "OutOfStock" in shown
    assert "Traceback" in shown
    assert "Items" in client.get("/admin/").content.decode()


@pytest.mark.usefixtures("site")
def test_the_admin_turns_pages_by_a_cursor() -> None:
    ids = {tasks.add.enqueue(number).id for number in range(60)}
    client = visitor("view")

    first = client.get(LIST).content.decode()
    link = re.search(r'href="(\?[^"]*cursor=[^"]*)"', first)
    assert link is not None
    second = client.get(LIST + link[1].replace("&amp;", "&")).content.decode()
    found = [set(re.findall(r'value="([0-9a-f]{32})"', page)) for page in (first, second)]
    assert [len(each) for each in found] == [50, 10]
    assert found[0] | found[1] == ids


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("verb", ["requeue", "cancel", "trigger", "delete"])
def test_an_action_needs_its_permission(verb: str) -> None:
    id = tasks.add.enqueue(1).id
    others = {"requeue", "cancel", "trigger", "delete", "view"} - {verb}
    client = visitor(*others)

    assert client.post(LIST, {"action": verb, "_selected_action": [id]}).status_code == 403
    assert LogEntry.objects.count() == 0
    (state,) = backend_of().app.sync.get([id])
    assert state is not None
    assert state.status == "ready"


@pytest.mark.usefixtures("site")
def test_an_action_is_written_to_both_logs() -> None:
    id = failed()
    client = visitor("view", "requeue")

    answer = client.post(LIST, {"action": "requeue", "_selected_action": [id], "reason": "in stock"})

    assert answer.status_code == 302
    (state,) = backend_of().app.sync.get([id])
    assert state is not None
    assert state.status == "ready"
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.user.username, entry.change_message) == (id, "ann", "requeue: in stock")
    (audit,) = backend_of().app.sync.audits().entries
    assert (audit.verb, audit.actor, audit.reason, audit.address) == (
        "requeue",
        "ann",
        "in stock",
        "127.0.0.1",
    )


@pytest.mark.usefixtures("site")
def test_each_action_on_the_page_of_an_item() -> None:
    client = visitor("view", "cancel", "delete", "trigger")
    id = tasks.add.enqueue(1).id
    app = backend_of().app

    client.post(f"{LIST}{id}/change/", {"action": "trigger"})  # refused: it is not scheduled
    client.post(f"{LIST}{id}/change/", {"action": "cancel"})
    (state,) = app.sync.get([id])
    assert state is not None
    assert state.status == "cancelled"
    asked = client.post(f"{LIST}{id}/change/", {"action": "delete"}).content.decode()
    assert "1 item" in asked
    assert app.sync.get([id]) != [None], "it asks first"
    client.post(f"{LIST}{id}/change/", {"action": "delete", "confirmed": "yes"})
    assert app.sync.get([id]) == [None]
    assert [each.change_message for each in LogEntry.objects.order_by("pk")] == ["cancel", "delete"]


@pytest.mark.usefixtures("site")
def test_delete_asks_first_and_names_what_goes_with_it() -> None:
    client = visitor("view", "delete")
    app = backend_of().app
    app.register(parent, child)
    first = app.sync.enqueue(parent(), id="first")
    app.sync.start()
    first.group(PATIENCE)
    app.sync.stop()
    ids = [state.id for state in app.sync.list(group_id="first").items]
    other = tasks.add.enqueue(1).id
    assert len(ids) == 3

    page = client.post(LIST, {"action": "delete", "_selected_action": [*ids, other], "reason": "old"})
    text = page.content.decode()
    assert page.status_code == 200
    assert "Delete 2 groups?" in text
    assert "3 items" in text
    assert "<strong>1 not ended</strong>" in text
    assert 'value="old"' in text
    assert len(app.sync.list().items) == 4, "nothing is deleted yet"

    form = re.findall(r'<input[^>]* name="(\w+)" value="([^"]*)"', text)
    again = {name: [value for each, value in form if each == name] for name, _ in form}
    client.post(LIST, again)
    assert app.sync.list().items == ()
    assert [each.change_message for each in LogEntry.objects.all()] == ["delete: old"] * 2


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"action": ""}, "No action is chosen"),
        ({}, "No action is"),
        ({"action": "cancel"}, "No item is ticked"),
    ],
)
def test_nothing_happens_without_an_action_and_items(form: dict[str, str], message: str) -> None:
    client = visitor("view", "cancel")
    id = tasks.add.enqueue(1).id
    page = client.get(LIST).content.decode()
    assert re.search(r'<select name="action"[^>]*><option value="" selected>', page), "none is chosen yet"
    chosen = {} if form.get("action") else {"_selected_action": [id]}
    assert message in client.post(LIST, {**form, **chosen}, follow=True).content.decode()
    (state,) = backend_of().app.sync.get([id])
    assert state is not None
    assert state.status == "ready"


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"{LIST}add/", 403),
        (f"{LIST}unknown/change/", 404),
        (f"{LIST}unknown/delete/", 403),
        (f"{LIST}?status=nonsense", 404),
        (f"{LIST}?backend=nowhere", 404),
    ],
)
def test_what_the_admin_does_not_do(path: str, code: int) -> None:
    assert visitor(superuser=True).get(path).status_code == code


@pytest.mark.usefixtures("site")
def test_the_admin_is_closed() -> None:
    assert visitor().get(LIST).status_code == 403
    assert Client().get(LIST).status_code == 302


@pytest.mark.usefixtures("site")
def test_the_admin_wants_its_token() -> None:
    client = visitor("cancel", csrf=True)
    assert client.post(LIST, {"action": "cancel"}).status_code == 403


def test_items_have_no_queries() -> None:
    with pytest.raises(TypeError, match="read them with"):
        Item.objects.all()
    assert str(Item(id="1", type="shop.send")) == "shop.send 1"


# -- the dashboard -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("site")
def test_the_dashboard_is_for_those_who_may_see_it() -> None:
    assert Client().get("/board/").headers["Location"].startswith("/accounts/login/?next=/board/")
    client = visitor()
    assert client.get("/board/").status_code == 200
    assert client.get("/readers/").status_code == 403
    User.objects.update(is_staff=False)
    assert client.get("/board/").status_code == 403


@pytest.mark.usefixtures("site")
def test_the_dashboard_shows_and_changes_items() -> None:
    id = failed()
    client = visitor("requeue")

    page = client.get("/board/").content.decode()
    assert "/board/static/" in page
    asset = re.search(r'(/board/static/[^"]+)"', page)
    assert asset is not None
    assert client.get(asset[1]).status_code == 200
    shown = client.get(f"/board/items/{id}").content.decode()
    assert "OutOfStock" in shown

    app = backend_of().app
    assert client.post(f"/board/items/{id}/cancel").status_code == 403
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    assert client.post(f"/board/items/{id}/requeue", headers=elsewhere).status_code == 403
    assert app.sync.audits().entries == ()
    form = "application/x-www-form-urlencoded"
    answer = client.post(f"/board/items/{id}/requeue", "reason=in+stock", content_type=form)
    assert (answer.status_code, answer.headers["Location"].partition("?")[0]) == (303, f"/board/items/{id}")
    (audit,) = app.sync.audits().entries
    assert (audit.verb, audit.actor, audit.reason) == ("requeue", "ann", "in stock")
