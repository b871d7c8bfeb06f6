"""The settings of a small site for tests that start web servers. SHOP_URL names its PostgreSQL database."""

import os
from urllib.parse import parse_qs, urlsplit

import django

_parts = urlsplit(os.environ["SHOP_URL"])
_where = parse_qs(_parts.query)
_tasks = [] if django.VERSION >= (6,) else ["django_tasks"]

SECRET_KEY = "a secret of tests"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "tests.deploy.django_site.urls"
TIME_ZONE = "UTC"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    *_tasks,
    "treadle.contrib.django",
    "tests.deploy.django_site",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _parts.path.removeprefix("/"),
        "USER": _parts.username or "postgres",
        "HOST": _where["host"][0],
        "PORT": _where["port"][0],
    }
}
TASKS = {"default": {"BACKEND": "treadle.contrib.django.TreadleBackend", "QUEUES": []}}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"django.request": {"handlers": ["console"], "level": "ERROR"}},
}
