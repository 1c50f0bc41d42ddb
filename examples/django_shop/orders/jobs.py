"""The jobs of this app: slotwise finds the module ``jobs`` of each app."""

from __future__ import annotations

from django.db import connection, transaction
from orders.models import Order

from slotwise import Daily, DistributedJob, JobContext, TaskContext, task
from slotwise.contrib.discovery import distributed_job


@task(name="send-mail")
def send_mail(ctx: TaskContext[dict[str, int]]) -> None:
    """Mark the order in the transaction that completes the task: exactly once."""
    with transaction.atomic():
        Order.objects.filter(pk=ctx.data["order"]).update(is_mailed=True)
        ctx.complete_in(connection)


@distributed_job
class NightlyReport(DistributedJob):
    name = "nightly-report"
    schedule = Daily("02:00", tz="Europe/Vienna")

    def __init__(self, report_bucket: str) -> None:
        self.bucket = report_bucket  # settings.REPORT_BUCKET

    def execute(self, ctx: JobContext) -> None:
        print(f"{Order.objects.count()} orders for {self.bucket}")
