"""The contract of one job as an executable specification: each slot has a fate or it has none.

The model looks at all slots one by one and computes nothing ahead. It uses no code of the product
except the names with which jobs are declared. The rules are those of the contract's section "Where
policies meet":

| rule | where |
|---|---|
| 1 how long a job is held | ``Endings._held_until``, ``Endings._wait_again``, ``Contract._queue`` |
| 2 what ``unheld_since`` says | ``Endings._judge`` |
| 3 overlap | ``Contract._overlap_decides``, ``Contract._claim_queued`` |
| 4 catch-up | ``Contract._claim_new``, ``Terms.catch_up`` |
| 5 the tail of ``all`` | ``Contract._tail``, ``Endings._go_on_with_the_tail`` |
| 6 ``allow`` and ``cancel_previous`` | ``Contract._find_no_place`` |
| 7 retries, spread, moved due times | ``Endings._is_past_next``, ``Contract.come``, ``Operated.cancel`` |
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tests.model.policies import Terms
from tests.model.timeline import Timeline

SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)
BEAT = timedelta(minutes=1)
LEASE = 6 * BEAT
#: The default of the setting ``poll_interval``.
POLL = timedelta(seconds=10)


@dataclass
class Fate:
    """The expected ledger entry of a slot."""

    outcome: str
    reason: str | None = None
    attempts: int = 0
    lost: int = 0
    aborted: int = 0
    collapsed: int = 0
    final: bool = False
    #: Whether the slot is part of a range, without a ledger row of its own.
    in_gap: bool = False


@dataclass(frozen=True, eq=False)
class Backfill:
    """A backfill operation. ``at_once`` of its slots run side by side."""

    pace: timedelta
    at_once: int


@dataclass(eq=False)
class Course:
    """A row, with the slot that it waits for or is held for. ``attempt`` counts claims that were
    not handed back.
    """

    slot: datetime
    due: datetime
    origin: str = "schedule"
    is_plan: bool = True
    attempt: int = 0
    lost: int = 0
    collapsed: int = 0
    holder: str | None = None
    token: int | None = None
    claimed: datetime | None = None
    started: datetime | None = None
    beat: datetime | None = None
    #: When its slot had started before that.
    started_before: datetime | None = None
    #: When the handler returned, if that was before its settlement.
    ended: datetime | None = None
    completed: bool = False
    called_off: str | None = None
    #: Whether its holder has learned of that.
    told: bool = False
    paused: bool = False
    queued: bool = False
    #: The range of skipped slots that covered the slot before it started.
    gap: Fate | None = None
    backfill: Backfill | None = None
    #: The place among the operations of the one that made this row, or that waits for the end of this
    #: run.
    operation: int | None = None


@dataclass
class Contract:
    """One job: its slots, and the rows in which some of them wait. ``now`` is the database's
    time.
    """

    terms: Terms
    timeline: Timeline
    now: datetime
    poll: timedelta = POLL
    fates: dict[datetime, Fate] = field(default_factory=dict)
    plan: Course | None = None
    beside: list[Course] = field(default_factory=list)
    #: Rule 2. While it is set, overlap decides about slots up to it, and catch-up about later
    #: ones.
    unheld_since: datetime | None = None
    #: Rule 5. The newest slot of the tail that a catch-up by ``all`` runs.
    catch_up_until: datetime | None = None
    is_paused: bool = False
    all_paused: bool = False
    #: When the schedule's last attempt started, and the one before it.
    last_start: datetime | None = None
    before: datetime | None = None
    #: When each slot started last, whoever requested it.
    starts: dict[datetime, datetime] = field(default_factory=dict)
    #: How many operations were given.
    operations: int = 0

    def __post_init__(self) -> None:
        if self.timeline.times.delay is not None:
            self._wait_for(self.timeline.begin)
        else:
            self._wait_for_new()

    # -- slots ------------------------------------------------------------------------------------

    @property
    def courses(self) -> list[Course]:
        return [*([self.plan] if self.plan else []), *self.beside]

    def come(self, until: datetime) -> list[datetime]:
        """Rule 7: return the undecided slots whose due time, spread included, is at or before
        ``until``.

        The oldest is first. A slot is undecided if it has no fate and has not started.
        """
        limit = until - self.terms.wait
        if self.timeline.times.delay is not None:
            return (
                [self.plan.slot]
                if self.plan and not self.plan.attempt and self.plan.slot <= limit
                else []
            )
        begun = self._begun()
        return [
            slot
            for slot in self.timeline.slots(limit)
            if slot not in self.fates and slot not in begun
        ]

    def _begun(self) -> set[datetime]:
        return {
            course.slot
            for course in self.courses
            if course.attempt or not course.is_plan
        }

    def _next_slot(self, after: datetime | None = None) -> datetime | None:
        """Return the first undecided slot, whether it has come due or not."""
        begun = self._begun()
        slot = self.timeline.after(after or self.timeline.begin)
        while slot is not None and (slot in self.fates or slot in begun):
            slot = self.timeline.after(slot)
        return slot

    def _skip(self, slots: list[datetime], reason: str) -> None:
        for slot in slots:
            self.fates[slot] = Fate(
                "skipped", reason, final=True, in_gap=len(slots) > 1
            )

    def _came_after(self, then: datetime, come: list[datetime]) -> bool:
        """Whether one of these slots came due after ``then``."""
        return any(slot + self.terms.wait > then for slot in come)

    # -- the plan row -----------------------------------------------------------------------------

    def _wait_for(self, slot: datetime | None, due: datetime | None = None) -> None:
        """The plan row waits for this slot, until its own due time at the earliest."""
        if slot is None:
            self.plan = None
            return
        due = max(due, slot + self.terms.wait) if due else slot + self.terms.wait
        if self.terms.min_interval is not None and self.last_start is not None:
            due = max(due, self.last_start + self.terms.min_interval)
        self.plan = Course(slot, due, paused=self.is_paused)

    def _wait_for_new(self) -> None:
        """The plan row waits for a new slot, the first undecided one. It is not held, and no
        tail runs.
        """
        self.plan = self.unheld_since = self.catch_up_until = None
        self._wait_for(self._next_slot())

    @property
    def _is_queued(self) -> bool:
        """Whether the plan row waits for a slot that overlap keeps."""
        return (
            self.plan is not None
            and self.unheld_since is not None
            and self.plan.slot + self.terms.wait <= self.unheld_since
        )

    # -- overlap ----------------------------------------------------------------------------------

    def _overlap_decides(self, held_until: datetime) -> None:
        """Rule 3: at a slot's final settlement, overlap decides about what came due while the job
        was held.

        That is what came due up to ``unheld_since`` where it is set, else up to ``held_until``.
        What overlap keeps runs first, the oldest first. Overlap decides about the queue anew at
        each settlement: a waiting slot may give way to a newer one.
        """
        come = self.come(self.unheld_since or held_until)
        kept = self.terms.keep(come)
        self._skip([slot for slot in come if slot not in kept], "overlap")
        self.catch_up_until = None
        if kept:
            self._queue(kept[0])
        else:
            self._wait_for_new()

    def _queue(self, slot: datetime) -> None:
        """Rule 1: a queued slot that waits holds the job until it is due plus one poll interval.

        Rule 2: ``unheld_since`` says so ahead of time. Where it stands already, it is not moved.
        """
        self._wait_for(slot, self.now)
        assert self.plan is not None
        self.unheld_since = self.unheld_since or self.plan.due + self.poll

    def _claim_queued(self, course: Course, holder: str) -> Course | None:
        """Rule 3: the oldest queued slot starts. A queue does not lift ``start_within``."""
        assert self.unheld_since is not None
        queued = self.come(min(self.unheld_since, self.now))
        soonest = self._too_soon()
        late = [
            slot
            for slot in queued
            if not self.terms.may_start(slot, self.now - self.terms.wait)
        ]
        if late != queued and soonest is not None:
            self._put_off(course, soonest)
            return None
        self._skip(late, "late")
        if late == queued:
            self.unheld_since = None
            self._pass_over()
            return None
        course.slot = next(slot for slot in queued if slot not in late)
        return self._begin(course, holder)

    # -- claims -----------------------------------------------------------------------------------

    def due(self) -> list[Course]:
        """Return the rows that a claim finds, in the order in which it takes them."""
        if self.all_paused:
            return []
        waiting = [course for course in self.courses if course.holder is None]
        due = [
            one
            for one in waiting
            if not one.paused and not one.queued and one.due <= self.now
        ]
        # Detached rows go before the plan row, since they may free a place.
        return sorted(due, key=lambda course: (course.is_plan, course.due))

    def claim(self, course: Course, holder: str) -> Course | None:
        """Claim a due row. Return the course that starts, or None if nothing starts."""
        if course.is_plan and not course.attempt:
            return self._claim_plan(course, holder)
        if self.terms.gives_up and course.attempt:
            self._refuse(course)
            return None
        if (
            not course.attempt
            and course.origin in ("schedule", "catch_up")
            and (why := self._too_late(course.slot))
        ):
            self.fates[course.slot] = Fate("skipped", why, final=True)
            self.beside.remove(course)
            return None
        return self._start(course, holder)

    def _too_late(self, slot: datetime) -> str | None:
        """Return why a detached row that was handed back may not start any more. Catch-up's limits
        hold for it.
        """
        now = self.now - self.terms.wait
        newer = [one for one in self.timeline.slots(now) if one > slot]
        choice = replace(self.terms, max=None).catch_up([slot], now)
        if choice.slot is None:
            return "late"
        return (
            "collapsed"
            if self.terms.catches_all
            and self.terms.max
            and len(newer) >= self.terms.max
            else None
        )

    def _refuse(self, course: Course) -> None:
        """``give_up``: the slot has started once and does not start again."""
        fate = self.fates[course.slot]
        fate.reason, fate.final = "give_up", True
        self.beside.remove(course)
        self._release(course)

    def _release(self, course: Course) -> None:
        """A detached row's slot is final."""

    def _freed(self, course: Course) -> None:
        """The row is not held any more, or the slot that waited in it has ended."""

    def _start(self, course: Course, holder: str) -> Course:
        course.attempt += 1
        course.holder, course.beat, course.started = holder, self.now, self.now
        course.claimed, course.ended, course.completed = self.now, None, False
        if course.origin not in ("trigger", "retry", "backfill"):
            self.before, self.last_start = self.last_start, self.now
        course.started_before = self.starts.get(course.slot)
        if not self.terms.gives_up:
            self.starts[course.slot] = self.now
        before = self.fates.get(course.slot)
        if before is None or before.in_gap:
            course.gap, self.fates[course.slot] = before, Fate("running")
        fate = self.fates[course.slot]
        fate.outcome = "claimed" if self.terms.gives_up else "running"
        fate.reason = None
        fate.final = False
        fate.attempts, fate.collapsed = course.attempt, course.collapsed
        return course

    def _never_started(self, course: Course) -> None:
        """The claim is given back, or called off, before its handler has started."""
        if course.started_before is not None:
            self.starts[course.slot] = course.started_before
        else:
            self.starts.pop(course.slot, None)

    def _too_soon(self) -> datetime | None:
        """Return when a slot of the schedule may start, if that is later than now:
        ``min_interval`` after the last start of its job. An operation does not wait for it,
        and counts.
        """
        if self.terms.min_interval is None or not self.starts:
            return None
        earliest = max(self.starts.values()) + self.terms.min_interval
        return earliest if earliest > self.now else None

    def _put_off(self, course: Course, due: datetime) -> None:
        """Rule 7: ``min_interval`` moves the due time only, and ``unheld_since`` along."""
        if self.unheld_since is not None and self.unheld_since >= course.due:
            self.unheld_since += due - course.due
        course.due = due

    def marked(self, course: Course) -> None:
        """``give_up``: the worker has recorded that the handler starts."""
        self.fates[course.slot].outcome, course.started = "running", self.now
        self.starts[course.slot] = self.now
        if course.origin in ("schedule", "catch_up"):
            self.last_start = self.now

    def _claim_plan(self, course: Course, holder: str) -> Course | None:
        places = [one for one in self.beside if one.origin in ("schedule", "catch_up")]
        if self.terms.detaches and len(places) >= self.terms.most:
            self._find_no_place(course, places)
            return None
        if self.terms.overlap == "cancel_previous" and self.unheld_since is not None:
            self._keep_the_newest(self.come(self.now))
        if self._is_queued:
            return self._claim_queued(course, holder)
        return self._claim_new(course, holder)

    # -- catch-up ---------------------------------------------------------------------------------

    def _claim_new(self, course: Course, holder: str) -> Course | None:
        """Rule 4: a row that waits for a new slot is claimed.

        A single slot that has come and is within its limits starts. Otherwise, catch-up chooses
        among all that have come. ``none``, ``latest`` and ``first`` are through with this claim;
        ``all`` goes on (rule 5).
        """
        until, soonest = self.catch_up_until, self._too_soon()
        own = self._tail(course, self.come(self.now))
        choice = self.terms.catch_up(own, self.now - self.terms.wait)
        if choice.slot is not None and soonest is not None:
            self.catch_up_until = until
            self._put_off(course, soonest)
            return None
        for reason, slots in choice.skipped.items():
            self._skip(slots, reason)
        if choice.slot is None:
            self._pass_over()
            return None
        if (
            self.catch_up_until is not None
            or any(choice.skipped.values())
            or choice.rest
        ):
            course.origin = "catch_up"
        course.slot, course.collapsed = (
            choice.slot,
            course.collapsed + choice.collapsed,
        )
        return self._begin(course, holder)

    def _pass_over(self) -> None:
        """No slot may start: the row waits for the next one. Its claim asks for
        ``min_interval``.
        """
        assert self.plan is not None
        delay = self.timeline.times.delay
        slot = (
            self._next_slot()
            if delay is None
            else max(self.now, self.plan.slot) + delay
        )
        self.catch_up_until = None
        self.plan = None if slot is None else Course(slot, slot + self.terms.wait)

    def _tail(self, course: Course, come: list[datetime]) -> list[datetime]:
        """Rule 5: return the slots among which ``all`` chooses at this start.

        Several slots that have come are a tail. It ends with the newest slot that has come by its
        first start. Slots that come due during its runs are not part of it. If the row waited for
        more than a poll interval after its due time, and a slot came due then, that was an
        absence: the tail extends to all that has come.
        """
        if not self.terms.catches_all or self.terms.detaches:
            return come
        until = self.catch_up_until
        if until is None or not come or come[0] > until:
            self.catch_up_until = come[-1] if len(come) > 1 else None
        elif self._came_after(course.due + self.poll, come):
            self.catch_up_until = max(until, come[-1])
        return [
            slot
            for slot in come
            if self.catch_up_until is None or slot <= self.catch_up_until
        ]

    def _begin(self, course: Course, holder: str) -> Course:
        """The slot starts: in the plan row, or, with ``allow`` and ``cancel_previous``, in a
        detached row.
        """
        self._start(course, holder)
        if not self.terms.detaches:
            return course
        course.is_plan = False
        self.beside.append(course)
        self._wait_for_new()
        if (
            self.terms.catches_all
            and self.terms.pace is not None
            and self.plan is not None
            and self.come(self.now)
        ):
            self.plan.due = max(self.plan.due, self.now + self.terms.pace)
        return course

    # -- side by side -----------------------------------------------------------------------------

    def _find_no_place(self, course: Course, places: list[Course]) -> None:
        """Rule 6: with ``allow`` or ``cancel_previous``, a slot has come and all places are taken.

        A slot that is looked at within a poll interval of its due time is overlap's. One that is
        looked at later is catch-up's, with all later ones, and waits for a place. With
        ``cancel_previous`` both ask the running slot to stop, except that the slots of a catch-up
        by ``all`` do not stop each other.
        """
        come, course.due = self.come(self.now), self.now + SECOND
        if not come:
            return
        if self.unheld_since is not None:
            self._keep_the_newest(come)
        elif self.now - come[0] - self.terms.wait <= self.poll:
            self._overlap_without_a_place(come)
        if self.terms.overlap == "cancel_previous":
            is_gentle = self.terms.catches_all and self.unheld_since is None
            self._ask_to_stop(
                [one for one in places if not (is_gentle and one.origin == "catch_up")]
            )

    def _overlap_without_a_place(self, come: list[datetime]) -> None:
        """``allow`` skips these slots. With ``cancel_previous`` the newest waits for the
        running one.
        """
        if self.terms.overlap == "allow":
            self._skip(come, "overlap")
            self._wait_for_new()
        else:
            assert self.plan is not None
            self.unheld_since = self.plan.due + self.poll
            self._keep_the_newest(come)

    def _keep_the_newest(self, come: list[datetime]) -> None:
        """``cancel_previous``: a slot that was looked at in time waits. A newer one takes its
        place: at most one waits.

        If a newer slot came due while no worker looked, all are catch-up's.
        """
        assert self.plan is not None
        assert self.unheld_since is not None
        if self._came_after(self.unheld_since, come):
            self.unheld_since = None
            return
        self._skip(come[:-1], "overlap")
        self.plan.slot, self.unheld_since = come[-1], self.plan.due + self.poll

    def _ask_to_stop(self, places: list[Course]) -> None:
        """``cancel_previous``: the running slot is asked to stop. One that waits for its retry is
        not started again.
        """
        for other in places:
            if other.called_off is None:
                other.called_off, other.operation = "overlap", None
                if other.holder is None:
                    other.due = self.now
