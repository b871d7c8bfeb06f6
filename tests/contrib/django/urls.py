"""The addresses of a project."""

from django.contrib import admin
from django.urls import path

from treadle.contrib.django import dashboard

urlpatterns = [
    path("admin/", admin.site.urls),
    path("board/", dashboard()),
    path("readers/", dashboard(permission="treadle.view_item", title="For readers")),
]
