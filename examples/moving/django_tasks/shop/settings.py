"""Settings that are the same before and after."""

import os

from psycopg.conninfo import conninfo_to_dict

_store = conninfo_to_dict(os.environ.get("STORE_URL", "postgresql://127.0.0.1/shop"))

SECRET_KEY = "not secret"
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _store.get("dbname", ""),
        "USER": _store.get("user", ""),
        "PASSWORD": _store.get("password", ""),
        "HOST": _store.get("host", ""),
        "PORT": _store.get("port", ""),
    }
}
