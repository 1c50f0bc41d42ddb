"""A backend for the package django-tasks: ``"BACKEND":
"slotwise.contrib.django.django_tasks.SlotwiseBackend"``.
"""

from __future__ import annotations

from typing import ClassVar

from slotwise import ConfigurationError
from slotwise.contrib.django.backend import SlotwiseTasks

try:
    from django_tasks.backends.base import BaseTaskBackend
except ImportError:
    raise ConfigurationError(
        "this backend needs django-tasks; run: pip install django-tasks"
    ) from None


class SlotwiseBackend(SlotwiseTasks, BaseTaskBackend):
    """Runs tasks of django-tasks on slotwise's workers.

    OPTIONS: ``max_attempts`` (1), and ``result_retention`` ("7d"), how long results are kept.
    """

    package: ClassVar[str] = "django_tasks"
    normalize: ClassVar[str] = "django_tasks.utils.normalize_json"
