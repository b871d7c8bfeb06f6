from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from shop.models import Order, Product
from shop.tasks import pack


def products(request: HttpRequest) -> HttpResponse:
    return render(request, "shop/products.html", {"products": Product.objects.order_by("name")})


@require_POST
def buy(request: HttpRequest, product_id: int) -> HttpResponse:
    product = get_object_or_404(Product, pk=product_id)
    with transaction.atomic():
        order = Order.objects.create(product=product, email=request.POST["email"])
        pack.enqueue(order.pk)  # exists if and only if the order does
    return redirect("order", order.pk)


def order(request: HttpRequest, order_id: int) -> HttpResponse:
    return render(request, "shop/order.html", {"order": get_object_or_404(Order, pk=order_id)})
