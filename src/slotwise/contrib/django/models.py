"""The admin's pages as models: permissions and places in the menu, without tables."""

from __future__ import annotations

from django.db import models


class Page(models.Model):
    """A page of the admin that reads through ``registry.inspect``."""

    name = models.CharField(max_length=100, primary_key=True)

    class Meta:
        """No table, and the permission to view alone."""

        abstract = True
        managed = False
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.name)


class Job(Page):
    """A recurring job."""

    class Meta(Page.Meta):
        """See Page."""

        verbose_name_plural = "jobs"


class Task(Page):
    """A one-time task."""

    class Meta(Page.Meta):
        """See Page."""

        verbose_name_plural = "tasks"


class Worker(Page):
    """A worker process."""

    class Meta(Page.Meta):
        """See Page."""

        verbose_name_plural = "workers"
