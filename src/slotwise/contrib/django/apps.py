"""The app's configuration."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


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

        checks.register(check_slotwise)
        guard_tests()
        release_before_drop()
