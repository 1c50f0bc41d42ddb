"""The enums that rows, the ledger, events and results share: each member equals its string.

What the database returns stays a plain string. It equals the member, so a row is not converted when it is read. A
reason is open: a feature adds its own with ``register_reason``, and a handler may end its slot with any text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from slotwise.errors import ConfigurationError


class _Word(StrEnum):
    """A member that prints as its string, also in ``repr``, so that logs look alike for members and database values."""

    __repr__ = str.__repr__


class Outcome(_Word):
    """The outcome of a slot in the ledger."""

    CLAIMED = "claimed"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Release(_Word):
    """How a held row is released when its slot has not ended, or has no outcome of its own."""

    HANDED_BACK = "handed-back"
    POSTPONED = "postponed"
    MOVED_ON = "moved-on"
    ABORTED = "aborted"
    SNOOZED = "snoozed"


class Origin(_Word):
    """Why a slot, or a task, runs at all."""

    SCHEDULE = "schedule"
    CATCH_UP = "catch_up"
    TRIGGER = "trigger"
    BACKFILL = "backfill"
    RETRY = "retry"
    TASK = "task"


class Kind(_Word):
    """What a row of ``scheduled_tasks`` is: a one-time task, a job's own row, or a row of one slot beside it."""

    TASK = "task"
    PLAN = "plan"
    DETACHED = "detached"


class State(_Word):
    """The state of a row, of a slot to come, or of a worker."""

    # A row's column: claims ignore rows with a state. Rows without one are active.
    PAUSED = "paused"
    QUEUED = "queued"
    BLOCKED = "blocked"
    DEAD = "dead"
    DELETED = "deleted"
    # An active row, as listings show it. A worker is running or draining.
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    DISABLED = "disabled"
    UNROUTABLE = "unroutable"
    NO_LIVE_WORKER = "no live worker"
    UNREADABLE = "unreadable"
    DRAINING = "draining"
    # A slot that is in neither ledger nor gaps.
    UNDECIDED = "undecided"
    UPCOMING = "upcoming"
    NO_SLOT = "no-slot"
    UNKNOWN = "unknown"


class LossPolicy(_Word):
    """What becomes of a slot whose worker died: it runs again, or starts once only."""

    RERUN = "rerun"
    GIVE_UP = "give_up"


class Reason(_Word):
    """Why a slot did not run, ended, or waits again; and why a handler is asked to stop. Sentences are below."""

    COLLAPSED = "collapsed"
    OVERLAP = "overlap"
    LATE = "late"
    CALENDAR = "calendar"
    PAUSED = "paused"
    SUPERSEDED = "superseded"
    SETTLED = "settled"
    DELETED = "deleted"
    OPERATOR = "operator"
    MAX_LOST = "max_lost"
    MAY_STILL_BE_RUNNING = "may still be running"
    LOST = "lost"
    SHUTDOWN = "shutdown"
    ORPHANED = "orphaned"
    UNREADABLE = "unreadable"
    NEXT_SLOT = "next slot"
    GIVE_UP = "give_up"
    RETRY = "retry"
    BACKFILL = "backfill"
    RERUN = "rerun"
    SNOOZED = "snoozed"
    SUSPECT = "suspect"
    QUEUED = "queued"
    UNKNOWN = "unknown"
    MARK_REFUSED = "mark refused"
    MARK_NOT_ACKNOWLEDGED = "mark not acknowledged"
    TIMEOUT = "timeout"
    RECOVERY = "recovery"


