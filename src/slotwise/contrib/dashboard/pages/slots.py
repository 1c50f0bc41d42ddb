"""One instant of a job: a slot, a gap, or a moment that is no slot, explained in sentences."""

from __future__ import annotations

from slotwise.contrib.dashboard.access import Refused
from slotwise.contrib.dashboard.reading import Page, Reading
from slotwise.inspect import RECURRING


def instant(reading: Reading) -> Page:
    """Explain the instant ``at`` of the job ``name``, or of its instance ``id``."""
    name = reading.text("name")
    id = reading.given.get("id", RECURRING)
    inspect = reading.inspect
    reading.zone = inspect.zone(name, id=id)
    at = reading.instant("at")
    if at is None:
        raise Refused("the address needs at=, an instant of ISO 8601", 400)
    explanation = reading.part("explanation", lambda: inspect.explain(name, at, id=id))
    data = {
        "name": name,
        "id": id,
        "slot_at": at,
        "explanation": explanation,
        "slot": reading.part("slot", lambda: inspect.slot(name, at, id=id)),
        "attempts": reading.lines(
            "attempts", lambda: inspect.attempts(name, at, id=id)
        ),
        "near": reading.lines(
            "near", lambda: inspect.slots(name, id=id, before=at, limit=5)
        ),
    }
    return Page(template="instant.html", title=name, data=data)
