"""Tests of the project, on Django's test database, with slotwise's test kit."""

from __future__ import annotations

from datetime import timedelta

from django.test import TestCase, TransactionTestCase
from orders.jobs import send_mail
from orders.models import Order

from slotwise.contrib.django import joining, registry
from slotwise.testing import ManualClock, ManualWorker


class ViewTest(TestCase):
    """TestCase rolls back, and the tasks with it."""

    def test_an_order_schedules_its_mail(self) -> None:
        self.client.post("/orders?email=ann@example.com")
        order = Order.objects.get()
        (task,) = registry().client.list(send_mail, connection=joining())
        found = registry().client.get(send_mail, task.id, connection=joining())
        self.assertEqual(found.data, {"order": order.pk})

    def test_nothing_is_left_of_other_tests(self) -> None:
        self.assertEqual(registry().client.list(send_mail), [])


class JobTest(TransactionTestCase):
    """TransactionTestCase commits, so a worker sees the tasks."""

    def test_the_mail_is_sent(self) -> None:
        self.client.post("/orders?email=ann@example.com")
        now = registry().inspect.now() + timedelta(seconds=1)
        with ManualWorker(
            registry(), registry().settings.database_url, ManualClock(now)
        ) as worker:
            self.assertEqual(
                [event.outcome for event in worker.run_due()], ["succeeded"]
            )
        self.assertTrue(Order.objects.get().is_mailed)
