"""What the benchmark takes from inside slotwise.

It measures single statements, and fills tables with more rows than a client would. No public name
does that.
"""

from __future__ import annotations

from slotwise import migrate
from slotwise.jobs.definition import define
from slotwise.store.connect.dsn import database_url
from slotwise.store.planning.revision import Declared
from slotwise.store.slots.store import Store

__all__ = ["Declared", "Store", "database_url", "define", "migrate"]
