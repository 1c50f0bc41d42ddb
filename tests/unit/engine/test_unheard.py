"""Nobody listens: then no event is made, for no execution."""

from __future__ import annotations

from datetime import timedelta

from tests.unit.engine.conftest import mail, plain
from tests.unit.engine.parts import NOON

from slotwise import JobRegistry
from slotwise.spi import Event
from slotwise.testing import ManualClock


class Deaf:
    """Wants nothing, and notes what it is told all the same."""

    def __init__(self) -> None:
        self.told: list[Event] = []

    def wants(self, kind: type[Event]) -> bool:
        return False

    def __call__(self, event: Event) -> None:
        self.told.append(event)


def test_what_nobody_wants_is_not_made(sqlite_url: str) -> None:
    """Of tasks and slots that succeed, from the poll to the settlement."""
    deaf, clock = Deaf(), ManualClock(NOON)
    registry = JobRegistry(
        jobs=[plain],
        tasks=[mail],
        listeners=[deaf],
        clock=clock,
        database_url=sqlite_url,
    )
    worker = registry.make_worker()
    worker.sign_in.plan()
    deaf.told.clear()
    registry.client.schedule_many("mail", range(20))
    clock.tick(timedelta(minutes=1))
    while worker.active_claims.removed < 21:
        worker.poller.run_once()
        worker.settler.run_once()
    worker.runner.close()
    registry.database.close()
    assert deaf.told == []
