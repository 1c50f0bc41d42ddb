"""An application's own table."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order."""

    email = models.CharField(max_length=100)
    is_mailed = models.BooleanField(default=False)
