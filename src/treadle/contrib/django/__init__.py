"""Treadle as the backend of Django's tasks. Needs the extra `treadle[django]`.

    INSTALLED_APPS = [..., "treadle.contrib.django"]
    TASKS = {"default": {"BACKEND": "treadle.contrib.django.TreadleBackend", "QUEUES": []}}

======================  ====================================================================
`backend`, `task`       what `TASKS` names: enqueue, results, transactions, options, schedules
`task_type`, `results`  a task as a work type, and an item as a `TaskResult`
`stores`                the app behind a backend, the databases of Django as stores, and an app for work
                        that is no task of Django
`tables`, `models`      `manage.py migrate`, and the permissions
`checks`                `manage.py check`
`admin`                 items in the admin
`dashboard_view`        the dashboard as a view; which actions on items a user may take
`testing`               tools for the tests of a project
`task_apps`             the apps for `manage.py treadle`
`connections`           the connections of Django around handlers
======================  ====================================================================

See docs/django.md.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("django") is None:
    raise ImportError("treadle.contrib.django needs Django: pip install 'treadle[django]'", name="django")
if find_spec("django.tasks") is None and find_spec("django_tasks") is None:
    raise ImportError(
        "treadle.contrib.django needs Django 6, or with an earlier one: pip install django-tasks",
        name="django_tasks",
    )

from .backend import TreadleBackend, task_schedule
from .dashboard_view import dashboard
from .stores import app
from .task import TreadleTask

__all__ = ["TreadleBackend", "TreadleTask", "app", "dashboard", "task_schedule"]
