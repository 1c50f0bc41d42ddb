"""Revision sw0005 for a project that applied the earlier migrations before it: see there."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from slotwise.contrib.django.migrations import downgrade_to, upgrade


def _may_change(name: str, plural: str) -> migrations.AlterModelOptions:
    options = {
        "verbose_name_plural": plural,
        "managed": False,
        "default_permissions": ("view", "change"),
        "base_manager_name": "objects",
    }
    return migrations.AlterModelOptions(name=name, options=options)


class Migration(migrations.Migration):
    """Keeps pauses that end by themselves; jobs and tasks have a permission to change them."""

    atomic = False
    dependencies: ClassVar[list[tuple[str, str]]] = [("slotwise", "0004_histories")]
    operations: ClassVar[list[object]] = [
        migrations.RunPython(upgrade, downgrade_to("sw0004")),
        _may_change("job", "jobs"),
        _may_change("task", "tasks"),
    ]
