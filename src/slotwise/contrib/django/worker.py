"""The project's registry for ``slotwise … --app slotwise.contrib.django.worker:registry``, without
manage.py.

``DJANGO_SETTINGS_MODULE`` names the settings. ``manage.py slotwise`` uses this for its worker
processes.
"""

from __future__ import annotations

import os

from slotwise import ConfigurationError, JobRegistry
from slotwise.contrib.django import project


def registry() -> JobRegistry:
    """Set Django up, and return the project's registry. Raises ConfigurationError without
    DJANGO_SETTINGS_MODULE.
    """
    from django.conf import settings

    if not settings.configured and not os.environ.get("DJANGO_SETTINGS_MODULE"):
        raise ConfigurationError(
            "DJANGO_SETTINGS_MODULE is not set; run python manage.py slotwise …, "
            "or set it to your settings"
        )
    project.set_up()
    return project.registry()
