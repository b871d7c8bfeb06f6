from django.contrib import admin
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest

from shop.models import Order, Product
from shop.tasks import confirm


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ["name", "stock"]


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ["product", "email", "status", "placed_at"]
    list_filter = ["status", "product"]
    actions = ["confirm_again"]

    @admin.action(description="Send the confirmation again")
    def confirm_again(self, request: HttpRequest, orders: QuerySet[Order]) -> None:
        with transaction.atomic():
            for order in orders.filter(status=Order.Status.CONFIRMED):
                order.status = Order.Status.PACKED
                order.save()
                confirm.using(key=f"order {order.pk}").enqueue(order.pk)  # two clicks are one mail
