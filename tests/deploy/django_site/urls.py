"""The addresses of the site: a view that enqueues, and the dashboard, which every visitor may see."""

from __future__ import annotations

import os
from typing import Any

from django.db import transaction
from django.http import JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from tests.deploy.django_site.tasks import double
from treadle.contrib.django import dashboard
from treadle.dashboard import Access


@csrf_exempt
def enqueue(request: Any, number: int) -> Any:
    with transaction.atomic():
        result = double.enqueue(number)
    return JsonResponse({"id": result.id, "pid": os.getpid()}, status=202)


def anyone(request: Any) -> Access:
    return Access(actor="ann", can="all")


urlpatterns = [path("double/<int:number>", enqueue), path("board/", dashboard(permission=anyone))]
