"""`python -m slotwise.embedded`: a PostgreSQL for development."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from uuid import uuid4

import psycopg
import pytest
from tests.kit.patience import PATIENCE

from slotwise.embedded.directories import state_directory

COMMAND = [sys.executable, "-m", "slotwise.embedded"]


@pytest.mark.extended
def test_it_runs_until_it_is_interrupted() -> None:
    """The line on stdout can be pasted; the data are there at the next start."""
    name = f"test-{uuid4().hex[:8]}"
    try:
        for attempt in range(2):
            with subprocess.Popen(
                [*COMMAND, name],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as server:
                try:
                    assert server.stdout is not None
                    word, _, url = server.stdout.readline().strip().partition("=")
                    assert word == "export DATABASE_URL"
                    with psycopg.connect(url) as connection:
                        connection.execute("CREATE TABLE IF NOT EXISTS kept (x int)")
                        connection.execute("INSERT INTO kept VALUES (1)")
                        assert connection.execute(
                            "SELECT count(*) FROM kept"
                        ).fetchone() == (attempt + 1,)
                    server.send_signal(signal.SIGINT)
                    assert server.wait(PATIENCE) == 0
                finally:
                    server.kill()
    finally:
        shutil.rmtree(state_directory() / name, ignore_errors=True)


@pytest.mark.extended
@pytest.mark.parametrize("arguments", [["../etc"], ["a", "b"], ["--help"]])
def test_wrong_arguments(arguments: list[str]) -> None:
    """One line says how it is called."""
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (
        done.returncode,
        done.stderr.startswith("usage: python -m slotwise.embedded"),
    ) == (2, True)
    assert done.stderr.count("\n") == 1
