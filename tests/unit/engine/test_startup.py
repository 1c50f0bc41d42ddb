"""How a worker waits before it is in: for a database that is away, and for one that is busy."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError
from tests.kit.events import Listeners
from tests.kit.loops import Common, keep_trying

from slotwise import DatabaseRefused
from slotwise.engine import tuning
from slotwise.spi import Event


class Patience(threading.Event):
    """Notes how long it is asked to wait, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0)
        return self.is_set()


def trying(*errors: Exception) -> Callable[[], None]:
    """What enters after it has failed so."""
    left = list(errors)

    def enter() -> None:
        if left:
            raise left.pop(0)

    return enter


def error_of(state: str) -> DBAPIError:
    error = psycopg.OperationalError(
        "as the server says it"
    )  # an older psycopg has no class of its own for some
    error.sqlstate = state
    return DBAPIError("SELECT 1", None, error)


def start(*errors: Exception) -> tuple[bool, list[str], list[float]]:
    """Whether it came in, what was told, and how long it waited each time."""
    said: list[Event] = []
    patience = Patience()
    came = keep_trying(
        trying(*errors), Common(Listeners((said.append,)), "w"), patience
    )
    return came, [event.name for event in said], patience.waits


@pytest.mark.parametrize("state", ["55P03", "40P01", "57014", "25P03", "25P04"])
def test_a_busy_database_is_tried_again_soon(
    state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another worker that starts keeps a row locked, or this one had no turn: no outage, and no
    pause of one.
    """
    with caplog.at_level(logging.INFO):
        came, said, waits = start(*[error_of(state)] * 12)
    assert (came, said, len(waits)) == (True, [], 12)
    first, longest = (span.total_seconds() for span in tuning.BUSY_PAUSES)
    assert max(waits) <= longest + first
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert f"the database is busy: as the server says it [{state}]" in caplog.text


def test_an_outage_is_waited_out() -> None:
    """Told once, with pauses that grow, and told again when it is over."""
    came, said, waits = start(*[ConnectionError("gone")] * 8)
    assert (came, said) == (True, ["database_lost", "database_back"])
    assert waits[-1] >= tuning.PAUSES[1].total_seconds()


def test_what_waiting_does_not_mend_ends_it() -> None:
    """A wrong password, and a mistake of ours."""
    for error in (DatabaseRefused("no"), ValueError("no")):
        with pytest.raises(type(error)):
            start(error)


def test_a_stop_ends_the_waiting() -> None:
    """Whoever was asked to stop before it came in has not come in."""
    patience = Patience()
    patience.set()
    assert not keep_trying(trying(), Common(Listeners(()), "w"), patience)
