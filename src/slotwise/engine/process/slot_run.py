"""Run one slot of a job in the foreground: one of its own, now, or one of the schedule, as in the
pod of a CronJob.

A slot of its own is a trigger, claimed before other workers see it. A slot of the schedule is
claimed from the job's row as in a pool, so the job's policies decide: catch-up may run older slots
first, or the newest for the one that was asked for. The process reports each slot that it started,
and stays until the ledger has its end. It leaves earlier if another holder has the slot, or if it
waits for a retry, and a live worker can finish that.

Races:

- Two processes, or a process and a worker, claim the slot at once: the row's lock lets one of
  them. The other finds a held row, and waits or leaves.
- The slot ends between two looks: rows are read before the ledger (``slot_state``), so its end is
  seen.
- The holder dies, and no worker is alive to notice: a process that waits runs its reaper between
  its looks.
- This process loses its claim while it runs the slot: the settlement is rejected, and the process
  looks again.
- The reply to a claim is lost: the next heartbeat finds the row and hands it back. Until then it
  counts as held.
- A stop comes while the slot runs: the process drains like a worker. One that comes while it waits
  ends it at once.
- The caller's clock is ahead, and the slot before the coming one is still to start: both run here,
  in this order. If only the older one ran, each later process would be one slot behind.
- Two processes plan a new job at once: the key of the row permits one insert; both then see the
  same slots.
- All is paused between the look and the claim, which names its row: the slot may start, as if
  claimed just before.
"""

from __future__ import annotations

import difflib
import logging
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from queue import Empty, SimpleQueue
from typing import Literal, TypeAlias, TypeVar

from slotwise.engine.process.tuning import (
    CONTENDED,
    HANDLER_PATIENCE,
    LOOK_AGAIN,
    PRUNE_FOR,
)
from slotwise.engine.run.active_claims import Holding
from slotwise.engine.sign_in import keep_trying
from slotwise.engine.worker import Worker
from slotwise.errors import (
    ClaimLost,
    ConfigurationError,
    InvalidSchedule,
    JobCancelled,
    UnknownTask,
)
from slotwise.jobs.definition import Definition
from slotwise.model.clock import elapsed
from slotwise.model.events import (
    AttemptEvent,
    ClaimLostEvent,
    Event,
    HandedBackEvent,
    Settled,
)
from slotwise.model.records import TICK, Aborted, Claim, Key, Row
from slotwise.model.vocabulary import Outcome, Reason, RowState, SlotState
from slotwise.schedules import Disabled, Schedule, parse_schedule
from slotwise.schedules.base import instant_text
from slotwise.store.connect.database_errors import describe_error
from slotwise.store.operations.slot_operations import claim_trigger
from slotwise.store.reading import slots
from slotwise.store.reading.facts import Facts, plan_row, slot_state
from slotwise.store.slots.claims import Taken

logger = logging.getLogger(__name__)

