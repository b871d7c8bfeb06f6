"""Treadle as the backend of Django's tasks. Needs the extra `treadle[django]`.

    INSTALLED_APPS = [..., "treadle.contrib.django"]
    TASKS = {"default": {"BACKEND": "treadle.contrib.django.TreadleBackend", "QUEUES": []}}

======================  ====================================================================
`backend`, `task`       what `TASKS` names: enqueue, results, transactions, options of tasks
`task_type`, `results`  a task as a work type, and an item as a `TaskResult`
`known_tasks`           the tasks of the project
`stores`, `databases`   the app behind a backend, and the databases of Django as stores
`tables`, `models`      `manage.py migrate`, and the permissions
`checks`                `manage.py check`
`admin`                 items in the admin
`dashboard_view`        the dashboard as a view
`testing`               tools for the tests of a project
`task_apps`             the apps for `manage.py treadle`
`connections`           the connections of Django around handlers
`app`                   an app for work that is no task of Django
`finished`              the signal `task_finished`
======================  ====================================================================

See docs/django.md.
"""

from __future__ import annotations

from .app import app
from .backend import TreadleBackend
from .dashboard_view import dashboard
from .task import TreadleTask

__all__ = ["TreadleBackend", "TreadleTask", "app", "dashboard"]
