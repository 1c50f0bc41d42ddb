"""Values that packages pass to each other: rows, claims, outcomes, follow-ups, transitions.
Frozen; changed by copy.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias, TypeGuard

from slotwise.model.vocabulary import Kind, Outcome, Reason, Release

#: The due time of a row with nothing due: ended or disabled schedules, dead rows. So far in the
#: future that no clean-up by age, ours or another program's, takes it for overdue.
FOREVER = datetime(9000, 1, 1, tzinfo=UTC)

#: The years of all slots, and of every instant that the tables take; arithmetic with other
#: instants may overflow.
KNOWN_YEARS = "the years 1900 to 8999"
EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)

#: The smallest step between two instants: what both databases store.
TICK = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: The instance of a job's plan row.
RECURRING = "recurring"

_new: Any = tuple.__new__
#: Looked up once: this is slow in Python 3.11, and needed once per execution.
_TASK = Kind.TASK
_PLAN = Kind.PLAN
_DETACHED = Kind.DETACHED


def to_micros(instant: datetime) -> int:
    """Microseconds since 1970-01-01T00:00Z, exactly."""
    return (instant - EPOCH) // TICK


def from_micros(value: int) -> datetime:
    """The inverse of ``to_micros``."""
    return EPOCH + timedelta(microseconds=value)


def claimed_since(version: int) -> datetime | None:
    """Return when a held row was claimed; None if another program counts its versions from one."""
    found = from_micros(version)
    return found if found.year > EPOCH.year else None


def is_known(instant: datetime) -> bool:
    """Return whether schedules cover this instant."""
    return EARLIEST <= instant < FOREVER


def is_whole(value: object, least: int, most: int | None = None) -> TypeGuard[int]:
    """Whether a value is a whole number within these bounds, both included; a bool is none."""
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and least <= value
        and (most is None or value <= most)
    )


class Key(NamedTuple):
    """The identity of a row in ``scheduled_tasks``."""

    task_name: str
    task_instance: str


class LedgerKey(NamedTuple):
    """The identity of a slot in the ledger."""

    task_name: str
    task_instance: str
    slot: datetime


class Fence(NamedTuple):
    """The key and version that every write to a held row checks, besides the holder."""

    key: Key
    token: int


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class Row:
    """A row of ``scheduled_tasks``, in UTC. Treat it as immutable: creating frozen ones takes five
    times as long.
    """

    task_name: str
    task_instance: str
    execution_time: datetime
    version: int
    picked: bool = False
    picked_by: str | None = None
    task_data: bytes | None = None
    last_success: datetime | None = None
    last_failure: datetime | None = None
    consecutive_failures: int = 0
    last_heartbeat: datetime | None = None
    priority: int | None = None
    #: A Kind, as the database has it.
    kind: str = Kind.TASK
    slot: datetime | None = None
    watermark: datetime | None = None
    next_slot: datetime | None = None
    schedule: str | None = None
    plan_instance: str | None = None
    origin: str | None = None
    collapsed: int = 0
    created_version: int | None = None
    attempt: int = 0
    lost_count: int = 0
    #: When its first failed attempt was claimed.
    trying_since: datetime | None = None
    lease: timedelta | None = None
    #: The end of the tail that a catch-up runs slot by slot.
    catch_up_until: datetime | None = None
    state: str | None = None
    cancel_requested: datetime | None = None
    #: Why it was asked to stop, if it was not by an operator.
    called_off: str | None = None
    control: int | None = None
    parked_due: datetime | None = None
    wanted_due: datetime | None = None
    #: Slots that came due after this came while no worker held the job. A waiting row has it ahead
    #: of time.
    unheld_since: datetime | None = None
    #: When a one-time task that gives up was marked as started, under this claim.
    marked: datetime | None = None
    #: Why a row that was just claimed must not run.
    flaw: str | None = None

    @property
    def key(self) -> Key:
        return Key(self.task_name, self.task_instance)

    @property
    def fence(self) -> Fence:
        # Does what the constructors of the named tuples do, without their Python functions: once
        # per execution.
        fence: Fence = _new(
            Fence, (_new(Key, (self.task_name, self.task_instance)), self.version)
        )
        return fence

    @property
    def due(self) -> datetime:
        """When a waiting row is due, or would be if it were not paused."""
        return (
            self.execution_time
            if self.state is None or self.parked_due is None
            else self.parked_due
        )

    @property
    def is_plan(self) -> bool:
        """Whether this is a job's own row, which continues from slot to slot."""
        return self.kind == _PLAN

    @property
    def has_slot(self) -> bool:
        """Whether this is a job's slot, not a one-time task."""
        return self.kind != _TASK

    @property
    def is_foreign(self) -> bool:
        """Whether another program wrote this row for itself."""
        return self.kind == Kind.FOREIGN

    @property
    def called_off_by(self) -> str | None:
        """Why the attempt is to stop: ``called_off``, or an operation; None if it continues."""
        return (
            None
            if self.cancel_requested is None
            else self.called_off or Reason.OPERATOR
        )

    @property
    def is_detached(self) -> bool:
        """Whether this is a row of one slot beside the plan row, deleted when that slot is
        final.
        """
        return self.kind == _DETACHED

    @property
    def plan_key(self) -> Key:
        """The key of its slots' plan row, in the ledger as well: for a detached row not its
        own.
        """
        return Key(self.task_name, self.plan_instance or self.task_instance)

    @property
    def ledger_key(self) -> LedgerKey | None:
        """The ledger key of this row's slot; None for a one-time task."""
        return self.history_key if self.has_slot else None

    @property
    def history_key(self) -> LedgerKey | None:
        """As ``ledger_key``, with a one-time task's first due time in place of a slot."""
        if self.slot is None:
            return None
        return LedgerKey(
            self.task_name, self.plan_instance or self.task_instance, self.slot
        )


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class Claim:
    """Proof of holding a row: its key, its version (the token) and its holder. Treat it as
    immutable.
    """

    row: Row
    holder: str
    lease: timedelta
    claimed_at: datetime
    #: Key and token: the same holder can claim a row again, so the key alone proves nothing.
    fence: Fence = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.fence = self.row.fence

    @property
    def key(self) -> Key:
        return self.row.key

    @property
    def token(self) -> int:
        return self.row.version

    @property
    def slot(self) -> datetime | None:
        """The slot this claim is for; None for a one-time task."""
        key = self.row.ledger_key
        return key.slot if key else None


