"""The apps of `TASKS`, for the command line: `treadle worker treadle.contrib.django.task_apps:default`.

A worker process imports this module. It sets Django up first, and the app that it gets has every task of the
project. `manage.py treadle` names it.
"""

from __future__ import annotations

from treadle.app import Treadle

from .django_api import apps, setup

if not apps.ready:
    setup()


def __getattr__(name: str) -> Treadle:
    if name.startswith("_"):
        raise AttributeError(name)
    from .backend import TreadleBackend
    from .django_api import task_backends
    from .task import discover
    from .task_type import type_of

    backend = task_backends[name]
    if not isinstance(backend, TreadleBackend):
        raise AttributeError(name)
    app = backend.app
    for task in discover():
        type_of(task, app, name)
    return app
