"""The app's configuration."""

from __future__ import annotations

from typing import Final

from django.apps import AppConfig
from django.core import checks

from slotwise.errors import SlotwiseError

#: How the project's people call the command line.
PROGRAM: Final = "python manage.py slotwise"


class SlotwiseConfig(AppConfig):
    """The app ``slotwise``."""

    name = "slotwise.contrib.django"
    label = "slotwise"
    verbose_name = "slotwise"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system check, and prepare for test runners."""
        from slotwise.contrib.django.checks import check_slotwise
        from slotwise.contrib.django.test_runs import guard_tests, release_before_drop

        SlotwiseError.program = PROGRAM
        checks.register(check_slotwise)
        guard_tests()
        release_before_drop()
