"""Revision sw0006 for a project that applied the earlier migrations before it: see there."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from slotwise.contrib.django.migrations import downgrade_to, upgrade


class Migration(migrations.Migration):
    """Keeps what handlers save for their next attempts."""

    atomic = False
    dependencies: ClassVar[list[tuple[str, str]]] = [("slotwise", "0005_pauses")]
    operations: ClassVar[list[object]] = [
        migrations.RunPython(upgrade, downgrade_to("sw0005"))
    ]
