"""What `admin` uses of Django's own apps. They can be imported only when all apps are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    CHANGE: Any
    ContentType: Any
    HttpResponseRedirect: Any
    LogEntry: Any
    TemplateResponse: Any
    messages: Any
    reverse: Any
    site: Any

    class Http404(Exception): ...

    class ModelAdmin:
        admin_site: Any

else:
    from django.contrib import messages
    from django.contrib.admin import ModelAdmin, site
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.contenttypes.models import ContentType
    from django.http import Http404, HttpResponseRedirect
    from django.template.response import TemplateResponse
    from django.urls import reverse

__all__ = [
    "CHANGE",
    "ContentType",
    "Http404",
    "HttpResponseRedirect",
    "LogEntry",
    "ModelAdmin",
    "TemplateResponse",
    "messages",
    "reverse",
    "site",
]
