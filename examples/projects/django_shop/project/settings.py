"""Settings. What treadle needs is at the end."""

import os
from pathlib import Path

import django

BASE_DIR = Path(__file__).parents[1]
DATA = Path(os.environ.get("SHOP_DATA", BASE_DIR))

DEBUG = "SHOP_SECRET" not in os.environ
SECRET_KEY = os.environ.get("SHOP_SECRET", "for development only")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
LOGIN_URL = "admin:login"
STATIC_URL = "static/"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# ---------------------------------------------------------------------------------------- treadle

INSTALLED_APPS += ["treadle.contrib.django"]
if django.VERSION < (6,):
    INSTALLED_APPS += ["django_tasks"]

TASKS = {"default": {"BACKEND": "treadle.contrib.django.TreadleBackend", "QUEUES": []}}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA / "db.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        "TEST": {"NAME": DATA / "test.sqlite3"},  # in memory, treadle could not reach it
    }
}
