"""The application's jobs."""

from __future__ import annotations

from django.db import connection
from django.db.transaction import atomic

from slotwise import DistributedJob, JobContext, TaskContext, task
from slotwise.contrib.discovery import distributed_job


@task(name="send-mail")
def send_mail(ctx: TaskContext, order: int) -> None:
    from tests.contrib.djangoshop.models import Order

    with atomic():
        Order.objects.filter(pk=order).update(is_mailed=True)
        ctx.complete_in(connection)


@task(name="count-orders", record="all", result_retention="1d")
async def count_orders(ctx: JobContext) -> int:
    from tests.contrib.djangoshop.models import Order

    found: int = await Order.objects.acount()
    return found


@distributed_job
class Tidy(DistributedJob):
    name = "tidy"
    schedule = "0 2 * * *"

    def __init__(self, site: str) -> None:
        self.site = site

    def execute(self, ctx: JobContext) -> None: ...
