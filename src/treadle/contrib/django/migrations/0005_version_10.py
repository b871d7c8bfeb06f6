"""The tables of treadle, version 10."""

from __future__ import annotations

from treadle.contrib.django.django_api import BaseMigration
from treadle.contrib.django.tables import MakeTables


class Migration(BaseMigration):
    atomic = False
    dependencies = (("treadle", "0004_version_9"),)
    operations = (MakeTables(version=10),)
