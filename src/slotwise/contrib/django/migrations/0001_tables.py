"""slotwise's own upgrade, as a migration: its revisions and its version table are the history,
here and in the CLI.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

from slotwise.contrib.django.migrations import downgrade_to, upgrade


def _page(name: str, plural: str) -> migrations.CreateModel:
    return migrations.CreateModel(
        name=name,
        fields=[
            (
                "name",
                models.CharField(max_length=100, primary_key=True, serialize=False),
            )
        ],
        options={
            "verbose_name_plural": plural,
            "managed": False,
            "default_permissions": ("view",),
            "base_manager_name": "objects",
        },
    )


class Migration(migrations.Migration):
    """Creates the tables. The models are the admin's pages, without tables of their own."""

    initial = True
    atomic = (
        False  # slotwise's upgrade has a transaction, and an advisory lock, of its own
    )
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[object]] = [
        _page("Job", "jobs"),
        _page("Task", "tasks"),
        _page("Worker", "workers"),
        migrations.RunPython(upgrade, downgrade_to("base")),
    ]
