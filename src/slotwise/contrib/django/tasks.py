"""A backend for Django's TASKS (Django 6): ``"BACKEND":
"slotwise.contrib.django.tasks.SlotwiseBackend"``.
"""

from __future__ import annotations

from typing import ClassVar

from slotwise import ConfigurationError
from slotwise.contrib.django.backend import SlotwiseTasks

try:
    from django.tasks.backends.base import BaseTaskBackend
except ImportError:
    raise ConfigurationError(
        "django.tasks needs Django 6; before it, install django-tasks and write 'BACKEND': "
        "'slotwise.contrib.django.django_tasks.SlotwiseBackend'"
    ) from None


class SlotwiseBackend(SlotwiseTasks, BaseTaskBackend):
    """Runs tasks of Django on slotwise's workers.

    OPTIONS: ``max_attempts`` (1), and ``result_retention`` ("7d"), how long results are kept.
    """

    package: ClassVar[str] = "django.tasks"
    normalize: ClassVar[str] = "django.utils.json.normalize_json"
