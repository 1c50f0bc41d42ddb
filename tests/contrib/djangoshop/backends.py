"""A team's own backend on top of slotwise's."""

from __future__ import annotations

from django.conf import settings
from django.utils.module_loading import import_string

Backend = import_string(settings.TASKS["default"]["BACKEND"])


class Mine(Backend):  # type: ignore[misc, valid-type]
    pass
