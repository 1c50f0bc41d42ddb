"""When a tick stays, and when the next one is to come: pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from slotwise.contrib.tick.look import SHORTLY, Leave, Look, Stay, Step, next_step
from slotwise.spi import Kind, Row

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE = timedelta(seconds=3)
LEASE = timedelta(seconds=60)


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def held(silent: float, by: str = "other", kind: str = Kind.PLAN) -> Row:
    """A row whose holder was last heard so many seconds ago."""
    return Row(
        task_name="job",
        task_instance="recurring",
        execution_time=NOW,
        version=1,
        picked=True,
        picked_by=by,
        last_heartbeat=NOW - s(silent),
        lease=LEASE,
        kind=kind,
    )


CASES: dict[str, tuple[Look, Step]] = {
    "nothing is known": (Look(NOW, None), Leave(None)),
    "a row is due": (Look(NOW, s(-1)), Stay(SHORTLY)),
    "a row is due now": (Look(NOW, s(0)), Stay(SHORTLY)),
    "a row is about to be due": (Look(NOW, s(2)), Stay(SHORTLY)),
    "a row is due later": (Look(NOW, s(2.1)), Leave(NOW + s(2.1))),
    "this process holds a row": (Look(NOW, s(90), [held(0, "me")]), Stay(SHORTLY)),
    "another one holds a row": (Look(NOW, s(90), [held(10)]), Leave(NOW + s(50))),
    "a row is due before its lease ends": (
        Look(NOW, s(20), [held(10)]),
        Leave(NOW + s(20)),
    ),
    "a lease has expired": (Look(NOW, s(90), [held(60)]), Stay(PATIENCE)),
    "a lease is about to expire": (Look(NOW, s(90), [held(58)]), Stay(PATIENCE)),
    "one of two leases has expired": (
        Look(NOW, None, [held(0), held(61)]),
        Stay(PATIENCE),
    ),
    "the database's clock was set back": (
        Look(NOW, None, [held(-3600)]),
        Leave(NOW + LEASE),
    ),
    "another program holds a row": (
        Look(NOW, None, [held(900, kind=Kind.FOREIGN)]),
        Leave(None),
    ),
    "a pause ends later": (Look(NOW, None, pauses=[NOW + s(9)]), Leave(NOW + s(9))),
    "a pause has ended": (Look(NOW, s(90), pauses=[NOW]), Stay(SHORTLY)),
}


@pytest.mark.parametrize(("look", "step"), CASES.values(), ids=CASES)
def test_after_a_look(look: Look, step: Step) -> None:
    """It stays while anything is due or may be dead, and else names the first known instant."""
    assert next_step(look, me="me", early=s(2), patience=PATIENCE) == step
