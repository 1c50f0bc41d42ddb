"""Batches of Django's querysets, in transactions of Django's own connection."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from django.db import connection

from slotwise import DistributedJob, Every, JobContext
from slotwise.contrib.batches import batches
from slotwise.contrib.django import registry
from slotwise.spi import Settled
from slotwise.testing import ManualClock, ManualWorker


def run(url: str, handler: object) -> Settled:
    """Run a handler as a slot of a job; return how it was settled."""
    members = {
        "name": "mails",
        "schedule": Every("1h"),
        "execute": staticmethod(handler),
    }
    job = type("Mails", (DistributedJob,), members)
    clock = ManualClock(registry().inspect.now() + timedelta(seconds=1))
    with ManualWorker([job], url, clock, foreign_rows=True) as worker:
        worker.tick("1h")
        (ended,) = [one for one in worker.run_due() if isinstance(one, Settled)]
    return ended


def orders(count: int) -> None:
    from tests.contrib.djangoshop.models import Order

    Order.objects.bulk_create(
        [Order(email=f"{n % 3}@shop.example") for n in range(1, count + 1)]
    )


@pytest.mark.parametrize("key", [None, ["email", "id"]], ids=["pk", "two columns"])
def test_rows_that_say_whether_they_are_done(shop: str, key: list[str] | None) -> None:
    """Each is processed once; those that another transaction has locked are left to it."""
    from tests.contrib.djangoshop.models import Order

    orders(11)
    seen: list[int] = []
    first = Order.objects.order_by("pk").first()
    assert first is not None
    locker = psycopg.connect(shop)
    locker.execute(
        "SELECT 1 FROM djangoshop_order WHERE id = %s FOR UPDATE", [first.pk]
    )

    def execute(ctx: JobContext) -> None:
        wanted = Order.objects.filter(is_mailed=False)
        found = batches(ctx, wanted, size=4, key=key, wait_for_locked="0s")
        for batch in found:
            with batch as rows:
                assert connection.in_atomic_block
                seen.extend(one.pk for one in rows)
                for one in rows:
                    one.is_mailed = True
                Order.objects.bulk_update(rows, ["is_mailed"])
        assert not found.is_complete
        assert not connection.in_atomic_block

    ended = run(shop, execute)
    locker.close()
    assert ended.outcome == "succeeded", ended
    assert len(seen) == len({*seen}) == 10
    left = Order.objects.filter(is_mailed=False)
    assert [one.pk for one in left] == [first.pk]


@pytest.mark.parametrize("order", [None, "email", "-email", ["-email", "id"]])
def test_a_cursor_goes_on_in_any_order(
    shop: str, order: str | list[str] | None
) -> None:
    """Also where many rows have the same value; an attempt that failed resumes."""
    from tests.contrib.djangoshop.models import Order

    orders(11)
    seen: list[int] = []

    def execute(ctx: JobContext) -> None:
        every = Order.objects.all()
        for batch in batches(ctx, every, size=4, order=order, cursor=True, total=True):
            with batch as rows:
                seen.extend(one.pk for one in rows)

    ended = run(shop, execute)
    assert ended.outcome == "succeeded", ended
    assert len(seen) == len({*seen}) == 11


def test_a_row_that_fails_is_set_aside(shop: str) -> None:
    """What the batch has written before is rolled back with it."""
    from tests.contrib.djangoshop.models import Order

    orders(6)
    bad = Order.objects.order_by("pk")[2].pk

    def execute(ctx: JobContext) -> None:
        wanted = Order.objects.filter(is_mailed=False)
        for batch in batches(ctx, wanted, size=4, tries=1, retry_pause="0s"):
            with batch as rows:
                for one in rows:
                    one.is_mailed = True
                    one.save()
                    if one.pk == bad:
                        raise ValueError("no mail for this one")

    ended = run(shop, execute)
    assert ended.outcome == "succeeded", ended
    assert [one.pk for one in Order.objects.filter(is_mailed=False)] == [bad]


def test_a_slice_is_refused(shop: str) -> None:
    from tests.contrib.djangoshop.models import Order

    def execute(ctx: JobContext) -> None:
        batches(ctx, Order.objects.all()[:5])

    ended = run(shop, execute)
    assert "the queryset has a limit already" in (ended.error or "")
