"""Revision sw0002 for a project that applied the first migration before it: see there."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from slotwise.contrib.django.migrations import downgrade_to, upgrade


class Migration(migrations.Migration):
    """Sets storage parameters of the ledger."""

    atomic = False
    dependencies: ClassVar[list[tuple[str, str]]] = [("slotwise", "0001_tables")]
    operations: ClassVar[list[object]] = [
        migrations.RunPython(upgrade, downgrade_to("sw0001"))
    ]