#: Which slot: the newest that has come, the one before it, or the one of an instant.
Wanted: TypeAlias = Literal["due", "previous"] | datetime


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the slot ended. ``reason`` is ``retry`` if a worker makes another attempt.

    ``left_behind``: the handler did not stop when asked, and still runs in this process.
    """

    job: str
    slot: datetime
    attempt: int
    token: int
    outcome: str
    reason: str | None
    error: str | None
    took: timedelta
    left_behind: bool = False

    @property
    def succeeded(self) -> bool:
        return self.outcome == Outcome.SUCCEEDED


class SingleRun:
    """Run one slot of ``name`` with ``worker``, which must not have been started."""

    def __init__(self, worker: Worker, name: str) -> None:
        self.worker = worker
        self._definition = definition_of(worker, name)
        self._elapsed = worker.clock.elapsed
        self._ends: SimpleQueue[Settled | HandedBackEvent | ClaimLostEvent] = SimpleQueue()
        self._cancelled: float | None = None
        self._holding: Holding | None = None
        worker.listeners.add(self._listen)

    def run(self) -> Ended:
        """Claim, run and settle the slot; return how it ended. A failed handler is a value, not an
        exception.

        Raise what a worker's start raises, DatabaseUnreachable, JobCancelled if a stop was
        requested before the claim, and ClaimLost if the slot was taken over while it ran.
        """
        worker = self.worker
        worker.sign_in.verify()
        try:
            worker.mind()
            if self._cancelled is not None:  # while entering the lifespan
                name = self._definition.name
                raise JobCancelled(
                    f"job {name!r} was asked to stop before it had started: nothing was claimed"
                )
            begun = self._elapsed()
            self._holding = self._claim()
            claim = self._holding.claim
            if self._cancelled is not None:
                self._holding.signal.set(Reason.OPERATOR)  # requested before the claim
            left_behind = self._wait(self._holding)
            end = None
            with suppress(Empty):
                end = self._ends.get(timeout=HANDLER_PATIENCE.total_seconds())
        finally:
            worker.close()
        return self._ended(
            claim, end, timedelta(seconds=self._elapsed() - begun), left_behind
        )

    def cancel(self) -> None:
        """Ask the handler to stop; a second call stops waiting for it. From any thread."""
        if self._cancelled is not None:
            self._cancelled = 0.0
            return
        self._cancelled = self._elapsed() + HANDLER_PATIENCE.total_seconds()
        self.worker.cancel()  # cancels a lifespan that is being entered, and bounds its exit
        if self._holding is not None:
            self._holding.signal.set(Reason.OPERATOR)

    def _claim(self) -> Holding:
        """Claim and start the slot. A job without a row is planned first; an existing row stays
        as it is.
        """
        worker = self.worker
        job = self._definition

        def claim() -> Taken:
            found = claim_trigger(
                worker.store,
                worker.name,
                job.name,
                lease=worker.settings.lease,
                strict=job.gives_up,
            )
            return Taken(0, [], []) if found is None else Taken(1, [found], [])

        for _ in range(2):
            try:
                _, held = worker.poller.hold(claim)
            except UnknownTask:
                worker.sign_in.plan(only=job.name)
            else:
                if held:
                    return held[0]
        raise ConfigurationError(
            f"job {job.name!r} could not be triggered; something deletes rows of its table"
        )

    def _wait(self, holding: Holding) -> bool:
        """Wait until the slot is settled; return True if its handler was left behind."""
        active_claims = self.worker.active_claims
        while not active_claims.wait_empty(0.05):
            if self._cancelled is not None and self._elapsed() >= self._cancelled:
                self.worker.settler.put(holding, Aborted(Reason.OPERATOR))
                return (
                    not active_claims.wait_empty(HANDLER_PATIENCE.total_seconds()) or True
                )
        return False

    def _listen(self, event: Event) -> None:
        if isinstance(event, Settled | HandedBackEvent | ClaimLostEvent):
            holding = self._holding
            if (
                isinstance(event, ClaimLostEvent)
                and holding is not None
                and holding.claim in self.worker.active_claims
            ):
                return  # reported early, by a heartbeat; the settlement reports it again
            self._ends.put(event)

    def _ended(
        self, claim: Claim, end: AttemptEvent | None, took: timedelta, left_behind: bool
    ) -> Ended:
        slot = claim.slot
        assert slot is not None  # a triggered job has one
        if not isinstance(end, Settled | HandedBackEvent):
            raise ClaimLost(
                f"job {claim.row.task_name!r}: the claim was lost; another worker "
                f"may run slot {slot}"
            )
        line = slots.slot(self.worker.store, claim.row.task_name, slot)
        return Ended(
            job=claim.row.task_name,
            slot=slot,
            attempt=claim.row.attempt,
            token=claim.token,
            outcome=end.outcome,
            reason=end.reason,
            error=line.error if line else None,
            took=took,
            left_behind=left_behind,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotEnd:
    """How the slot ended, as far as this process has seen.

    ``outcome`` is that of the ledger, or the state of a slot that was left to others, with the
    reason in ``left``. ``ran_here``: how many attempts of the slot this process made;
    ``ended_here``: whether it settled the slot. ``others``: the ends of the other slots that it
    started, because catch-up decided so. ``unfinished``: a handler did not stop, or an outcome
    could not be written; end the process at once.
    """

    job: str
    slot: datetime | None
    outcome: str
    reason: str | None = None
    error: str | None = None
    attempts: int = 0
    worker: str | None = None
    started: datetime | None = None
    finished: datetime | None = None
    left: str | None = None
    ran_here: int = 0
    ended_here: bool = False
    others: tuple[SlotEnd, ...] = ()
    unfinished: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether the slot, and each of ``others``, succeeded, was not to run, or was left to
        others unstarted.
        """
        here = (
            not self.ran_here
            if self.left is not None
            else self.outcome in (Outcome.SUCCEEDED, Outcome.SKIPPED)
        )
        return here and all(other.succeeded for other in self.others)


