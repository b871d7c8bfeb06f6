from django.urls import path

from shop import views

urlpatterns = [
    path("", views.products, name="products"),
    path("buy/<int:product_id>", views.buy, name="buy"),
    path("orders/<int:order_id>", views.order, name="order"),
]
