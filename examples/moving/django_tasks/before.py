"""Settings with django-tasks-db. Worker: python -m django db_worker --settings before"""

from shop.settings import *  # noqa: F403

INSTALLED_APPS = ["django_tasks", "django_tasks_db", "shop"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": []}}
