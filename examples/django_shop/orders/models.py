"""Orders."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order, and whether its mail was sent."""

    email = models.EmailField()
    is_mailed = models.BooleanField(default=False)

    def __str__(self) -> str:
        return str(self.email)