@dataclass(frozen=True, slots=True)
class Take:
    """Claim this row."""

    key: Key


@dataclass(frozen=True, slots=True)
class Stay:
    """Look again when it is ``until``, or after a pause; ``why`` is told once."""

    why: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """Others finish the slot, which is in this state, or nobody does."""

    why: str
    state: str


@dataclass(frozen=True, slots=True)
class Over:
    """The ledger has the slot's end."""


Step: TypeAlias = Take | Stay | Leave | Over


def next_step(found: Facts, *, me: str, waits: bool) -> Step | None:
    """Return what to do about a slot; None: the job's row has passed it, and the ledger does not
    have it. Pure.

    ``me`` is this process as a holder. Without ``waits``, only a slot that can start now is taken.
    """
    row = found.row
    if found.is_over:
        return Over()
    if found.paused is not None:
        return Leave(f"{found.paused}; it starts no slot", RowState.PAUSED)
    if row is None:
        return None
    if row.picked:
        return _while_held(found, row, me=me, waits=waits)
    return _while_waiting(found, row, waits=waits)


def _while_held(found: Facts, row: Row, *, me: str, waits: bool) -> Step:
    what = "it is"
    if row.slot is not None and row.slot != found.slot:
        what = f"slot {instant_text(row.slot)} is"
    held = f"{what} held by {row.picked_by}"
    if row.picked_by == me:
        return Stay(
            held
        )  # the reply to the claim was lost: the next heartbeat hands it back
    left = _others(found, held, Outcome.RUNNING, waits=waits)
    return left or Stay(f"{held}, and no worker is live: waiting")


def _while_waiting(found: Facts, row: Row, *, waits: bool) -> Step:
    if row.state is None and row.execution_time <= found.now:
        return Take(row.key)
    if row.state == RowState.DELETED:
        return Leave("the job was deleted", RowState.DELETED)
    if row.attempt:
        why = f"attempt {row.attempt + 1} is due at {instant_text(row.execution_time)}"
        left = _others(found, why, SlotState.WAITING, waits=waits)
        return left or Stay(f"{why}, and no worker is live: waiting", row.execution_time)
    why = (
        f"it is due at {instant_text(row.due)}"
        if row.state is None
        else f"it is {row.state}"
    )
    return Stay(f"{why}: waiting", row.due) if waits else Leave(why, SlotState.WAITING)


def _others(found: Facts, why: str, state: StrEnum, *, waits: bool) -> Leave | None:
    if found.obstacle is None:
        return Leave(f"{why}, and a live worker can finish it", state)
    return None if waits else Leave(f"{why}; not waiting", state)


