from django.contrib import admin
from django.urls import include, path
from treadle.contrib.django import dashboard

urlpatterns = [
    path("", include("shop.urls")),
    path("admin/", admin.site.urls),
    path("treadle/", dashboard(title="Shop")),
]
