"""A worker of the cast in this process, which tells each event as one JSON line."""

from __future__ import annotations

import signal
import sys

from tests.faults.cast import registry
from tests.faults.cast.witness import tell

from slotwise.events import Event


def listen(event: Event) -> None:
    facts = {
        name: value.isoformat()
        if hasattr(value, "isoformat")
        else value
        if isinstance(value, int | str)
        else str(value)
        for name, value in event.facts().items()
    }
    tell(event.name, **facts)


registry.listeners = (listen, *registry.listeners)
worker = registry.make_worker()
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: worker.request_stop())
worker.start()
while not worker.wait_for_stop(0.1):
    pass
sys.exit(1 if worker.stop() else 0)
