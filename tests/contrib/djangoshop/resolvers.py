"""A resolver that settings.SLOTWISE names."""

from __future__ import annotations

from slotwise.contrib.injection import DjangoSettings

shop_settings = DjangoSettings("SHOP_")
