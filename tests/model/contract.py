"""The contract of one job, played plainly: each slot has a fate or it has none, and all slots are looked at one by one.

Nothing of the code that it judges is used but the words that jobs are declared with.
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


@dataclass
class Fate:
    """What the ledger should say of a slot."""

    outcome: str
    reason: str | None = None
    attempts: int = 0
    lost: int = 0
    aborted: int = 0
    collapsed: int = 0
    final: bool = False
    #: Not by itself: it is one of a range.
    in_gap: bool = False


@dataclass(frozen=True, eq=False)
class Backfill:
    """An order: so many of its slots run side by side."""

    pace: timedelta
    at_once: int


@dataclass(eq=False)
class Course:
    """A slot that waits in a row, or is held. ``attempt`` counts claims that were not handed back."""

    slot: datetime
    due: datetime
    origin: str = "schedule"
    is_plan: bool = True
    attempt: int = 0
    lost: int = 0
    collapsed: int = 0
    #: Of a slot beside the plan: the slot after it when it started.
    following: datetime | None = None
    holder: str | None = None
    token: int | None = None
    claimed: datetime | None = None
    started: datetime | None = None
    beat: datetime | None = None
    completed: bool = False
    called_off: str | None = None
    #: Whether its holder has been told so.
    told: bool = False
    paused: bool = False
    queued: bool = False
    #: How a trigger minds what else runs.
    rule: str | None = None
    #: The range that said before that it would not run.
    gap: Fate | None = None
    backfill: Backfill | None = None


@dataclass
class Contract:
    """One job: its slots, and the rows in which some of them wait. ``now`` is the database's time."""

    terms: Terms
    timeline: Timeline
    now: datetime
    fates: dict[datetime, Fate] = field(default_factory=dict)
    plan: Course | None = None
    beside: list[Course] = field(default_factory=list)
    #: Several slots that are due run one after another: "catch_up", "queue".
    chain: str | None = None
    #: The newest slot that the catch-up, or the queue, is about.
    gap_end: datetime | None = None
    #: Between these nobody held the job, though it was due; the end is not known before somebody does.
    missed_after: datetime | None = None
    missed_until: datetime | None = None
    is_paused: bool = False
    all_paused: bool = False
    #: When the schedule's last attempt started, and the one before it.
    last_start: datetime | None = None
    before: datetime | None = None

    def __post_init__(self) -> None:
        self._await_first()

    # -- slots --------------------------------------------------------------------------------------------------

    @property
    def courses(self) -> list[Course]:
        return [*([self.plan] if self.plan else []), *self.beside]

    def come(self, until: datetime) -> list[datetime]:
        """The slots that were due by ``until`` and have no fate, the oldest first."""
        limit = until - self.terms.wait
        if self.timeline.times.delay is not None:
            return [self.plan.slot] if self.plan and not self.plan.attempt and self.plan.slot <= limit else []
        begun = {course.slot for course in self.courses if course.attempt or not course.is_plan}
        return [slot for slot in self.timeline.slots(limit) if slot not in self.fates and slot not in begun]

    def _next_slot(self, after: datetime | None = None) -> datetime | None:
        """The first slot without a fate."""
        known = {course.slot for course in self.courses if course.attempt or not course.is_plan}
        slot = self.timeline.after(after or self.timeline.begin)
        while slot is not None and (slot in self.fates or slot in known):
            slot = self.timeline.after(slot)
        return slot

    def _skip(self, slots: list[datetime], reason: str) -> None:
        for slot in slots:
            self.fates[slot] = Fate("skipped", reason, final=True, in_gap=len(slots) > 1)

    # -- the plan row -------------------------------------------------------------------------------------------

    def _await_first(self) -> None:
        if self.timeline.times.delay is not None:
            self._wait_for(self.timeline.begin)
        else:
            self._await_next()

    def _await_next(self, due: datetime | None = None) -> None:
        """The plan row waits for the first slot without a fate."""
        self.plan = self.missed_after = self.missed_until = None
        self._wait_for(self._next_slot(), due)

    def _wait_for(self, slot: datetime | None, due: datetime | None = None) -> None:
        if slot is None:
            self.plan = None
            return
        due = due or slot + self.terms.wait
        if self.terms.min_interval is not None and self.last_start is not None:
            due = max(due, self.last_start + self.terms.min_interval)
        self.plan = Course(slot, due, paused=self.is_paused)

    # -- claims -------------------------------------------------------------------------------------------------

    def due(self) -> list[Course]:
        """What a claim finds, in its order."""
        if self.all_paused:
            return []
        waiting = [course for course in self.courses if course.holder is None]
        due = [one for one in waiting if not one.paused and not one.queued and one.due <= self.now]
        # Who holds a place may leave it; who minds others goes last.
        return sorted(due, key=lambda course: (course.rule is not None, course.is_plan, course.due))

    def claim(self, course: Course, holder: str) -> Course | None:
        """Claim what is due: the course that starts, or None if nothing does."""
        if course.is_plan and not course.attempt:
            return self._claim_plan(course, holder)
        if course.rule is not None and not course.attempt and self._others_run(course):
            if course.rule == "queue":
                course.due = self.now + SECOND
                self.fates.pop(course.slot, None)  # it was handed back before, and waits as if it had not been claimed
            else:
                self._skip([course.slot], "overlap")
                self.beside.remove(course)
            return None
        if self.terms.gives_up and course.attempt:
            self._refuse(course)
            return None
        if not course.attempt and course.origin in ("schedule", "catch_up") and (why := self._too_late(course.slot)):
            self.fates[course.slot] = Fate("skipped", why, final=True)
            self.beside.remove(course)
            return None
        return self._start(course, holder)

    def _too_late(self, slot: datetime) -> str | None:
        """Of one that was handed back, with a row of its own: as if it had just been missed."""
        now = self.now - self.terms.wait
        newer = [one for one in self.timeline.slots(now) if one > slot]
        choice = replace(self.terms, max=None).catch_up([slot], now)
        if choice.slot is None:
            return "late"
        return "collapsed" if self.terms.catches_all and self.terms.max and len(newer) >= self.terms.max else None

    def _refuse(self, course: Course) -> None:
        """It has started once, and stays as it ended."""
        fate = self.fates[course.slot]
        fate.reason, fate.final = "give_up", True
        self.beside.remove(course)
        self._release(course)

    def _release(self, course: Course) -> None:
        """A slot beside the plan has ended."""

    def _others_run(self, course: Course) -> bool:
        return any(other.holder is not None for other in self.courses if other is not course)

    def _start(self, course: Course, holder: str) -> Course:
        course.attempt += 1
        course.holder, course.beat, course.started = holder, self.now, self.now
        course.claimed, course.completed = self.now, False
        if not (course.rule or course.origin in ("trigger", "retry", "backfill")):
            self.before, self.last_start = self.last_start, self.now
        before = self.fates.get(course.slot)
        if before is None or before.in_gap:
            course.gap, self.fates[course.slot] = before, Fate("running")
        fate = self.fates[course.slot]
        fate.outcome, fate.reason, fate.final = "claimed" if self.terms.gives_up else "running", None, False
        fate.attempts, fate.collapsed = course.attempt, course.collapsed
        return course

    def marked(self, course: Course) -> None:
        """A job that gives up has said that its handler starts."""
        self.fates[course.slot].outcome, course.started = "running", self.now
        if course.origin in ("schedule", "catch_up"):
            self.last_start = self.now

    def _claim_plan(self, course: Course, holder: str) -> Course | None:
        places = [one for one in self.beside if one.origin in ("schedule", "catch_up")]
        if self.terms.detaches and len(places) >= self.terms.most:
            self._find_no_place(course, places)
            return None
        come = self.come(self.now)
        own = self._own(course, come)
        terms = replace(self.terms, catching="all", max=None, window=None) if self.chain == "queue" else self.terms
        choice = terms.catch_up(own, self.now - self.terms.wait)
        for reason, slots in choice.skipped.items():
            self._skip(slots, reason)
        if choice.slot is None and self.chain == "queue":
            self._after_a_late_queue(course.due)
            return None
        if choice.slot is None:
            self.chain = None
            if own == come:
                self._after_a_skip()
            else:
                self.overlapped(course.due)
                if self.plan is not None:
                    self.plan.due = self.plan.slot + self.terms.wait  # it was claimed no sooner than it may start
            return None
        if self.chain != "queue" and (self.chain or any(choice.skipped.values()) or choice.rest):
            course.origin = "catch_up"
            self.chain = None
            if self.terms.catches_all:
                self.chain, self.gap_end = "catch_up", max([choice.slot, *choice.rest])
        course.slot, course.collapsed = choice.slot, course.collapsed + choice.collapsed
        return self._begin(course, holder)

    def _own(self, course: Course, come: list[datetime]) -> list[datetime]:
        """The slots that are catch-up's: not those that came due during its runs, unless some were missed since."""
        if self.chain == "queue":
            return [slot for slot in come if self.gap_end is None or slot <= self.gap_end] or come
        if self.chain != "catch_up" or self.gap_end is None or self.terms.detaches:
            return come
        since = [slot for slot in come if slot + self.terms.wait > course.due]
        during = [slot for slot in come if slot > self.gap_end and slot not in since]
        if not during or len(since) > 1:
            return come
        return [slot for slot in come if slot <= self.gap_end] or come

    def _after_a_late_queue(self, due: datetime) -> None:
        """What was missed waits no longer."""
        missed = self.missed()
        self.chain, self.gap_end = ("catch_up", missed[-1]) if missed else (None, None)
        self._await_next()
        if self.plan is not None:
            self.plan.due = due if missed else self.plan.slot + self.terms.wait

    def _after_a_skip(self) -> None:
        assert self.plan is not None
        delay = self.timeline.times.delay
        slot = self._next_slot() if delay is None else max(self.now, self.plan.slot) + delay
        self.plan = None if slot is None else Course(slot, slot + self.terms.wait)

    def _begin(self, course: Course, holder: str) -> Course:
        """The slot starts: in the plan row, or in a row of its own while the plan goes on."""
        self._start(course, holder)
        if not self.terms.detaches:
            return course
        course.is_plan, course.following = False, self._next_slot(course.slot)
        self.beside.append(course)
        self.plan = None
        if self.chain == "catch_up" and self.terms.catches_all:
            self.await_in_chain(self.now, self.now)
        else:
            self.chain = None
            self._await_next()
        return course

    def _find_no_place(self, course: Course, places: list[Course]) -> None:
        silent = min(filter(None, map(self._silent_since, places)), default=None)
        come = self.come(silent or self.now)
        if self.chain or not come:
            course.due = self.now + SECOND
        elif self.terms.overlap == "allow":
            self._skip(come, "overlap")
            self._await_next()
            if self.plan is not None and silent is not None:
                self.plan.due = max(self.plan.due, self.now + SECOND)
        else:
            self._skip(come[:-1], "overlap")
            course.slot, course.due = come[-1], self.now + SECOND
        if self.terms.overlap == "cancel_previous" and not self.chain:  # of those that catch up each runs
            for other in places:
                if other.called_off is None:
                    other.called_off = "overlap"
                    if other.holder is None:
                        other.due = self.now

    def _silent_since(self, course: Course) -> datetime | None:
        """When the lease of one ran out that ends with its loss, which nobody has seen yet."""
        ends = self.terms.gives_up or course.lost + 1 >= self.terms.max_lost
        if course.holder is None or course.beat is None or not ends:
            return None
        return end if (end := course.beat + LEASE) < self.now else None

    def await_in_chain(self, started: datetime | None, held_until: datetime) -> None:
        """The next missed slot, in its pace. Those that came due meanwhile join the tail; of a run that took longer
        than the interval those that came due during it do not: overlap decides for them when the others are through.
        """
        self._await_next()
        if self.plan is None or not self.come(self.now):
            self.chain = None
            return
        assert self.gap_end is not None
        before = max(slot for slot in self.timeline.slots(self.plan.slot) if slot < self.plan.slot)
        gains = started is None or held_until - started < self.plan.slot - before
        if self.terms.pace is not None and started is not None:
            self._wait_for(self.plan.slot, max(self.plan.due, started + self.terms.pace))
        come = self.come(max(self.now, self.plan.due))
        if gains or come[-1] + self.terms.wait > held_until:
            self.gap_end = come[-1]
        elif self.plan.slot > self.gap_end:
            self.overlapped(held_until)
        else:
            self.plan.due = max(self.plan.due, self.now)

    def overlapped(self, held_until: datetime) -> None:
        """Of the slots that came due during a run, the job's overlap keeps some, which run one after another."""
        come = self.come(held_until)
        kept = self.terms.keep(come)
        self._skip([slot for slot in come if slot not in kept], "overlap")
        self.chain, self.gap_end = ("queue", come[-1]) if kept else (None, None)
        self._await_next()

    # -- absence ------------------------------------------------------------------------------------------------

    def close(self, course: Course) -> None:
        """An attempt has ended that began: slots that had come before it, while nobody held the job though it was due,
        were missed.
        """
        if not course.is_plan or self.timeline.times.delay is not None:
            return
        is_closed, since = self.missed_until is not None, None
        if self.missed_after is not None and not is_closed:
            since = self.missed_after
        elif course.attempt > 1 or (self.chain == "queue" and is_closed):
            since = course.due
        elif self.chain == "queue" and self.gap_end is not None:
            since = self.gap_end + self.terms.wait
        if since is not None and course.started is not None and self._came(since, course.started):
            self.missed_after = self.missed_after if is_closed else since
            self.missed_until = course.started
        elif not is_closed:
            self.missed_after = None

    def _came(self, after: datetime, until: datetime) -> list[datetime]:
        return [slot for slot in self.come(until) if slot + self.terms.wait > after]

    def missed(self) -> list[datetime]:
        """The slots of the absence, as far as they have no fate."""
        if self.missed_after is None or self.missed_until is None:
            return []
        return self._came(self.missed_after, self.missed_until)

    def catch_up_on(self, missed: list[datetime], held_until: datetime) -> None:
        """First what overlap keeps of those that had come before, then these."""
        after, until = self.missed_after, self.missed_until
        assert after is not None
        self.overlapped(after)
        if self.plan is not None:
            self.plan = None
            if self.chain == "queue":
                self._await_next(held_until)
                self.missed_after, self.missed_until = after, until
            else:
                self.chain, self.gap_end = "catch_up", missed[-1]
                self._await_next(held_until)
