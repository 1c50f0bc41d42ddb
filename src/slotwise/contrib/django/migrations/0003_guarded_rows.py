"""Revision sw0003 for a project that applied the earlier migrations before it: see there."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from slotwise.contrib.django.migrations import downgrade_to, upgrade


class Migration(migrations.Migration):
    """Guards rows against deletes by other programs; writes reasons with underscores."""

    atomic = False
    dependencies: ClassVar[list[tuple[str, str]]] = [
        ("slotwise", "0002_room_in_the_ledger")
    ]
    operations: ClassVar[list[object]] = [
        migrations.RunPython(upgrade, downgrade_to("sw0002"))
    ]
