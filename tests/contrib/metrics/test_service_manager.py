"""What a worker tells systemd, and the unit that ``slotwise export systemd`` prints."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from slotwise import ConfigurationError
from slotwise.contrib.metrics import ProbeResult
from slotwise.contrib.metrics.service_manager import ServiceManager
from slotwise.contrib.systemd import hidden_paths, unit

STARTING = ProbeResult(is_alive=True, is_ready=False, problems=("no worker runs",))
READY = ProbeResult(is_alive=True, is_ready=True)
STUCK = ProbeResult(
    is_alive=False, is_ready=False, problems=("the loop poller\nis stuck",)
)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(30)
        yield listening


def test_what_systemd_hears(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that takes long, one that is ready, a loop that hangs, the end."""
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    states = iter([STARTING, READY, READY])
    told = ServiceManager(str(tmp_path / "notify"), lambda: next(states, STUCK))
    heard = [manager.recv(1000).decode().split("\n") for _ in range(4)]
    told.close()
    assert heard == [
        ["EXTEND_TIMEOUT_USEC=60000000", "WATCHDOG=1", "STATUS=no worker runs"],
        ["READY=1", "WATCHDOG=1", "STATUS=ready"],
        ["WATCHDOG=1"],
        ["STATUS=the loop poller is stuck"],
    ]
    assert manager.recv(1000) == b"STOPPING=1"


def test_a_manager_that_does_not_listen_stops_nothing(tmp_path: Path) -> None:
    ServiceManager(str(tmp_path / "nobody"), lambda: READY).close()


def printed(**changed: object) -> list[str]:
    values: dict[str, object] = {
        "name": "shop",
        "command": "/venv/bin/slotwise",
        "directory": Path("/srv/shop"),
        "shutdown_grace": timedelta(minutes=2),
    }
    return unit("shop.jobs", **(values | changed)).splitlines()  # type: ignore[arg-type]


def test_the_unit() -> None:
    """The time to stop follows the grace time; what systemd would read otherwise is escaped."""
    lines = printed()
    assert "Type=notify" in lines
    assert "TimeoutStopSec=150" in lines
    assert "WorkingDirectory=/srv/shop" in lines
    start = "ExecStart=/venv/bin/slotwise worker --app shop.jobs --log-format json"
    assert start in lines
    odd = printed(command="/my venv/50%/slotwise", directory=Path("/srv/50%"))
    assert "WorkingDirectory=/srv/50%%" in odd
    assert any(
        line.startswith('ExecStart="/my venv/50%%/slotwise" worker') for line in odd
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"name": "Shop worker"}, "cannot name a unit"),
        ({"directory": "a\nb"}, "characters"),
    ],
)
def test_a_unit_that_cannot_be(changed: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        printed(**changed)


def test_a_path_that_the_unit_hides() -> None:
    """With DynamicUser, systemd gives the worker an empty /tmp."""
    paths = [Path(text) for text in ("/tmp/shop", "/srv/tmp", "/var/tmp/x/y", "/tmpx")]
    assert hidden_paths(*paths) == [Path("/tmp/shop"), Path("/var/tmp/x/y")]
