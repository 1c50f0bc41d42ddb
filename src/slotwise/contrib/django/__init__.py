"""Django: slotwise as an app, ``slotwise.contrib.django`` in ``INSTALLED_APPS``.

    from slotwise.contrib.django import schedule

    with transaction.atomic():
        order.save()
        schedule(send_mail, {"order": order.pk})

Importing this imports no model, so settings and apps may do it. Imports the registry, and what it
declares and reads.
"""

from __future__ import annotations

from slotwise.contrib.django.project import registry
from slotwise.contrib.django.scheduling import aschedule, joining, schedule

__all__ = ["aschedule", "joining", "registry", "schedule"]
