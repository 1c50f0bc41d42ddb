"""Connections that a fleet may open, without a server."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from slotwise.contrib.doctor import Limits, Severity
from slotwise.contrib.doctor.cluster import fleet
from slotwise.inspect import WorkerInfo

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("workers", "severity"), [(4, None), (5, Severity.WARNING), (6, Severity.ERROR)]
)
def test_what_the_fleet_may_open(workers: int, severity: Severity | None) -> None:
    """Of a hundred connections, by the live workers and the size of their pools."""
    live = WorkerInfo(
        worker="w", state="running", started=NOON, last_seen=NOON, live=True
    )
    found = list(fleet([live] * workers, 3, 100, 18, Limits()))
    assert [one.severity for one in found] == ([severity] if severity else [])
    assert all(f"{workers} workers may open, 18 each" in one.evidence for one in found)
