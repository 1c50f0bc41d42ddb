"""Events: frozen values and their delivery. An event's ``name`` is the same in logs, docs and
``on`` filters.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Protocol,
    TypeAlias,
    dataclass_transform,
)

from slotwise.errors import SlotwiseError
from slotwise.model.error_text import error_summary, escaped, storable
from slotwise.model.records import RECURRING
from slotwise.model.vocabulary import Outcome, Reason, Release

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta

    from slotwise.model.records import Claim, Gap, Key, Record, Transition

logger = logging.getLogger("slotwise.events")


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(field,)
)
@dataclass(frozen=True, kw_only=True)
class Event:
    """Something happened in a worker. Each kind of event is a frozen dataclass, too."""

    name: ClassVar[str]
    level: ClassVar[int] = logging.INFO
    worker: str | None = None

    def __init_subclass__(
        cls, *, name: str | None = None, level: int | None = None
    ) -> None:
        if name is not None:
            cls.name = name
        if level is not None:
            cls.level = level
        dataclass(frozen=True, kw_only=True)(cls)

    def facts(self) -> dict[str, object]:
        """Return the fields that are set and in the ``repr``, for a log line; an exception is its
        ``exc_info``.
        """
        found = {
            spec.name: getattr(self, spec.name) for spec in fields(self) if spec.repr
        }
        return {name: value for name, value in found.items() if value is not None}


class AttemptEvent(Event):
    """Something happened to one attempt."""

    job: str
    id: str
    slot: datetime | None
    attempt: int
    token: int
    #: When the row was made: the same in all attempts of a task, and another for a later task with
    #: its id.
    created_version: int | None = field(default=None, repr=False, compare=False)


def about(claim: Claim, worker: str | None = None) -> dict[str, Any]:
    """Return the fields that every event of an attempt carries."""
    row = claim.row
    return {
        "worker": worker or claim.holder,
        "job": row.task_name,
        "id": row.task_instance,
        "slot": claim.slot,
        "attempt": row.attempt,
        "token": row.version,
        "created_version": row.created_version,
    }


class PollBegan(Event, name="poll_begin", level=logging.DEBUG):
    capacity: int


class Claimed(AttemptEvent, name="claimed", level=logging.DEBUG): ...


class HandlerStarted(AttemptEvent, name="handler_start"): ...


class HandlerEnded(AttemptEvent, name="handler_end"):
    outcome: str
    error: str | None = None
    took: timedelta | None = None


class HandlerHangs(AttemptEvent, name="handler_hangs", level=logging.WARNING):
    """A handler was asked to stop for this ``reason``, ``asked`` ago, and still runs."""

    reason: str
    asked: timedelta
    cure: str = (
        'a thread cannot be ended; restart the worker, or declare isolation="process"'
    )


class HandlerSlow(AttemptEvent, name="handler_slow", level=logging.WARNING):
    """A handler has run for longer than its ``warn_after``, and runs on."""

    warn_after: timedelta


class SettleSent(Event, name="settle_sent", level=logging.DEBUG):
    count: int


class Finished(Protocol):
    """An attempt as the worker has seen it: when its claim arrived, and when its handler began and
    ended, in elapsed seconds; ``ran`` is None if it did not start, or if nothing listens to
    ``BatchSettled`` yet.
    """

    claim: Claim
    is_slot: bool
    since: float
    ran: tuple[float, float] | None


class BatchSettled(Event, name="batch_settled", level=logging.DEBUG):
    """A settlement was written. For counting: one event per batch costs little, one per attempt
    would cost much.

    ``succeeded`` are those that simply succeeded; ``others`` have their outcome, as in
    ``Settled``, and reason.
    """

    count: int
    took: timedelta
    succeeded: Sequence[Finished] = field(repr=False)
    others: Sequence[tuple[Finished, str, str | None]] = field(repr=False)


class BatchClaimed(Event, name="batch_claimed", level=logging.DEBUG):
    """A claim statement has returned ``count`` rows; 0: nothing was due, or all of it was
    locked.
    """

    count: int
    took: timedelta


class Settled(AttemptEvent, name="settled"):
    """``outcome`` as in the ledger; ``retry`` where another attempt follows.

    ``exception`` is what the handler raised, in the worker that ran it.
    """

    outcome: str
    reason: str | None = None
    error: str | None = None
    exception: BaseException | None = field(default=None, repr=False, compare=False)


class SettledAgain(Settled, level=logging.WARNING):
    """An attempt failed or was lost, and another one follows."""


class SettledFailed(Settled, level=logging.ERROR):
    """A slot or a task failed, or was lost, for good."""


class SettledDead(SettledFailed, level=logging.ERROR):
    """A dead task or slot, which is not retried automatically: ``cure`` is the command for
    that.
    """

    cure: str


class SettledUnfit(SettledDead, level=logging.ERROR):
    """A dead task whose data cannot be read, and ``rows``: how many there are since the last line
    about its name.
    """

    rows: int


class SettledUnfitToo(SettledDead, level=logging.DEBUG):
    """A further one, soon after that line: a flood of them must not fill the log."""


class ClaimSuspect(AttemptEvent, name="claim_suspect", level=logging.WARNING): ...


class ClaimLostEvent(AttemptEvent, name="claim_lost", level=logging.WARNING):
    """The claim was lost; its outcome, if any, was rejected."""

    #: The outcome of the attempt, as in ``Settled``.
    outcome: ClassVar[str] = Outcome.LOST
    error: ClassVar[str | None] = None
    reason: str | None = None


class HeartbeatSent(Event, name="heartbeat", level=logging.DEBUG):
    count: int
    lost: int = 0
    skew: float | None = None


class Reaped(AttemptEvent, name="reaped", level=logging.WARNING):
    """A dead holder's claim was taken over; ``outcome`` is that of the slot, ``rerun`` if it runs
    again.
    """

    outcome: str
    reason: str | None = None
    holder: str


class ReapedLost(Reaped, level=logging.ERROR):
    """A slot or a task was lost for good with its holder."""


class HandedBackEvent(AttemptEvent, name="handed_back"):
    outcome: ClassVar[str] = Release.HANDED_BACK
    error: ClassVar[str | None] = None
    reason: str


class SlotsSkipped(Event, name="skipped"):
    """Slots that will not run, from ``first`` to ``last``, with the reason that ledger or gap
    gives.
    """

    job: str
    id: str
    first: datetime
    last: datetime
    count: int
    reason: str


class SlotsSkippedTogether(SlotsSkipped, level=logging.DEBUG):
    """One range of several that a claim or a settlement skips; ``BatchSkipped`` has all of
    them.
    """


class BatchSkipped(Event, name="batch_skipped"):
    """A claim or a settlement skips several ranges of slots: one event, where one for each would
    cost much.

    ``count`` is the number of slots, ``first`` and ``last`` are the oldest and the newest,
    ``reasons`` all that occur.
    """

    jobs: int
    first: datetime
    last: datetime
    count: int
    reasons: Sequence[str]
    ranges: Sequence[tuple[Key, Gap]] = field(repr=False)


class SlotsSuperseded(SlotsSkipped, level=logging.WARNING):
    """A deploy skips slots that an earlier schedule of the job still owed."""


def skipped(
    worker: str, key: Key, gap: Gap, kind: type[SlotsSkipped] = SlotsSkipped
) -> SlotsSkipped:
    kind = SlotsSuperseded if gap.reason == Reason.SUPERSEDED else kind
    return kind(
        worker=worker,
        job=key.task_name,
        id=key.task_instance,
        first=gap.first,
        last=gap.last,
        count=gap.count,
        reason=gap.reason,
    )


def settlement_event(
    claim: Claim,
    transition: Transition | None,
    exception: BaseException | None = None,
    unfit: int | None = None,
) -> Settled | HandedBackEvent | None:
    """Return what became of a claim, as an event; None if it was lost.

    ``exception`` is what the handler raised. ``unfit``: its data cannot be read; the number of
    such rows to log now.
    """
    if transition is None:
        return None
    record = transition.record or transition.ended
    reason = None if record is None else record.reason
    if transition.label == Release.HANDED_BACK:
        return HandedBackEvent(**about(claim), reason=reason or Release.HANDED_BACK)
    facts = about(claim) | {
        "outcome": transition.label,
        "reason": reason,
        "error": error_summary(_error_of(transition, record)) or None,
        "exception": exception,
    }
    if transition.label == Outcome.DEAD:
        return _dead(claim, facts, unfit)
    if transition.label not in (Outcome.FAILED, Outcome.LOST):
        return Settled(**facts)
    is_final = record is None or record.final
    return SettledFailed(**facts) if is_final else SettledAgain(**facts)


def _error_of(transition: Transition, record: Record | None) -> str | None:
    error = None if record is None else record.error
    return error or (transition.row or {}).get("last_error")


def _dead(claim: Claim, facts: dict[str, Any], unfit: int | None) -> SettledDead:
    facts["cure"] = _cure(claim)
    if unfit:
        return SettledUnfit(rows=unfit, **facts)
    return SettledDead(**facts) if unfit is None else SettledUnfitToo(**facts)


def _cure(claim: Claim) -> str:
    """Return the command that retries a dead task or a job's dead slot, or shows an instance's
    dead slot.
    """
    row = claim.row
    instance = claim.row.plan_instance or claim.row.task_instance
    program = SlotwiseError.program.split()
    if claim.slot is None:
        return shlex.join([*program, "tasks", "retry", row.task_name, instance])
    if instance != RECURRING:
        return shlex.join([*program, "slots", row.task_name, "--id", instance])
    return shlex.join([*program, "retry", row.task_name, claim.slot.isoformat()])


class Pruned(Event, name="pruned"):
    """Expired history was deleted from the ledger."""

    slots: int
    gaps: int


class Planned(Event, name="planned"):
    """``change``: added, changed, kept, deleted or outdated."""

    job: str
    change: str
    schedule: str
    next_slot: datetime | None


class PlanKept(Planned, level=logging.DEBUG):
    """The row was as the code has it: a worker may have 100,000 such jobs."""


class PlanRefused(Planned, level=logging.WARNING):
    """The row keeps ``schedule``, of revision ``planned_by``; this worker proposed ``refused``
    with ``revision``.
    """

    refused: str
    revision: str
    planned_by: str
    cure: str


class SlotsMoved(Event, name="slots_moved", level=logging.WARNING):
    """``count`` rows of ``job`` store ``stored`` as their next slot, where the schedule now gives
    ``computed``.
    """

    job: str
    id: str
    stored: datetime | None
    computed: datetime | None
    count: int


class WorkerStarted(Event, name="worker_start"):
    capacity: int
    jobs: int


class DrainBegan(Event, name="drain_begin"):
    running: int


class DrainEnded(Event, name="drain_end"):
    unfinished: int


class DatabaseLost(Event, name="database_lost", level=logging.WARNING):
    """A loop cannot reach or write the database, and waits with growing pauses; published once per
    outage.
    """

    loop: str
    error: str


class DatabaseBack(Event, name="database_back"):
    loop: str


Listener: TypeAlias = "Callable[[Event], None]"


def log_record(logger: logging.Logger, event: Event, text: str) -> logging.LogRecord:
    """Return the record of an event for ``logger``, with the event's fields as attributes.

    A formatter of the application writes the traceback as it stands in ``exc_text``: without
    secrets, and with each line indented, so that no message of an exception looks like a record.
    """
    error: BaseException | None = getattr(event, "exception", None)
    trouble = None if error is None else (type(error), error, error.__traceback__)
    facts = {"event": event.name, **event.facts()}
    place = (logger.name, event.level, __file__, 0)
    record = logger.makeRecord(*place, "%s", (text,), trouble, extra=facts)
    if trouble is not None:
        trace = storable(logging.Formatter().formatException(trouble))
        record.exc_text = _indented(trace)
    return record


def _indented(trace: str) -> str:
    lines = (escaped(line.expandtabs()) for line in trace.splitlines())
    return "\n".join(f"  {line}".rstrip() for line in lines)


class Listeners:
    """Deliver events to all listeners; the error of a listener is logged and changes nothing.

    Unless a listener ``writes_log``, events of level WARNING or above are logged here, in one
    line. ``levels``: by job, the level below which its events are not written to the log.
    """

    __slots__ = (
        "_levels",
        "_listeners",
        "_logs_trouble",
        "_wants",
        "hear",
        "on_skipped",
    )

    def __init__(
        self,
        listeners: tuple[Listener, ...] = (),
        levels: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._levels = levels
        self._listeners: tuple[Listener, ...] = ()
        self._wants: tuple[Callable[[type[Event]], bool], ...] = ()
        self._logs_trouble = True
        #: Whether a listener wants this kind of event: check it before creating one on a hot path.
        self.hear: Callable[[type[Event]], bool] = frozenset[
            type[Event]
        ]().__contains__
        #: Gets all ranges of skipped slots: with a listener, each check above would cost more.
        self.on_skipped: Callable[[Sequence[tuple[Key, Gap]]], object] = (
            lambda ranges: None
        )
        for listener in listeners:
            self.add(listener)

    def add(self, listener: Listener) -> None:
        """Add a listener. One with a method ``wants(kind)`` decides by that what it hears; any
        other wants all.
        """
        self.hear = lambda kind: any(wants(kind) for wants in self._wants)
        self._listeners = (*self._listeners, listener)
        self._wants = (*self._wants, getattr(listener, "wants", lambda kind: True))
        self._logs_trouble = self._logs_trouble and not getattr(
            listener, "writes_log", False
        )

    def publish(self, event: Event) -> None:
        least = self._levels.get(getattr(event, "job", ""), 0) if self._levels else 0
        is_logged = event.level >= least
        is_trouble = self._logs_trouble and event.level >= logging.WARNING
        if is_trouble and is_logged and logger.isEnabledFor(event.level):
            told = (f"{name}={value}" for name, value in event.facts().items())
            text = " ".join([event.name, *told])
            logger.handle(log_record(logger, event, escaped(text)))
        for listener in self._listeners:
            if not is_logged and getattr(listener, "writes_log", False):
                continue
            try:
                listener(event)
            except KeyboardInterrupt:
                raise  # the interrupt is for the publisher in the main thread
            except BaseException:
                logger.exception(
                    "a listener failed on %s; the others still receive the event",
                    event.name,
                )

    def skipped(self, worker: str, ranges: Sequence[tuple[Key, Gap]]) -> None:
        """Publish that these slots will not run: several ranges together, and each for listeners
        that want DEBUG.
        """
        self.on_skipped(ranges)
        if len(ranges) == 1:
            self.publish(skipped(worker, *ranges[0]))
            return
        if ranges and self.hear(BatchSkipped):
            self.publish(_batch_skipped(worker, ranges))
        if self.hear(SlotsSkippedTogether):
            for key, gap in ranges:
                self.publish(skipped(worker, key, gap, SlotsSkippedTogether))


def _batch_skipped(worker: str, ranges: Sequence[tuple[Key, Gap]]) -> BatchSkipped:
    gaps = [gap for _, gap in ranges]
    return BatchSkipped(
        worker=worker,
        jobs=len({key for key, _ in ranges}),
        first=min(gap.first for gap in gaps),
        last=max(gap.last for gap in gaps),
        count=sum(gap.count for gap in gaps),
        reasons=sorted({gap.reason for gap in gaps}),
        ranges=ranges,
    )
