"""Revision sw0005 for a project that applied the earlier migrations before it: see there."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from slotwise.contrib.django.migrations import downgrade_to, upgrade


class Migration(migrations.Migration):
    """Keeps pauses that end by themselves."""

    atomic = False
    dependencies: ClassVar[list[tuple[str, str]]] = [("slotwise", "0004_histories")]
    operations: ClassVar[list[object]] = [
        migrations.RunPython(upgrade, downgrade_to("sw0004"))
    ]