# How an attempt ended, before it is written.


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned. ``promised``: it called complete_in, so only the ledger can confirm
    it.
    """

    promised: bool = False
    follow_ups: FollowUps | None = None
    name = Outcome.SUCCEEDED


#: The usual one.
SUCCEEDED = Succeeded()


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised, or its data could not be read; ``final`` forbids another attempt.

    ``reason``: what ended the attempt, if the error alone does not say it, as a timeout.
    """

    error: str
    final: bool = False
    exception: BaseException | None = field(default=None, compare=False)
    promised: bool = False
    reason: str | None = None
    name = Outcome.FAILED


@dataclass(frozen=True, slots=True)
class Aborted:
    """The handler was stopped from outside while it ran: by a shutdown, or because its lease
    ran out.
    """

    reason: str
    name = Outcome.CANCELLED


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The claim was handed back before its handler started; no attempt is used up.

    ``error``: why only a newer release can run it.
    """

    reason: str = Reason.SHUTDOWN
    error: str | None = None
    name = Release.HANDED_BACK


@dataclass(frozen=True, slots=True)
class Skipped:
    """A hook refused the start for good. The handler never started: the slot ends as skipped, no
    attempt is used up. ``error``: what else the hook has said about it.
    """

    reason: str
    error: str | None = None
    name = Outcome.SKIPPED


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked for another start of the same slot, after ``duration``."""

    duration: timedelta
    name = Release.SNOOZED


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler, an operator or a newer slot cancelled the slot; ``error``: what it failed with
    nevertheless.
    """

    reason: str
    error: str | None = None
    name = Outcome.CANCELLED


@dataclass(frozen=True, slots=True)
class Died:
    """The holder stopped sending heartbeats; the row has the last one, by the database's time."""

    name = Outcome.LOST


AttemptOutcome: TypeAlias = (
    Succeeded | Failed | Snoozed | Cancelled | Aborted | HandedBack | Skipped | Died
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a transition writes to the slot's ledger row. ``forget`` deletes it: the slot never
    started.
    """

    outcome: Outcome
    reason: str | None = None
    error: str | None = None
    attempts: int = 0
    lost: int = 0
    aborted: int = 0
    final: bool = True
    forget: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Slots that will not run: first and last inclusive, how many, and why.

    ``after``: the slot before the first, of a gap that may extend the one before it.
    """

    first: datetime
    last: datetime
    count: int
    reason: str
    after: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """A slot's row in the ledger, as far as decisions need it."""

    outcome: str  # as the database has it
    token: int | None
    final: bool
    aborted: int = 0
    started: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What a held row becomes when it is released: another waiting row, or nothing
    (``remove``).
    """

    #: An Outcome or a Release; for a quarantined row its state, as the database has it.
    label: str
    row: dict[str, Any] | None
    record: Record | None = None
    gaps: tuple[Gap, ...] = ()
    #: How a one-time task ended, for tasks that keep a history.
    ended: Record | None = None

    @property
    def remove(self) -> bool:
        return self.row is None


IfExists: TypeAlias = Literal["keep", "raise", "replace", "reschedule"]


class When(NamedTuple):
    """A due time: ``at``, or else ``delay`` from now."""

    at: datetime | None
    delay: timedelta = timedelta(0)


class Wanted(NamedTuple):
    """A row to insert; with ``waits_for`` it is blocked until that many others have arrived."""

    instance: str
    data: bytes | None
    when: When
    priority: int
    waits_for: int = 0


class Follow(NamedTuple):
    """A task to schedule after this one."""

    task: str
    wanted: Wanted
    if_exists: IfExists


@dataclass(slots=True)
class FollowUps:
    """Follow-up tasks, arrivals and the result of a handler, collected from all its threads."""

    follows: list[Follow] = field(default_factory=list)
    arrivals: list[Key] = field(default_factory=list)
    result: bytes | None = None
    #: Why the result is not kept.
    problem: str | None = None
    #: The handler has used its checkpoint, which its success deletes.
    checkpointed: bool = False


#: Race: two threads of one handler may both create the follow-ups.
BEGINNING = threading.Lock()
