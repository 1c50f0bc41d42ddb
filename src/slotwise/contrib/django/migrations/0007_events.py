"""Revision sw0007 for a project that applied the earlier migrations before it: see there."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from slotwise.contrib.django.migrations import downgrade_to, upgrade


class Migration(migrations.Migration):
    """Keeps events and their handlers, and rows that batches have set aside."""

    atomic = False
    dependencies: ClassVar[list[tuple[str, str]]] = [("slotwise", "0006_checkpoints")]
    operations: ClassVar[list[object]] = [
        migrations.RunPython(upgrade, downgrade_to("sw0006"))
    ]
