"""The tables of treadle, version 8."""

from __future__ import annotations

from treadle.contrib.django.django_api import BaseMigration
from treadle.contrib.django.tables import MakeTables


class Migration(BaseMigration):
    atomic = False
    dependencies = (("treadle", "0002_version_7"),)
    operations = (MakeTables(version=8),)
