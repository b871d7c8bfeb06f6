"""Item: the model of items, for permissions and the admin. It has no table of its own: `app.list` reads."""

from __future__ import annotations

from typing import Any, NoReturn

from .django_api import Manager, Model, models


class NoQueries(Manager):
    """Items are read with the app, from any store, page by page."""

    def get_queryset(self) -> NoReturn:
        raise TypeError(
            "items have no table of Django: read them with `app.sync.list(...)` or `app.sync.get`"
        )


class Item(Model):
    id: Any = models.CharField(primary_key=True, max_length=255)
    type: Any = models.CharField(max_length=255)
    status: Any = models.CharField(max_length=20)

    objects = NoQueries()

    class Meta:
        app_label = "treadle"
        managed = False
        db_table = "treadle_no_table"
        default_permissions = ("view", "delete")
        permissions = (
            ("requeue_item", "Can requeue item"),
            ("cancel_item", "Can cancel item"),
            ("trigger_item", "Can trigger item"),
        )

    def __str__(self) -> str:
        return f"{self.type} {self.id}"
