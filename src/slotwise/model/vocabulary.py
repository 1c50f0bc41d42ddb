"""The enums that rows, the ledger, events and results share: each member equals its string, as the
database has it.

Reasons are open: a feature adds its own with ``register_reason``, and a handler may end its slot
with any text.
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
    """A member that prints as its string, also in ``repr``, so that logs look alike for members
    and database values.
    """

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

    HANDED_BACK = "handed_back"
    POSTPONED = "postponed"
    MOVED_ON = "moved_on"
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
    """What a row of ``scheduled_tasks`` is: a one-time task, a job's own row, a row of one slot
    beside it, or one that another program wrote for itself.
    """

    TASK = "task"
    PLAN = "plan"
    DETACHED = "detached"
    FOREIGN = "foreign"


class RowState(_Word):
    """The column ``state`` of a row. Claims ignore a row with a state; an active row has none."""

    PAUSED = "paused"
    QUEUED = "queued"
    BLOCKED = "blocked"
    DEAD = "dead"
    DELETED = "deleted"
    #: With ``Kind.FOREIGN``, so that no claim looks at rows of another program.
    FOREIGN = "foreign"


class PauseScope(_Word):
    """What a pause by name is about."""

    JOB = "job"
    INSTANCE = "instance"
    TASKS = "tasks"
    ALL = "all"


class Missed(_Word):
    """What becomes of slots that come due during a pause."""

    SKIP = "skip"
    CATCH_UP = "catch_up"


class ListedState(_Word):
    """The state of a job or task in listings: that of its row, or what the active row does."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    BLOCKED = "blocked"
    DEAD = "dead"
    ENDED = "ended"
    DISABLED = "disabled"
    #: Its own schedule is disabled; those of its recurring instances run.
    INSTANCES = "instances"
    UNROUTABLE = "unroutable"
    NO_LIVE_WORKER = "no_live_worker"
    UNREADABLE = "unreadable"
    NOT_PLANNED = "not_planned"
    UNKNOWN = "unknown"


#: The states of one-time tasks in listings; a task that has ended is not listed.
TASK_STATES = (
    ListedState.WAITING,
    ListedState.RUNNING,
    ListedState.PAUSED,
    ListedState.BLOCKED,
    ListedState.DEAD,
)


class SlotState(_Word):
    """The state of a slot, or of an instant, that neither the ledger nor a gap has."""

    WAITING = "waiting"
    UNDECIDED = "undecided"
    UPCOMING = "upcoming"
    NO_SLOT = "no_slot"
    UNKNOWN = "unknown"


class WorkerState(_Word):
    """The state of a worker that has signed in."""

    RUNNING = "running"
    DRAINING = "draining"
    HANGING = "hanging"
    #: A handler has run for longer than its ``warn_after``.
    SLOW = "slow"
    GONE = "gone"
    UNREADABLE = "unreadable"


class LossPolicy(_Word):
    """What becomes of a slot whose worker died: it runs again, or starts once only."""

    RERUN = "rerun"
    GIVE_UP = "give_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentences:
    """The meaning of a reason. ``skipped``: for a slot that did not run. ``ended``: for one that
    had begun, with ``{ended}`` for the time and duration, and ``{outcome}``. ``waits``: why a slot
    that was claimed before waits, as part of a sentence.
    """

    skipped: str | None = None
    ended: str | None = None
    waits: str | None = None


_sentences: dict[str, Sentences] = {}


