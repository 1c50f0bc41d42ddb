"""Compares what the schedules expect with the ledger, and keeps the result for all processes.

``slotwise watch`` does so every few minutes, the dashboard on request, and its verdict shows the
result. Imports the hall and its own files.
"""

from __future__ import annotations

from slotwise.contrib.reconciliation.comparison import (
    Reconciliation,
    Unexplained,
    reconcile,
)
from slotwise.contrib.reconciliation.kept import keep, kept
from slotwise.contrib.reconciliation.reconciler import Reconciler

__all__ = [
    "Reconciler",
    "Reconciliation",
    "Unexplained",
    "keep",
    "kept",
    "reconcile",
]
