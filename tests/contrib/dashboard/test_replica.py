"""Reads from a real replica, and the doctor of its primary."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.contrib.dashboard import world
from tests.contrib.standby import pause_replay, replicated
from tests.databases import provision

from slotwise import Settings
from slotwise.contrib.dashboard import Dashboard, Request
from slotwise.contrib.doctor import Limits, examine


@pytest.mark.extended
def test_a_replica_is_read_and_its_delay_shown(open_path: Path) -> None:
    """Its delay grows while it replays nothing; a snapshot that it holds is found on the primary,
    by the doctor, as a standby's.
    """
    with replicated(open_path) as (primary, standby):
        url, replica = primary.url("postgres"), standby.url("postgres")
        provision(url)
        world.fill(url)
        _until(lambda: _jobs(replica) == 7)
        pause_replay(standby, "postgres")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DELETE FROM scheduled_tasks WHERE kind = 'plan'")
        page = Dashboard(url, role="viewer", read_from=replica)
        shown = page.respond(Request(method="GET", path="/jobs")).body.decode()
        data = page.respond(Request(method="GET", path="/database.json"))
        today = page.respond(Request(method="GET", path="/"))
        page.close()
        assert "nightly-report" in shown  # as the replica has it
        assert " behind</p>" in shown
        assert today.status == 200
        assert json.loads(data.body)["database"]["replica_delay"] is not None
        with psycopg.connect(replica, application_name="report") as session:
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            session.execute("SELECT count(*) FROM scheduled_slots")
            found = list[str]()

            def is_found() -> bool:
                every = examine(Settings(database_url=url), Limits(snapshot_age=0))
                found[:] = [
                    f"{one.evidence}; {one.cure}"
                    for one in every
                    if one.check == "old_snapshot"
                ]
                return any(one.startswith("standby ") for one in found)

            _until(is_found)
        (one,) = [one for one in found if one.startswith("standby ")]
        assert "walreceiver holds a snapshot" in one
        assert "hot_standby_feedback" in one


def _jobs(url: str) -> int:
    with psycopg.connect(url) as connection:
        if connection.execute("SELECT to_regclass('scheduled_tasks')").fetchone() == (
            None,
        ):
            return 0
        row = connection.execute(
            "SELECT count(*) FROM scheduled_tasks WHERE kind = 'plan'"
        ).fetchone()
    return row[0] if row else 0


def _until(holds: Callable[[], bool]) -> None:
    """Wait up to a minute."""
    pause = threading.Event()
    for _ in range(300):
        if holds():
            return
        pause.wait(0.2)
    raise AssertionError("it did not come true")
