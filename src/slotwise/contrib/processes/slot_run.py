"""Run one slot of a job's schedule in the foreground, as in the pod of a CronJob.

It is claimed from the job's row as in a pool, so the job's policies decide: catch-up may run older
slots first, or the newest for the one that was asked for. The process reports each slot that it
started, and stays until the ledger has its end. It leaves earlier if another holder has the slot,
or if it waits for a retry, and a live worker can finish that.

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

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias, TypeVar

from slotwise import (
    ConfigurationError,
    Disabled,
    InvalidSchedule,
    JobCancelled,
    JobRegistry,
    Schedule,
    parse_schedule,
)
from slotwise.contrib.processes.pruning import prune_for
from slotwise.contrib.processes.slot_steps import (
    Leave,
    Over,
    Stay,
    Step,
    Take,
    next_step,
)
from slotwise.spi import (
    Facts,
    Key,
    Outcome,
    Reason,
    Row,
    SlotState,
    instant_text,
    plan_row,
    slot_state,
)

#: Which slot: the newest that has come, the one before it, or the one of an instant.
Wanted: TypeAlias = Literal["due", "previous"] | datetime


#: The smallest step between two instants.
TICK: Final = timedelta(microseconds=1)
#: The longest pause between two looks at a slot that another process holds. This and the next are
#: reasoned, not measured.
LOOK_AGAIN: Final = timedelta(seconds=5)
#: How long a process prunes the ledger after its slot. What is left waits for the next turn.
PRUNE_FOR: Final = timedelta(seconds=20)
#: The pause after a claim that got nothing though the row was due: another claim, or an operation,
#: has it locked.
CONTENDED: Final = timedelta(milliseconds=200)

T = TypeVar("T")


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


class SlotRun:
    """Run one slot of the schedule of the job ``name``, as in the pod of a CronJob."""

    def __init__(
        self,
        registry: JobRegistry,
        name: str,
        wanted: Wanted = "due",
        *,
        early: timedelta = timedelta(0),
        waits: bool = True,
        tell: Callable[[str], object] = lambda line: None,
    ) -> None:
        """``wanted``: the newest slot that has come, the one before it, or the one of an instant.
        ``early``: how long to wait for a slot that is about to come, because the caller's clock
        may be ahead. ``waits``: wait for another holder where no worker is live. ``tell`` receives
        a line for each wait.

        Raises UnknownTask, and ConfigurationError for a one-time task. Close the registry's
        ``database`` after it.
        """
        self.worker = worker = registry.worker_of_one_slot(name)
        self._name = name
        self._wanted = wanted
        self._definition = registry.definitions[name]
        self._early = early
        self._waits = waits
        self._tell = tell
        self._asked = threading.Event()
        self._told: str | None = None
        self._has_entered = False
        self._ran: Counter[datetime] = Counter()
        self._schedule: Schedule = Disabled()
        self._pause = min(worker.store.poll, worker.reaper.interval, LOOK_AGAIN)

    def run(self) -> SlotEnd:
        """Choose the slot, and stay until it has ended or others finish it.

        Raise what a worker's start raises, DatabaseUnreachable, ConfigurationError for a slot that
        cannot run here, with the cure, and JobCancelled if a stop was requested before the slot
        was claimed.
        """
        self._refuse_missing_tags()
        sign_in = self.worker.sign_in
        sign_in.verify()
        is_deploy = self._lasting(lambda: sign_in.would_change(self._definition))
        try:
            if (
                is_deploy
            ):  # the lifespan may refuse the start before a schedule changes
                self._enter()
            end = self._run()
        finally:
            if self._has_entered:
                self.worker.stop(ending=True)
        if self._has_entered and not end.unfinished:
            prune_for(self.worker, PRUNE_FOR, self._asked)
        return end

    def _run(self) -> SlotEnd:
        sign_in = self.worker.sign_in
        from_due = self._early if self._wanted == "due" else None
        self._lasting(lambda: sign_in.plan(only=self._name, from_due=from_due))
        slots = self._choose()
        if not slots:
            return SlotEnd(
                job=self._name,
                slot=None,
                outcome=SlotState.NO_SLOT,
                left="no slot has come yet",
            )
        if (
            len(slots) == 1
            and (end := self._settled(self._state(slots[0]))) is not None
        ):
            return end
        if not self._has_entered:
            self._enter()
        return self._with_others(self._run_in_order(slots))

    def _enter(self) -> None:
        """Enter the lifespan, and begin to renew and settle claims."""
        self._has_entered = True
        self.worker.mind()

    def _refuse_missing_tags(self) -> None:
        offered = self.worker.settings.tags
        if not self._definition.may_run_on(offered):
            missing = ",".join(sorted(self._definition.runs_on - offered))
            raise ConfigurationError(
                f"job {self._name!r} runs on {missing}, which this process does "
                f"not offer; set SLOTWISE_TAGS={missing}"
            )

    def _run_in_order(self, slots: Sequence[datetime]) -> SlotEnd:
        """Run one slot after the other, until one does not succeed; return the last end."""
        for slot in slots:
            while (left := slot - self._lasting(self.worker.store.now)) > timedelta(0):
                self._say(f"slot {instant_text(slot)} has not come yet: waiting")
                self._sleep(left)
            end = self._pursue(slot)
            if not end.succeeded or self.worker.is_draining:
                break
        return end

    def stop(self) -> None:
        """Request the end, from any thread: drain like a worker. A second call asks the handler to
        stop now.
        """
        if self._asked.is_set():
            self.worker.cancel()
        self._asked.set()
        self.worker.request_stop()

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
        if self._wanted == "previous":
            before = None if due is None else schedule.latest_before(due)
            return [] if before is None else [before]
        coming = schedule.next_after(now)
        if coming is None or coming - now > self._early:
            return [] if due is None else [due]
        if due is None or not isinstance(self._next(self._state(due)), Take):
            return [coming]
        return [due, coming]

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

    def _instant(
        self, wanted: datetime, schedule: Schedule, now: datetime
    ) -> datetime:
        """Return the instant if it is a slot that has come, or is about to. Raise
        ConfigurationError otherwise.

        A slot that is not due is returned to a process that does not wait: it ends with a line.
        """
        if (
            schedule.next_after(wanted - TICK) != wanted
            and self._state(wanted).entry is None
        ):
            near = [schedule.latest_before(wanted), schedule.next_after(wanted)]
            nearest = " and ".join(
                instant_text(one) for one in near if one is not None
            )
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
            return SlotEnd(
                job=self._name, slot=slot, outcome=SlotState.WAITING, left=why
            )
        if not found.is_over and not self._schedule.runs(
            slot
        ):  # the ledger has it once the next slot has come
            return SlotEnd(
                job=self._name,
                slot=slot,
                outcome=Outcome.SKIPPED,
                reason=Reason.CALENDAR,
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
        while (
            started and not self._asked.is_set() and not active_claims.wait_empty(0.05)
        ):
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
        left = step.why if isinstance(step, Leave) else None
        state = step.state if isinstance(step, Leave) else None
        if entry is None:
            outcome = state or SlotState.UNDECIDED
            return SlotEnd(job=self._name, slot=found.slot, outcome=outcome, left=left)
        return SlotEnd(
            job=self._name,
            slot=found.slot,
            outcome=state or entry.outcome,
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
        if not self.worker.is_draining and not self.worker.keep_trying(
            lambda: found.append(ask()), self._asked
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
