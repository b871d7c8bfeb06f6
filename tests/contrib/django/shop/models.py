"""The data of a shop."""

from django.db import models


class Order(models.Model):
    number = models.IntegerField()

    class Meta:
        app_label = "shop"
