"""The admin's pages as models: permissions and places in the menu, without tables."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class NoRows(models.Manager):
    """Finds nothing and sends no query, so that ``dumpdata`` and others need no table."""

    def get_queryset(self) -> models.QuerySet:
        """Return the empty queryset."""
        return super().get_queryset().none()


class Page(models.Model):
    """A page of the admin that reads through ``registry.inspect``."""

    name = models.CharField(max_length=100, primary_key=True)
    objects = NoRows()

    class Meta:
        """No table, and the permission to view alone."""

        abstract = True
        managed = False
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        base_manager_name = "objects"

    def __str__(self) -> str:
        return str(self.name)


class Job(Page):
    """A recurring job."""

    class Meta(Page.Meta):
        """See Page; who may change a job may operate it."""

        default_permissions = ("view", "change")
        verbose_name_plural = "jobs"


class Task(Page):
    """A one-time task."""

    class Meta(Page.Meta):
        """See Page; who may change a task may operate it."""

        default_permissions = ("view", "change")
        verbose_name_plural = "tasks"


class Worker(Page):
    """A worker process."""

    class Meta(Page.Meta):
        """See Page."""

        verbose_name_plural = "workers"
