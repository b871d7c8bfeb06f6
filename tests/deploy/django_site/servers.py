"""The site for web servers: `gunicorn tests.deploy.django_site.servers:wsgi`, `uvicorn ...:asgi`."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.deploy.django_site.settings")

from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application

wsgi = get_wsgi_application()
asgi = get_asgi_application()

if os.environ.get("SHOP_USED_BEFORE_FORK"):
    from tests.deploy.django_site.tasks import double

    double.enqueue(0)
