"""Most tests keep items in memory, in the transaction of the test. The last ones use the real store."""

from io import StringIO

from django.contrib.auth.models import User
from django.core import mail
from django.core.management import call_command
from django.db import transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.urls import reverse
from treadle.contrib.django.testing import close_apps, in_memory, run_enqueued

from shop.models import Order, Product
from shop.tasks import confirm, pack

SMTP = "django.core.mail.backends.smtp.EmailBackend"


@in_memory()
class OrderTests(TestCase):
    def setUp(self) -> None:
        self.lamp = Product.objects.create(name="lamp", stock=1)

    def buy(self) -> Order:
        response = self.client.post(reverse("buy", args=[self.lamp.pk]), {"email": "ann@example.org"})
        order = Order.objects.latest("pk")
        self.assertRedirects(response, reverse("order", args=[order.pk]))
        return order

    def test_an_order_is_packed_and_confirmed(self) -> None:
        order = self.buy()
        page = reverse("order", args=[order.pk])
        self.assertContains(self.client.get(page), "Placed")
        self.assertEqual([result.task.name for result in run_enqueued()], ["pack", "confirm"])
        self.assertContains(self.client.get(page), "Confirmed")
        self.assertEqual(
            [(each.to, each.body) for each in mail.outbox], [([order.email], "We have packed your lamp.")]
        )
        self.assertContains(self.client.get(reverse("products")), "0 in stock")

    def test_what_is_sold_out_waits_for_goods(self) -> None:
        first, second = self.buy(), self.buy()
        run_enqueued()
        second.refresh_from_db()
        self.assertEqual(second.status, "waiting")
        call_command("restock", "lamp", "3", stdout=StringIO())
        run_enqueued()
        first.refresh_from_db()
        second.refresh_from_db()
        self.lamp.refresh_from_db()
        self.assertEqual((first.status, second.status, self.lamp.stock), ("confirmed", "confirmed", 2))

    def test_tasks_that_run_twice_do_it_once(self) -> None:
        order = self.buy()
        run_enqueued()
        self.assertEqual(pack.func(order.pk), "confirmed")
        confirm.func(order.pk)
        self.lamp.refresh_from_db()
        self.assertEqual((self.lamp.stock, len(mail.outbox)), (0, 1))

    @override_settings(EMAIL_BACKEND=SMTP, EMAIL_HOST="127.0.0.1", EMAIL_PORT=1)
    def test_a_mail_server_that_is_away_is_tried_again(self) -> None:
        order = self.buy()
        packed, confirmed = run_enqueued()
        self.assertEqual((packed.status, confirmed.status), ("SUCCESSFUL", "READY"))
        self.assertIs(confirmed.errors[0].exception_class, ConnectionRefusedError)
        order.refresh_from_db()
        self.assertEqual(order.status, "packed")

    def test_staff_send_a_confirmation_again(self) -> None:
        self.client.force_login(User.objects.create_superuser("ana"))
        order = self.buy()
        run_enqueued()
        page = reverse("admin:shop_order_changelist")
        self.client.post(page, {"action": "confirm_again", "_selected_action": [order.pk]})
        run_enqueued()
        self.assertEqual(len(mail.outbox), 2)
        self.assertContains(self.client.get(page), "Confirmed")
        self.assertContains(self.client.get("/treadle/"), "Shop")


class StoreTests(TransactionTestCase):
    """With the real store, in the database of the tests."""

    def setUp(self) -> None:
        self.lamp = Product.objects.create(name="lamp", stock=1)

    @classmethod
    def tearDownClass(cls) -> None:
        close_apps()
        super().tearDownClass()

    def test_no_task_without_an_order(self) -> None:
        with self.assertRaises(ConnectionError), transaction.atomic():
            order = Order.objects.create(product=self.lamp, email="ann@example.org")
            pack.enqueue(order.pk)
            raise ConnectionError("the server dies before the commit")
        self.assertEqual(run_enqueued(), [])

    def test_an_order_and_its_task(self) -> None:
        self.client.post(reverse("buy", args=[self.lamp.pk]), {"email": "ann@example.org"})
        self.assertEqual([result.status for result in run_enqueued()], ["SUCCESSFUL", "SUCCESSFUL"])
