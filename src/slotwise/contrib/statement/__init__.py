"""The statement of a month: what was expected of each job, and what became of it."""

from __future__ import annotations

from slotwise.contrib.statement.read import statement
from slotwise.contrib.statement.reconcile import JobStatement, Statement

__all__ = ["JobStatement", "Statement", "statement"]
