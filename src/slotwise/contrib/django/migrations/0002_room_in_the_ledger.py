"""Revision sw0002 for a project that applied the first migration before it: see there."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from slotwise.contrib.django.migrations import downgrade_to, upgrade


class Migration(migrations.Migration):
    """Sets storage parameters of the ledger."""

    atomic = False
    dependencies: ClassVar[list[Any]] = [("slotwise", "0001_tables")]
    operations: ClassVar[list[Any]] = [migrations.RunPython(upgrade, downgrade_to("sw0001"))]
