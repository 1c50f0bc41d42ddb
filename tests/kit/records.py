"""Values that rows become, and the vocabulary: what tests of the store and of the loops speak of.

Tests import inner names from here: a module that moves is named in one place.
"""

from __future__ import annotations

from slotwise.model import error_text, vocabulary
from slotwise.model.clock import Stopwatch, host_now
from slotwise.model.error_text import (
    ERROR_LIMIT,
    LIMIT,
    bounded,
    redact_also,
    storable,
)
from slotwise.model.records import (
    FOREVER,
    SUCCEEDED,
    TICK,
    Aborted,
    AttemptOutcome,
    Cancelled,
    Died,
    Failed,
    Fence,
    Follow,
    FollowUps,
    Gap,
    HandedBack,
    LedgerEntry,
    Record,
    Row,
    Skipped,
    Snoozed,
    Succeeded,
    Transition,
    Wanted,
    When,
    from_micros,
    to_micros,
)
from slotwise.model.vocabulary import (
    ENDED_BADLY,
    PLANNED,
    LossPolicy,
    Outcome,
    Reason,
    Release,
    Sentences,
)
from slotwise.store.schema.column_types import Duration, Instant
from slotwise.store.schema.rows import ROW_COLUMNS, row_of
from slotwise.store.schema.tables import (
    HAS_SLOT,
    PAUSED_KEY,
    RANK,
    SCHEMA_VERSION,
    WINDOW,
)

__all__ = [
    "ENDED_BADLY",
    "ERROR_LIMIT",
    "FOREVER",
    "HAS_SLOT",
    "LIMIT",
    "PAUSED_KEY",
    "PLANNED",
    "RANK",
    "ROW_COLUMNS",
    "SCHEMA_VERSION",
    "SUCCEEDED",
    "TICK",
    "WINDOW",
    "Aborted",
    "AttemptOutcome",
    "Cancelled",
    "Died",
    "Duration",
    "Failed",
    "Fence",
    "Follow",
    "FollowUps",
    "Gap",
    "HandedBack",
    "Instant",
    "LedgerEntry",
    "LossPolicy",
    "Outcome",
    "Reason",
    "Record",
    "Release",
    "Row",
    "Sentences",
    "Skipped",
    "Snoozed",
    "Stopwatch",
    "Succeeded",
    "Transition",
    "Wanted",
    "When",
    "bounded",
    "error_text",
    "from_micros",
    "host_now",
    "redact_also",
    "row_of",
    "storable",
    "to_micros",
    "vocabulary",
]
