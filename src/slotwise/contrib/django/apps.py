"""The app's configuration."""

from __future__ import annotations

from typing import Final

from django.apps import AppConfig
from django.core import checks

from slotwise import SlotwiseError

#: How the project's people call the command line.
PROGRAM: Final = "python manage.py slotwise"


def upgrade_command() -> str:
    """Return the command that creates the tables."""
    from slotwise.contrib.django.project import alias

    try:
        name = alias()
    except SlotwiseError:
        name = "default"  # the system check reports it
    return "python manage.py migrate slotwise" + (
        "" if name == "default" else f" --database {name}"
    )


class SlotwiseConfig(AppConfig):
    """The app ``slotwise``."""

    name = "slotwise.contrib.django"
    label = "slotwise"
    verbose_name = "slotwise"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system check, and prepare for test runners."""
        from slotwise.contrib.django.project import (
            check_slotwise,
            guard_tests,
            release_before_drop,
        )

        SlotwiseError.program = PROGRAM
        SlotwiseError.upgrade = upgrade_command()
        checks.register(check_slotwise)
        guard_tests()
        release_before_drop()
