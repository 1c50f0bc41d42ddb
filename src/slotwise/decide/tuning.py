"""The tuned constants of decisions. All are judged: no measurement chose them."""

from __future__ import annotations

from datetime import timedelta

#: How long a slot waits before it looks again for a place.
PLACE_PAUSE = timedelta(seconds=1)
#: When a row that this release cannot read comes up again.
UNREADABLE_PAUSE = timedelta(minutes=1)
#: When a row of a newer release comes up again, at least.
NEWER_PAUSE = timedelta(seconds=1)
