"""`slotwise watch` while its database is away, and when it is back."""

from __future__ import annotations

import signal
from pathlib import Path

import psycopg
import pytest
from tests.contrib.alarms.receivers import receiving
from tests.contrib.alarms.test_watch import ALARMS, INSERT_JOB
from tests.faults.test_outages import down
from tests.integration.shell import Shell

from slotwise.embedded import EmbeddedPostgres


@pytest.mark.extended
def test_alarms_continue_after_an_outage(
    tmp_path: Path, own_server: EmbeddedPostgres
) -> None:
    """The server stops and starts: one line of the log each, no message twice, and what has
    happened meanwhile is told.
    """
    shell = Shell(tmp_path, own_server.dsn)
    shell.write("alarms.toml", ALARMS)
    with receiving() as receiver:
        shell.environment |= {"OPS_URL": receiver.url, "OPS_SECRET": "s3cret"}
        try:
            watch = shell.start("watch")
            watch.wait_until_text("watching")
            insert(own_server, "before")
            receiver.wait_for(2)
            with down(own_server):
                watch.wait_until_text("alarms do not work")
            insert(own_server, "after")
            watch.wait_until_text("alarms work again")
            receiver.wait_for(1)
            assert watch.signal(signal.SIGTERM).end() == 0
            text = "\n".join(one["text"] for one in watch.events("text"))
            assert "Traceback" not in text
            assert text.count("alarms do not work") == 1
        finally:
            shell.close()
        told = sorted(receiver.told)
    assert told == [
        ("opened", "late", "after"),
        ("opened", "late", "before"),
        ("opened", "no_worker", ""),
    ]


def insert(server: EmbeddedPostgres, name: str) -> None:
    with psycopg.connect(server.dsn) as connection:
        connection.execute(INSERT_JOB, (name,))