class Reason(_Word):
    """Why a slot did not run, ended or waits, or a handler is asked to stop; with the values of
    its ``Sentences``.
    """

    def __new__(
        cls,
        text: str,
        skipped: str | None = None,
        ended: str | None = None,
        waits: str | None = None,
    ) -> Reason:
        word = str.__new__(cls, text)
        word._value_ = text
        _sentences[text] = Sentences(skipped=skipped, ended=ended, waits=waits)
        return word

    COLLAPSED = (
        "collapsed",
        "It was missed while no worker held the job, and catch-up ran another slot instead.",
    )
    OVERLAP = (
        "overlap",
        "It came due while the previous slot was running, or waiting for its retry.",
        "A newer slot replaced it: it was asked to stop, and ended as {outcome} {ended}.",
        "a newer slot cancelled it",
    )
    LATE = (
        "late",
        "No worker could start it in time; or a newer slot was within the grace "
        "of CatchUp.none, too.",
    )
    CALENDAR = "calendar", "A business calendar of its schedule excludes that day."
    PAUSED = "paused", "The job, or the whole installation, was paused."
    MAINTENANCE = (
        "maintenance",
        "The job, or the whole installation, was paused for a time, which has ended.",
    )
    SUPERSEDED = (
        "superseded",
        "Its schedule was replaced, and another change of the schedule came "
        "before the slot could run.",
    )
    SETTLED = (
        "settled",
        "An operator settled it after a restore: it may have run in the time that was lost.",
        "An operator settled it after a restore, before another attempt: it ended "
        "as {outcome} {ended}.",
    )
    DELETED = (
        "deleted",
        "The job was deleted before it began.",
        "The job was deleted; it ended as {outcome} {ended}.",
    )
    OPERATOR = (
        "operator",
        "An operator skipped it.",
        "An operator cancelled it {ended}.",
        "an operator cancelled it",
    )
    MAX_LOST = (
        "max_lost",
        None,
        "It ended as dead {ended}: too many of its workers died, so it is not retried.",
    )
    MAY_STILL_BE_RUNNING = (
        "may_still_be_running",
        None,
        "Its worker stopped sending heartbeats, and the job gives up on it "
        "({ended}): it may still be running.",
    )
    LOST = (
        "lost",
        None,
        "Its worker lost the claim, and the job gives up on it ({ended}): it may still be running.",
        "its worker lost the claim",
    )
    SHUTDOWN = (
        "shutdown",
        None,
        "Its worker was stopped while it ran, and the job gives up on it: it "
        "ended as {outcome} {ended}.",
        "its worker was stopped",
    )
    ORPHANED = (
        "orphaned",
        None,
        "Its row was missing, as after a restore of the queue alone: it ended as "
        "{outcome} {ended}.",
    )
    UNREADABLE = (
        "unreadable",
        "A row of another program had the id of this slot.",
        "It ended as {outcome} {ended}, and its row could not be read: slotwise jobs says why.",
        "its worker could not read its row",
    )
    NEXT_SLOT = (
        "next_slot",
        None,
        "It ended as {outcome} {ended}. It is not retried, because the next slot came first.",
    )
    GIVE_UP = (
        "give_up",
        None,
        "It ended as {outcome} {ended}. Another start was requested and rejected: "
        "the job starts each slot once.",
    )
    RETRY = "retry", None, None, "it is retried"
    BACKFILL = "backfill", None, None, "a backfill runs it again"
    RERUN = "rerun", None, None, "its worker stopped sending heartbeats"
    SNOOZED = "snoozed", None, None, "its handler snoozed it"
    SUSPECT = "suspect", None, None, "its worker might have lost the claim"
    QUEUED = "queued", None, None, "its worker had no free thread in time"
    UNKNOWN = "unknown", None, None, "its worker did not know of the claim"
    MARK_REFUSED = "mark_refused", None, None, "its start was no longer allowed"
    MARK_NOT_ACKNOWLEDGED = (
        "mark_not_acknowledged",
        None,
        None,
        "it is unknown whether its start was allowed",
    )
    NEWER = "newer", None, None, "it waits for a newer worker"
    TIMEOUT = "timeout", None, None, "it timed out"
    RECOVERY = "recovery", None, None, "recovery_rate limits late starts"


#: Slots that the schedule has started; triggers, backfills and retries by hand stand beside the
#: overlap rules.
PLANNED: Final = (Origin.SCHEDULE, Origin.CATCH_UP)
#: Outcomes of slots that can be retried.
ENDED_BADLY: Final = (Outcome.FAILED, Outcome.DEAD, Outcome.LOST, Outcome.CANCELLED)


#: Reasons as the release before ``sw0003`` wrote them, whose workers may live.
_FORMER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "may still be running": Reason.MAY_STILL_BE_RUNNING,
        "next slot": Reason.NEXT_SLOT,
    }
)
_REASON_FORM: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
#: All reasons that have a sentence: the core's, and those of features.
REASONS: Final[Mapping[str, Sentences]] = MappingProxyType(_sentences)


def reason_of(text: str) -> str:
    """Return a reason of a row, in today's form if the release before wrote it."""
    return _FORMER.get(text, text)


def register_reason(
    reason: str,
    skipped: str | None = None,
    *,
    ended: str | None = None,
    waits: str | None = None,
) -> None:
    """Add a reason with its sentences (see ``Sentences``); the first one is for a slot that did
    not run.

    Registering the same again does nothing. Raises ConfigurationError for a reason in a wrong
    form, one without any sentence, one that has other sentences already, and an unknown
    placeholder in ``ended``.
    """
    if not _REASON_FORM.fullmatch(reason):
        raise ConfigurationError(
            f"reason {reason!r:.60}: expected up to 40 of a-z, 0-9 and "
            "underscore, beginning with a letter"
        )
    sentences = Sentences(skipped=skipped, ended=ended, waits=waits)
    if sentences == Sentences():
        raise ConfigurationError(
            f"reason {reason!r} needs a sentence: what it means for a slot"
        )
    try:
        (ended or "").format(ended="", outcome="")
    except (LookupError, ValueError, TypeError, AttributeError):
        known = "expected no placeholder but {ended} and {outcome}; write other braces twice"
        raise ConfigurationError(
            f"reason {reason!r}: ended is {ended!r:.80}; {known}"
        ) from None
    if _sentences.setdefault(str(reason), sentences) != sentences:
        raise ConfigurationError(
            f"reason {reason!r} is registered with other sentences; choose another name"
        )
