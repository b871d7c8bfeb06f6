"""The tasks. Each may run twice, if a worker dies at the wrong moment. So each looks at what is done."""

from django.core.mail import send_mail
from django.db import transaction
from django.db.models import F
from treadle import Retry

from shop.models import Order, Product

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task
def pack(order_id: int) -> str:
    """Take the goods from the shelf, and have the order confirmed. Without goods it waits for `restock`."""
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=order_id)
        if order.status != Order.Status.PLACED:
            return order.status
        shelf = Product.objects.filter(pk=order.product_id, stock__gt=0)
        if shelf.update(stock=F("stock") - 1):
            order.status = Order.Status.PACKED
            confirm.enqueue(order_id)  # a part of this transaction
        else:
            order.status = Order.Status.WAITING
        order.save()
    return order.status


# A mail server may be away for long. Mails have a queue of their own: they do not keep parcels waiting.
@task(queue_name="mail", retry=Retry(attempts=10, base=60, max=3600), timeout=30)
def confirm(order_id: int) -> None:
    order = Order.objects.select_related("product").get(pk=order_id)
    if order.status == Order.Status.CONFIRMED:
        return
    send_mail("Your order", f"We have packed your {order.product}.", "shop@example.org", [order.email])
    order.status = Order.Status.CONFIRMED
    order.save()
