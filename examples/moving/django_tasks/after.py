"""Settings with treadle. Worker: python -m django treadle worker --settings after"""

from shop.settings import *  # noqa: F403

INSTALLED_APPS = ["django_tasks", "treadle.contrib.django", "shop"]
TASKS = {"default": {"BACKEND": "treadle.contrib.django.TreadleBackend", "QUEUES": []}}
