"""The tables of treadle, version 7."""

from __future__ import annotations

from treadle.contrib.django.django_api import BaseMigration
from treadle.contrib.django.tables import MakeTables


class Migration(BaseMigration):
    atomic = False
    dependencies = (("treadle", "0001_initial"),)
    operations = (MakeTables(version=7),)