class SlotRun:
    """Run a slot of the schedule of job ``name`` with ``worker``, which must not have been
    started.
    """

    def __init__(
        self,
        worker: Worker,
        name: str,
        wanted: Wanted = "due",
        *,
        early: timedelta = timedelta(0),
        waits: bool = True,
        tell: Callable[[str], object] = lambda line: None,
    ) -> None:
        """``early``: how long to wait for a slot that is about to come, because the caller's clock
        may be ahead.

        ``waits``: wait for another holder where no worker is live. ``tell`` receives a line for
        each wait. Raise UnknownTask for no job.
        """
        self.worker = worker
        self._name = name
        self._wanted = wanted
        self._definition = definition_of(worker, name)
        self._early = early
        self._waits = waits
        self._tell = tell
        self._asked = threading.Event()
        self._told: str | None = None
        self._ran: Counter[datetime] = Counter()
        self._schedule: Schedule = Disabled()
        self._pause = min(worker.store.poll, worker.reaper.interval, LOOK_AGAIN)

    def run(self) -> SlotEnd:
        """Choose the slot, and stay until it has ended or others finish it.

        Raise what a worker's start raises, DatabaseUnreachable, ConfigurationError for a slot that
        cannot run here, with the cure, and JobCancelled if a stop was requested before the slot
        was claimed.
        """
        worker = self.worker
        if not self._definition.may_run_on(worker.settings.tags):
            missing = ",".join(sorted(self._definition.runs_on - worker.settings.tags))
            raise ConfigurationError(
                f"job {self._name!r} runs on {missing}, which this process does "
                f"not offer; set SLOTWISE_TAGS={missing}"
            )
        worker.sign_in.verify()
        from_due = self._early if self._wanted == "due" else None
        self._lasting(lambda: worker.sign_in.plan(only=self._name, from_due=from_due))
        slots = self._choose()
        if not slots:
            return SlotEnd(
                job=self._name,
                slot=None,
                outcome=SlotState.NO_SLOT,
                left="no slot has come yet",
            )
        if len(slots) == 1 and (end := self._settled(self._state(slots[0]))) is not None:
            return end  # before the lifespan is entered
        try:
            worker.mind()
            for slot in slots:
                while (left := slot - self._lasting(worker.store.now)) > timedelta(0):
                    self._say(f"slot {instant_text(slot)} has not come yet: waiting")
                    self._sleep(left)
                end = self._pursue(slot)
                if not end.succeeded or worker.is_draining:
                    break
            assert end is not None
            end = self._with_others(end)
        finally:
            worker.stop(ending=True)
        if not end.unfinished:
            self._prune()
        return end

    def stop(self) -> None:
        """Request the end, from any thread: drain like a worker. A second call asks the handler to
        stop now.
        """
        if self._asked.is_set():
            self.worker.cancel()
        self._asked.set()
        self.worker.request_stop()

    def _prune(self) -> None:
        """Prune the ledger if it is time, for a while: where all jobs run in pods, no worker
        does.
        """
        until = elapsed() + PRUNE_FOR.total_seconds()
        try:
            self.worker.pruning.run_once()
            while (
                self.worker.pruning.is_walking
                and elapsed() < until
                and not self._asked.is_set()
            ):
                self.worker.pruning.run_once()
        except Exception as error:
            logger.warning(
                "the ledger was not pruned, a later run continues: %s",
                describe_error(error),
            )

    # -- which slot -------------------------------------------------------------------------------

    def _choose(self) -> list[datetime]:
        """Return the wanted slot; before it, one that is still to start though the next one is
        about to come.
        """
        now, row = self._lasting(lambda: plan_row(self.worker.store, self._name))
        self._schedule = schedule = self._read(row)
        if isinstance(self._wanted, datetime):
            return [self._instant(self._wanted, schedule, now)]
        due = schedule.latest_before(now + TICK)
        coming = schedule.next_after(now)
        if self._wanted == "previous":
            due = None if due is None else schedule.latest_before(due)
            coming = None
        if coming is not None and coming - now > self._early:
            coming = None
        if (
            due is not None
            and coming is not None
            and not isinstance(self._next(self._state(due)), Take)
        ):
            due = None
        return [slot for slot in (due, coming) if slot is not None]

    def _read(self, row: Row | None) -> Schedule:
        try:
            schedule = parse_schedule((row and row.schedule) or "-")
        except InvalidSchedule as error:
            cure = "deploy the release that wrote it"
            raise ConfigurationError(
                f"job {self._name!r}: its row cannot be read: {error}; {cure}"
            ) from None
        if schedule.from_end:
            raise ConfigurationError(
                f"job {self._name!r}: {schedule} has no slots of its own; leave "
                "out --slot to run it now"
            )
        return schedule

    def _instant(self, wanted: datetime, schedule: Schedule, now: datetime) -> datetime:
        """Return the instant if it is a slot that has come, or is about to. Raise
        ConfigurationError otherwise.

        A slot that is not due is returned to a process that does not wait: it ends with a line.
        """
        if (
            schedule.next_after(wanted - TICK) != wanted
            and self._state(wanted).entry is None
        ):
            near = [schedule.latest_before(wanted), schedule.next_after(wanted)]
            nearest = " and ".join(instant_text(one) for one in near if one is not None)
            cure = (
                f"its nearest slots are {nearest}"
                if nearest
                else f"its schedule, {schedule}, has no slots"
            )
            raise ConfigurationError(
                f"{instant_text(wanted)} is no slot of job {self._name!r}; {cure}"
            )
        if self._waits and wanted - now > self._early:
            raise ConfigurationError(
                f"slot {instant_text(wanted)} of job {self._name!r} has not come, "
                f"it is {instant_text(now)} in the "
                "database; wait, or allow a longer --early"
            )
        return wanted

    # -- until its end ----------------------------------------------------------------------------

    def _settled(self, found: Facts) -> SlotEnd | None:
        """Return the end of a slot for which nothing is to do here; None if it has not come, or is
        to run.
        """
        slot = found.slot
        if slot > found.now:
            if self._waits or slot - found.now <= self._early:
                return None
            why = f"it has not come, it is {instant_text(found.now)} in the database; not waiting"
            return SlotEnd(job=self._name, slot=slot, outcome=SlotState.WAITING, left=why)
        if not found.is_over and not self._schedule.runs(
            slot
        ):  # the ledger has it once the next slot has come
            return SlotEnd(
                job=self._name, slot=slot, outcome=Outcome.SKIPPED, reason=Reason.CALENDAR
            )
        step = self._step(found)
        return self._end(found, step) if isinstance(step, Over | Leave) else None

    def _pursue(self, slot: datetime) -> SlotEnd:
        while True:
            found = self._state(slot)
            if (end := self._settled(found)) is not None:
                return end
            match step := self._step(found):
                case Take():
                    if self._take(step.key):
                        if self.worker.is_draining:
                            return self._drained(slot)
                    else:
                        self._sleep(CONTENDED)
                case Stay():
                    self._say(f"slot {instant_text(slot)}: {step.why}")
                    if found.row is not None and found.row.picked:
                        self._lasting(self.worker.reaper.run_once)
                    self._sleep(
                        self._pause
                        if step.until is None
                        else min(self._pause, step.until - found.now)
                    )

    def _with_others(self, end: SlotEnd) -> SlotEnd:
        """Pursue each other slot that this process started to its end, and add what became of
        it.
        """
        others: dict[datetime, SlotEnd] = {}
        while not end.unfinished and (
            missing := self._ran.keys() - others.keys() - {end.slot}
        ):
            slot = min(missing)
            others[slot] = (
                self._drained(slot) if self.worker.is_draining else self._pursue(slot)
            )
            end = replace(end, unfinished=others[slot].unfinished)
        return replace(end, others=tuple(others[slot] for slot in sorted(others)))

    def _state(self, slot: datetime) -> Facts:
        return self._lasting(lambda: slot_state(self.worker.store, self._name, slot))

    def _next(self, found: Facts) -> Step | None:
        return next_step(found, me=self.worker.name, waits=self._waits)

    def _step(self, found: Facts) -> Step:
        """Return what to do. A slot that the schedule never had to decide runs only by an
        explicit order.
        """
        if (step := self._next(found)) is not None:
            return step
        at = instant_text(found.slot)
        why = (
            f"it came before the job had this schedule, and is not in the ledger; to run it: "
            f"slotwise backfill {self._name} --from {at} --to {at}"
        )
        if self._wanted != "due":
            raise ConfigurationError(f"slot {at} of job {self._name!r}: {why}")
        return Leave(why, SlotState.UNDECIDED)

    def _take(self, key: Key) -> bool:
        """Claim the row and run what it starts; return False if it started nothing."""
        active_claims = self.worker.active_claims
        started = self._lasting(lambda: self._claim(key))
        while started and not self._asked.is_set() and not active_claims.wait_empty(0.05):
            pass
        # Race: the handler may have ended between the request to stop and this look at it. The
        # drain settles it, too.
        if started and self._asked.is_set():
            self.worker.stop(ending=True)
        return started

    def _claim(self, key: Key) -> bool:
        worker = self.worker
        claims = worker.store.claims
        lease = worker.settings.lease
        _, held = worker.poller.hold(
            lambda: claims.claim_row(worker.name, key, lease=lease)
        )
        for holding in held:
            assert holding.claim.slot is not None  # the row is a job's
            self._ran[holding.claim.slot] += (
                1  # not always the slot that was asked for: catch-up decides
            )
        return bool(held)

    def _drained(self, slot: datetime) -> SlotEnd:
        """Return the end after a stop. If anything was left behind, the process must end now,
        without another query.
        """
        if self.worker.unfinished:
            return SlotEnd(
                job=self._name,
                slot=slot,
                outcome=Outcome.RUNNING,
                left="its handler did not stop",
                ran_here=self._ran[slot],
                unfinished=True,
            )
        found = self._state(slot)
        return self._end(
            found,
            Over()
            if found.is_over
            else Leave("this process was stopped", SlotState.WAITING),
        )

    def _end(self, found: Facts, step: Over | Leave) -> SlotEnd:
        entry = found.entry if found.entry is not None else found.gap
        left, outcome = (step.why, step.state) if isinstance(step, Leave) else (None, None)
        if entry is None:
            return SlotEnd(
                job=self._name,
                slot=found.slot,
                outcome=outcome or SlotState.UNDECIDED,
                left=left,
            )
        return SlotEnd(
            job=self._name,
            slot=found.slot,
            outcome=outcome or entry.outcome,
            reason=entry.reason,
            error=entry.error,
            attempts=entry.attempts,
            worker=entry.worker,
            started=entry.started,
            finished=entry.finished,
            left=left,
            ran_here=self._ran[found.slot],
            ended_here=entry.worker == self.worker.name,
        )

    # -- waiting ----------------------------------------------------------------------------------

    def _lasting(self, ask: Callable[[], T]) -> T:
        """Ask the database, again and again while it is away. Raise JobCancelled if a stop was
        requested.
        """
        found: list[T] = []
        if not self.worker.is_draining and not keep_trying(
            lambda: found.append(ask()), self.worker.common, self._asked
        ):
            raise self._cancelled()
        return found[0] if found else ask()

    def _sleep(self, pause: timedelta) -> None:
        if self._asked.wait(max(pause.total_seconds(), 0.0)):
            raise self._cancelled()

    def _cancelled(self) -> JobCancelled:
        return JobCancelled(
            f"job {self._name!r} was asked to stop while it waited: this process holds nothing"
        )

    def _say(self, line: str) -> None:
        if line != self._told:
            self._told = line
            self._tell(line)


def definition_of(worker: Worker, name: str) -> Definition:
    """Return a job of the worker. Raise UnknownTask for no task, and ConfigurationError for a
    one-time task.
    """
    definition = worker.definitions.get(name)
    if definition is None:
        near = difflib.get_close_matches(name, worker.definitions, n=1)
        cure = (
            f"did you mean {near[0]!r}?"
            if near
            else f"known are {', '.join(sorted(worker.definitions))}"
        )
        raise UnknownTask(f"no job {name!r} in this registry; {cure}")
    if not definition.is_job:
        raise ConfigurationError(
            f"{name!r} is a one-time task; schedule it: registry.client.schedule({name!r}, …)"
        )
    return definition
