"""The tables of treadle, and the model that its permissions belong to."""

from __future__ import annotations

from treadle.contrib.django.django_api import BaseMigration, migrations, models
from treadle.contrib.django.tables import MakeTables


class Migration(BaseMigration):
    initial = True
    # The tables are made on a connection of treadle, which would wait for a transaction of this one.
    atomic = False
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Item",
            fields=[
                ("id", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("type", models.CharField(max_length=255)),
                ("status", models.CharField(max_length=20)),
            ],
            options={
                "db_table": "treadle_no_table",
                "permissions": (
                    ("requeue_item", "Can requeue item"),
                    ("cancel_item", "Can cancel item"),
                    ("trigger_item", "Can trigger item"),
                ),
                "managed": False,
                "default_permissions": ("view", "delete"),
            },
        ),
        MakeTables(version=6),
    )
