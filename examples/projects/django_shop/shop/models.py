from django.db import models


class Product(models.Model):
    name = models.CharField(max_length=100, unique=True)
    stock = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    class Status(models.TextChoices):
        PLACED = "placed"
        WAITING = "waiting", "waiting for goods"
        PACKED = "packed"
        CONFIRMED = "confirmed"

    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    email = models.EmailField()
    status = models.CharField(max_length=10, choices=Status, default=Status.PLACED)
    placed_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.product} for {self.email}"