#: Slots that the schedule has started; triggers, backfills and retries by hand stand beside the overlap rules.
PLANNED: Final = (Origin.SCHEDULE, Origin.CATCH_UP)
#: Outcomes of slots that can be retried.
ENDED_BADLY: Final = (Outcome.FAILED, Outcome.DEAD, Outcome.LOST, Outcome.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentences:
    """The meaning of a reason. ``skipped``: for a slot that did not run. ``ended``: for one that had begun, with
    ``{ended}`` for the time and duration, and ``{outcome}``. ``waits``: why a slot that was claimed before waits, as
    part of a sentence.
    """

    skipped: str | None = None
    ended: str | None = None
    waits: str | None = None


_REASON_FORM: Final = re.compile(r"[a-z][a-z0-9_ ]{0,39}")
_sentences: dict[str, Sentences] = {}
#: All reasons that have a sentence: the core's, and those of features.
REASONS: Final[Mapping[str, Sentences]] = MappingProxyType(_sentences)


def register_reason(
    reason: str, skipped: str | None = None, *, ended: str | None = None, waits: str | None = None
) -> None:
    """Add a reason with its sentences (see ``Sentences``); the first one is for a slot that did not run.

    Registering the same again does nothing. Raises ConfigurationError for a reason in a wrong form, one without any
    sentence, and one that has other sentences already.
    """
    if not _REASON_FORM.fullmatch(reason):
        raise ConfigurationError(
            f"reason {reason!r:.60}: expected up to 40 of a-z, 0-9, underscore and blank, beginning with a letter"
        )
    sentences = Sentences(skipped=skipped, ended=ended, waits=waits)
    if sentences == Sentences():
        raise ConfigurationError(f"reason {reason!r} needs a sentence: what it means for a slot")
    if _sentences.setdefault(str(reason), sentences) != sentences:
        raise ConfigurationError(f"reason {reason!r} is registered with other sentences; choose another name")


register_reason(Reason.COLLAPSED, "It was missed while no worker held the job, and catch-up ran another slot instead.")
register_reason(
    Reason.OVERLAP,
    "It came due while the previous slot was running, or waiting for its retry.",
    ended="A newer slot replaced it: it was asked to stop, and ended as {outcome} {ended}.",
    waits="a newer slot cancelled it",
)
register_reason(
    Reason.LATE, "No worker could start it in time; or a newer slot was within the grace of CatchUp.none, too."
)
register_reason(Reason.CALENDAR, "A business calendar of its schedule excludes that day.")
register_reason(Reason.PAUSED, "The job, or the whole installation, was paused.")
register_reason(
    Reason.SUPERSEDED, "Its schedule was replaced, and another change of the schedule came before the slot could run."
)
register_reason(
    Reason.SETTLED,
    "An operator settled it after a restore: it may have run in the time that was lost.",
    ended="An operator settled it after a restore, before another attempt: it ended as {outcome} {ended}.",
)
register_reason(
    Reason.DELETED,
    "The job was deleted before it began.",
    ended="The job was deleted; it ended as {outcome} {ended}.",
)
register_reason(
    Reason.OPERATOR,
    "An operator skipped it.",
    ended="An operator cancelled it {ended}.",
    waits="an operator cancelled it",
)
register_reason(Reason.MAX_LOST, ended="It ended as dead {ended}: too many of its workers died, so it is not retried.")
register_reason(
    Reason.MAY_STILL_BE_RUNNING,
    ended="Its worker stopped sending heartbeats, and the job gives up on it ({ended}): it may still be running.",
)
register_reason(
    Reason.LOST,
    ended="Its worker lost the claim, and the job gives up on it ({ended}): it may still be running.",
    waits="its worker lost the claim",
)
register_reason(
    Reason.SHUTDOWN,
    ended="Its worker was stopped while it ran, and the job gives up on it: it ended as {outcome} {ended}.",
    waits="its worker was stopped",
)
register_reason(
    Reason.ORPHANED,
    ended="Its row was missing, as after a restore of the queue alone: it ended as {outcome} {ended}.",
)
register_reason(
    Reason.UNREADABLE,
    ended="It ended as {outcome} {ended}, and its row could not be read: slotwise jobs list says why.",
    waits="its worker could not read its row",
)
register_reason(
    Reason.NEXT_SLOT,
    ended="It ended as {outcome} {ended}. It is not retried, because the next slot came first.",
)
register_reason(
    Reason.GIVE_UP,
    ended="It ended as {outcome} {ended}. Another start was requested and rejected: the job starts each slot once.",
)
register_reason(Reason.RETRY, waits="it is retried")
register_reason(Reason.BACKFILL, waits="a backfill runs it again")
register_reason(Reason.RERUN, waits="its worker stopped sending heartbeats")
register_reason(Reason.SNOOZED, waits="its handler snoozed it")
register_reason(Reason.SUSPECT, waits="its worker might have lost the claim")
register_reason(Reason.QUEUED, waits="its worker had no free thread in time")
register_reason(Reason.UNKNOWN, waits="its worker did not know of the claim")
register_reason(Reason.MARK_REFUSED, waits="its start was no longer allowed")
register_reason(Reason.MARK_NOT_ACKNOWLEDGED, waits="it is unknown whether its start was allowed")
register_reason(Reason.TIMEOUT, waits="it timed out")
register_reason(Reason.RECOVERY, waits="recovery_rate limits late starts")
