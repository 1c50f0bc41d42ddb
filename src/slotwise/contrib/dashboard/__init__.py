"""Pages that show what ran, what did not, and why: mounted into an application, or served by
``slotwise dashboard``.

It imports the public modules of slotwise, its own files and Jinja2.
"""

from __future__ import annotations

from slotwise.contrib.dashboard.access import Role, Visitor
from slotwise.contrib.dashboard.dashboard import Dashboard
from slotwise.contrib.dashboard.exchange import Request, Response

__all__ = ["Dashboard", "Request", "Response", "Role", "Visitor"]
