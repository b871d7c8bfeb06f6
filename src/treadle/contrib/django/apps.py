"""The Django app `treadle`."""

from __future__ import annotations

from .django_api import AppConfig, Tags, post_migrate, register, setting_changed


class TreadleConfig(AppConfig):
    name = "treadle.contrib.django"
    label = "treadle"
    verbose_name = "Treadle"
    default_auto_field = "django.db.models.AutoField"

    def ready(self) -> None:
        from .checks import check_stores
        from .stores import forget_changed
        from .tables import make_current

        setting_changed.connect(forget_changed)
        post_migrate.connect(make_current, sender=self)
        register(check_stores, Tags.database)
