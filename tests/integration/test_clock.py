"""Tests can run at another time: Python, its children and PostgreSQL agree about it."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """\
import subprocess, time
from datetime import datetime
from pathlib import Path
import psycopg
from slotwise.embedded import EmbeddedPostgres

print(datetime.now().astimezone().isoformat())
print(subprocess.run(["date", "+%FT%T%:z"], capture_output=True, text=True).stdout.strip())
begun = time.monotonic()
time.sleep(0.1)
assert time.monotonic() - begun < 10
with EmbeddedPostgres(Path("pg"), durable=False) as server, psycopg.connect(server.dsn) as link:
    print(link.execute("select clock_timestamp()").fetchone()[0].isoformat())
"""


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="another clock needs Linux")
def test_every_process_sees_the_other_time(open_path: Path) -> None:
    clock = [sys.executable, str(ROOT / "tools" / "clock.py"), "2028-02-29 23:58"]
    run = subprocess.run(
        [*clock, sys.executable, "-c", SCRIPT],
        env={"TZ": "UTC", "PATH": "/usr/bin:/bin"},
        cwd=open_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    begin = datetime(2028, 2, 29, 23, 58, tzinfo=UTC)
    for line in run.stdout.split():
        seen = datetime.fromisoformat(line)
        assert -2 < (seen - begin).total_seconds() < 60
