"""Examine database and cluster: what is wrong, how that shows, and what to do."""

from __future__ import annotations

from slotwise.contrib.doctor.examine import examine
from slotwise.contrib.doctor.findings import Finding, Limits, Severity

__all__ = ["Finding", "Limits", "Severity", "examine"]
