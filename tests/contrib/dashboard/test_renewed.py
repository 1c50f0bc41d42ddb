"""Reads of the whole cluster are kept, renewed in the background, and shown with their time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from tests.kit.patience import PATIENCE

from slotwise import DatabaseProblem, DatabaseUnreachable
from slotwise.contrib.dashboard import Dashboard, Request, renewed
from slotwise.contrib.dashboard.renewed import Renewed

NOW = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)


class Passing:
    """The clock of ``renewed``, moved by hand, and what was read, by number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.reads = 0
        self.read = threading.Event()
        monkeypatch.setattr(renewed.time, "monotonic", lambda: self.now)

    def __call__(self) -> int:
        self.reads += 1
        self.read.set()
        return self.reads


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Passing:
    return Passing(monkeypatch)


def at(passing: Passing) -> datetime:
    return NOW + timedelta(seconds=passing.now - 1_000)


def test_a_fresh_read_is_shared(passing: Passing) -> None:
    """With the time at which it was read, the same for all visitors."""
    kept = Renewed()
    first = kept.get("late", passing, at(passing))
    passing.now += 4
    again = kept.get("late", passing, at(passing))
    assert (first.value, first.at) == (1, NOW)
    assert again == first


def test_an_older_one_is_shown_and_renewed_on_another_thread(passing: Passing) -> None:
    """Nobody waits for it."""
    kept = Renewed()
    kept.get("late", passing, at(passing))
    passing.read.clear()
    passing.now += 6
    assert kept.get("late", passing, at(passing)).value == 1
    assert passing.read.wait(PATIENCE)
    _until(lambda: kept.get("late", passing, at(passing)).value == 2)
    assert kept.get("late", passing, at(passing)).at == NOW + timedelta(seconds=6)


def test_what_is_too_old_is_not_shown(passing: Passing) -> None:
    """Who opens the page after a quiet night waits for a new read."""
    kept = Renewed()
    kept.get("late", passing, at(passing))
    passing.now += 31
    assert kept.get("late", passing, at(passing)).value == 2


def test_what_a_read_depends_on_is_of_its_key(passing: Passing) -> None:
    """The totals of yesterday are none of today."""
    kept = Renewed()
    assert kept.get(("verdict", 1), passing, NOW).value == 1
    assert kept.get(("verdict", 2), passing, NOW).value == 2
    kept.clear()
    assert kept.get(("verdict", 1), passing, NOW).value == 3


def test_a_read_that_timed_out_is_not_tried_again_at_once(passing: Passing) -> None:
    """Each try would cost the page two seconds; what could not be reached is asked again."""
    kept = Renewed()

    def fail() -> int:
        passing()
        raise DatabaseProblem("canceling statement due to statement timeout")

    def away() -> int:
        passing()
        raise DatabaseUnreachable("connection refused")

    for _ in range(3):
        with pytest.raises(DatabaseProblem):
            kept.get("late", fail, NOW)
    assert passing.reads == 1
    passing.now += 6
    assert kept.get("late", passing, NOW).value == 2
    for _ in range(2):
        with pytest.raises(DatabaseUnreachable):
            kept.get("other", away, NOW)
    assert passing.reads == 4


def test_a_renewal_that_fails_leaves_what_is_kept(
    passing: Passing, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it is too old; the log says why."""
    kept = Renewed()
    kept.get("late", passing, NOW)
    passing.now += 6
    failed = threading.Event()

    def fail() -> int:
        failed.set()
        raise DatabaseUnreachable("connection refused\nby the host")

    assert kept.get("late", fail, NOW).value == 1
    assert failed.wait(PATIENCE)
    _until(lambda: "connection refused" in caplog.text)
    assert kept.get("late", passing, NOW).value == 1


def test_a_page_says_when_its_counts_were_read(cluster: str) -> None:
    """And reads what concerns the whole cluster once for several visitors."""
    dashboard = Dashboard(cluster, role="viewer")
    first = dashboard.respond(Request(method="GET", path="/tasks", query="n=1"))
    assert "Counted at <time" in first.body.decode()
    with psycopg.connect(cluster, autocommit=True) as connection:
        connection.execute("DELETE FROM scheduled_tasks WHERE task_name = 'send-mail'")
    kept = dashboard.respond(Request(method="GET", path="/tasks", query="n=2"))
    assert "send-mail" in kept.body.decode()
    dashboard.forget()
    anew = dashboard.respond(Request(method="GET", path="/tasks", query="n=3"))
    assert "send-mail" not in anew.body.decode()
    dashboard.close()


def _until(holds: Callable[[], bool]) -> None:
    """Wait until a thread has done its work."""
    ended = threading.Event()
    for _ in range(int(PATIENCE * 100)):
        if holds():
            return
        ended.wait(0.01)
    raise AssertionError("it did not come true")
