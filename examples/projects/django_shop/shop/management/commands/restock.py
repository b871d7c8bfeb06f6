from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction
from django.db.models import F

from shop.models import Order, Product
from shop.tasks import pack


class Command(BaseCommand):
    help = "Put goods on a shelf, and pack the orders that wait for them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("count", type=int)

    def handle(self, *args: Any, name: str, count: int, **options: Any) -> None:
        with transaction.atomic():
            product, _ = Product.objects.get_or_create(name=name)
            Product.objects.filter(pk=product.pk).update(stock=F("stock") + count)
            waiting = Order.objects.filter(product=product, status=Order.Status.WAITING).order_by("placed_at")
            for order in waiting[:count]:
                order.status = Order.Status.PLACED
                order.save()
                pack.enqueue(order.pk)
        self.stdout.write(f"{count} x {name}")
