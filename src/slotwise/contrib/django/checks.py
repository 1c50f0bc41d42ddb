"""The system check: settings.SLOTWISE makes a registry."""

from __future__ import annotations

from django.core import checks

from slotwise.contrib.django.databases import InMemory
from slotwise.contrib.django.project import registry
from slotwise.errors import SlotwiseError


def check_slotwise(app_configs: object = None, **options: object) -> list[checks.CheckMessage]:
    """Report what keeps a registry from being built: a wrong setting, an invalid job. Opens no connection."""
    try:
        registry()
    except InMemory as error:
        return [checks.Warning(str(error), id="slotwise.W001")]
    except SlotwiseError as error:
        return [checks.Error(str(error), id="slotwise.E001")]
    return []
