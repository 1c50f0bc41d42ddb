"""A standby of a real server, which replays what the primary writes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from slotwise.embedded import EmbeddedPostgres
from slotwise.embedded.binaries import find_binaries, server_account

REPLICA = {"wal_level": "replica", "max_wal_senders": "4"}
FEEDBACK = {
    "hot_standby_feedback": "on",
    "wal_receiver_status_interval": "1s",
    "max_standby_streaming_delay": "-1",
}


@contextmanager
def replicated(home: Path) -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    """Start a primary and its standby below a directory that any account may enter."""
    with EmbeddedPostgres(
        home / "primary", durable=False, settings=REPLICA
    ) as primary:
        standby = EmbeddedPostgres(home / "standby", durable=False, settings=FEEDBACK)
        place = home / "standby"
        place.mkdir(exist_ok=True)
        server_account().own(place, 0o700)
        shutil.copy2(home / "primary" / "password", place / "password")
        server_account().own(place / "password", 0o600)
        (place / "log").touch()
        server_account().own(place / "log", 0o600)
        command = [find_binaries().program("pg_basebackup"), "-D", place / "data"]
        options = ["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", primary.dsn]
        made = server_account().run([*command, *options])
        assert made.returncode == 0, made.stderr
        with standby:
            yield primary, standby


def pause_replay(standby: EmbeddedPostgres, name: str) -> None:
    """Let the standby fall behind."""
    with psycopg.connect(standby.url(name), autocommit=True) as connection:
        connection.execute("SELECT pg_wal_replay_pause()")
