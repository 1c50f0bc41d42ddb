"""Commands of operators, and deploys, by the same plain model."""

from __future__ import annotations

from datetime import datetime, timedelta

from tests.model.contract import MICROSECOND, SECOND, Backfill, Course, Fate
from tests.model.endings import Endings
from tests.model.timeline import Times, never

ENDED_BADLY = ("failed", "dead", "lost", "cancelled")


class Operated(Endings):
    """The contract, as far as people and deploys change its course."""

    # -- pauses -----------------------------------------------------------------------------------

    def pause(self) -> None:
        self.is_paused = True
        self.operations += 1
        if self.plan is not None and self.plan.holder is not None:
            self.plan.operation = self.plan.operation or self.operations
        for course in self.courses:
            if course.holder is None and not course.queued:
                course.paused = True

    def resume(self, *, replay: bool) -> None:
        self.is_paused = False
        for course in self.courses:
            course.paused = False
        if not replay:
            self._skip_the_pause()

    def resume_all(self, *, replay: bool) -> None:
        self.all_paused = False
        if not replay and not self.is_paused:
            self._skip_the_pause()

    def _skip_the_pause(self) -> None:
        """Skip the undecided slots that have come, unless a worker holds the job: then overlap
        decides.
        """
        if self.plan is None or self.plan.holder is not None:
            return
        delay = self.timeline.times.delay
        if delay is not None:
            if not self.plan.attempt and self.plan.slot <= self.now:
                self._skip([self.plan.slot], "paused")
                self._wait_for(max(self.now, self.plan.slot) + delay)
            return
        come = self.come(
            self.now + self.terms.wait
        )  # those of the pause count by their time
        self._skip(come, "paused")
        if come and not self.plan.attempt:
            self._wait_for_new()

    # -- single slots -----------------------------------------------------------------------------

    def trigger(self, slot: datetime, rule: str) -> None:
        """The operation decides, once. If something of the job runs or an earlier trigger has not
        ended its first attempt:

        - ``beside``: the trigger starts all the same.
        - ``queue``: it waits for the end of what runs now, and for earlier triggers.
        - ``skip``: it is skipped.
        """
        self.operations += 1
        course = Course(
            slot,
            self.now,
            "trigger",
            is_plan=False,
            paused=self.is_paused,
            operation=self.operations,
        )
        busy = [other for other in self.courses if self._runs_or_will(other)]
        if rule == "skip" and busy:
            self._skip([slot], "overlap")
            return
        if rule == "queue" and busy:
            course.queued, course.paused = True, False
            for other in busy:
                if other.called_off != "overlap":
                    other.operation = other.operation or self.operations
        self.beside.append(course)

    def _runs_or_will(self, course: Course) -> bool:
        """Whether it is held, or a trigger that has yet to start."""
        return course.holder is not None or (
            course.origin == "trigger" and not course.attempt
        )

    def _freed(self, course: Course) -> None:
        """The oldest queued trigger starts as soon as all that it waits for has ended."""
        if course.origin in ("schedule", "catch_up"):
            course.operation = None
        queued = [one for one in self.beside if one.queued and one.origin == "trigger"]
        first = min(queued, key=lambda one: one.slot, default=None)
        if first is not None and not any(
            self._is_before(other, first) for other in self.courses
        ):
            first.queued, first.paused, first.due = False, self.is_paused, self.now

    def _is_before(self, course: Course, trigger: Course) -> bool:
        """Whether the trigger waits for this: an earlier trigger, a run that went on at its
        operation, or a run that an earlier retry or backfill requested.
        """
        if course.origin == "trigger":
            return course.slot < trigger.slot and self._runs_or_will(course)
        assert trigger.operation is not None
        return (
            course.holder is not None
            and course.operation is not None
            and course.operation <= trigger.operation
        )

    def skippable(self) -> datetime | None:
        """Return the next slot that has not started."""
        if self.timeline.times.delay is not None:
            return None if self.plan is None or self.plan.attempt else self.plan.slot
        return self._next_slot()

    def skip_next(self) -> None:
        slot = self.skippable()
        assert slot is not None
        self._skip([slot], "operator")
        delay = self.timeline.times.delay
        if delay is not None:
            self._wait_for(max(self.now, slot) + delay)
        elif self.plan is not None and not self.plan.attempt:
            self._pass_on(slot, self.plan.due)

    def _pass_on(self, skipped: datetime, due: datetime) -> None:
        """The row waits for the next slot, which may be queued or part of the tail like the one
        before.
        """
        unheld_since, until = self.unheld_since, self.catch_up_until
        self._wait_for_new()
        if self.plan is None:
            return
        if (
            due > skipped + self.terms.wait
        ):  # the skipped slot's due time had been moved: so is the next one's
            self.plan.due = max(self.plan.due, due)
        if (
            unheld_since is not None
            and self.plan.slot + self.terms.wait <= unheld_since
        ):
            self.unheld_since = unheld_since
        if until is not None and self.plan.slot <= until:
            self.catch_up_until = until

    def cancel(self, slot: datetime | None) -> None:
        """Cancel all held slots, or the given one, even if it waits for its retry or in a
        detached row.
        """
        self.operations += 1
        for course in list(self.courses):
            if (course.holder is None) if slot is None else course.slot != slot:
                continue
            if course.holder is not None:
                course.called_off, course.operation = (
                    "operator",
                    course.operation or self.operations,
                )
            elif course.attempt:
                course.called_off, course.operation = (
                    "operator",
                    course.operation or self.operations,
                )
                self._be_due_now(course)
            else:
                self._call_off(course, "operator")

    def _be_due_now(self, course: Course) -> None:
        """Rule 7: a command that moves a waiting row's due time moves ``unheld_since`` along."""
        course.due = min(course.due, self.now)
        if course.is_plan and self.unheld_since is not None:
            self.unheld_since = min(self.unheld_since, course.due + self.poll)

    def _call_off(self, course: Course, reason: str) -> None:
        before = self.fates.get(course.slot)
        if before is None or before.in_gap:
            self.fates[course.slot] = Fate("cancelled", reason, final=True)
        elif not before.final:
            before.outcome = (
                "cancelled" if before.outcome == "claimed" else before.outcome
            )
            before.reason, before.final = reason, True
        self.beside.remove(course)
        if not course.queued:
            self._release(course)
        self._freed(course)

    def retryable(self) -> list[datetime]:
        beside = {course.slot for course in self.courses}
        return [
            slot
            for slot, fate in self.fates.items()
            if fate.final and fate.outcome in ENDED_BADLY and slot not in beside
        ]

    def retry_slot(self, slot: datetime) -> None:
        fate = self.fates[slot]
        fate.final, fate.reason = False, "retry"
        course = Course(
            slot,
            self.now,
            "retry",
            is_plan=False,
            attempt=fate.attempts,
            collapsed=fate.collapsed,
        )
        self.operations += 1
        course.paused, course.operation = self.is_paused, self.operations
        self.beside.append(course)

    # -- backfill ---------------------------------------------------------------------------------

    def missing(
        self, first: datetime, last: datetime, *, failed: bool
    ) -> list[datetime]:
        """Return the slots from ``first`` to ``last``, before the undecided ones, that did not run
        (or failed).
        """
        taken = {course.slot for course in self.courses}
        again = ("skipped", *ENDED_BADLY) if failed else ("skipped",)
        ran = {
            slot
            for slot, fate in self.fates.items()
            if not fate.final or fate.outcome not in again
        }
        undecided = self._next_slot()
        found, slot = [], first.replace(microsecond=0)
        while slot <= last and (undecided is None or slot < undecided):
            if (
                slot >= first
                and self.timeline.times.fires(slot)
                and slot not in taken
                and slot not in ran
            ):
                found.append(slot)
            slot += SECOND
        return found

    def backfill(self, slots: list[datetime], pace: timedelta, at_once: int) -> None:
        operation = Backfill(pace, at_once)
        self.operations += 1
        for place, slot in enumerate(slots):
            fate = self.fates.get(slot)
            if fate is not None and not fate.in_gap:
                fate.final, fate.reason = False, "backfill"
            course = Course(slot, self.now + place * pace, "backfill", is_plan=False)
            course.attempt = fate.attempts if fate else 0
            course.queued = place >= at_once
            course.paused = self.is_paused and place < at_once
            course.backfill, course.operation = operation, self.operations
            self.beside.append(course)

    def _release(self, course: Course) -> None:
        """A slot of a backfill is final: the oldest queued one whose backfill has a free place is
        next, at its pace.

        A slot whose retry is refused sets the pace by the start that it once had.
        """
        queued = [
            (one.slot, one, one.backfill)
            for one in self.beside
            if one.queued and one.backfill
        ]
        free = [
            found for found in queued if len(self._awake(found[2])) < found[2].at_once
        ]
        if course.origin != "backfill" or not free:
            return
        _, following, operation = min(free, key=lambda found: found[0])
        pace, began = (
            operation.pace,
            course.started or self.starts.get(course.slot) or self.now,
        )
        going = [
            other.due
            for other in self._awake(operation)
            if other.holder or not other.attempt
        ]
        following.queued, following.paused = False, self.is_paused
        following.due = (
            max(self.now, *(at + pace for at in (began, *going))) if pace else self.now
        )

    def _awake(self, backfill: Backfill) -> list[Course]:
        return [
            other
            for other in self.beside
            if other.backfill is backfill and not other.queued
        ]

    def cancel_backfill(self) -> None:
        waiting = [
            one
            for one in self.beside
            if one.origin == "backfill" and one.holder is None and not one.attempt
        ]
        for course in sorted(waiting, key=lambda one: not one.queued):
            self._call_off(course, "operator")

    # -- the code and the row ---------------------------------------------------------------------

    def redeploy(self, times: Times) -> None:
        """Slots up to now, and those decided ahead of time, belong to the old schedule, later ones
        to the new one.

        The same schedule changes nothing.
        """
        if times.schedule == self.timeline.times.schedule:
            return
        ahead = [slot for slot in self.fates if slot > self.now]
        begun = [course.slot for course in self.courses if course.attempt]
        at = max([self.now, *ahead, *begun])
        self._supersede(at)
        self.timeline.change(at, times)
        if self.plan is None or (not self.plan.attempt and self.plan.slot > self.now):
            self._wait_for_new()
            self._keep_distance()

    def _supersede(self, at: datetime) -> None:
        """A row remembers one earlier schedule. What that still owes is skipped when a further
        change comes, unless no slot lies between the two changes: then they count as one.
        """
        older = self.come(self.timeline.changed - MICROSECOND + self.terms.wait)
        if not older or self.timeline.is_one_change(at):
            return
        self._skip(older, "superseded")
        if self.plan is not None and not self.plan.attempt:
            self._pass_on(self.plan.slot, self.plan.due)

    def delete(self) -> None:
        for course in sorted(self.beside, key=lambda one: not one.queued):
            if course in self.beside:
                self._call_off(course, "deleted")
        if self.plan is not None and self.plan.attempt:
            fate = self.fates[self.plan.slot]
            fate.outcome, fate.reason, fate.final = "cancelled", "deleted", True
        self._skip(self.come(self.now + self.terms.wait), "deleted")
        self.plan = self.unheld_since = self.catch_up_until = None
        self.is_paused = False
        self.timeline.change(self.now, never())

    def create(self, times: Times) -> None:
        ahead = [slot for slot in self.fates if slot > self.now]
        self.timeline.change(max([self.now, *ahead]), times)
        self._wait_for_new()
        self._keep_distance()

    def _keep_distance(self) -> None:
        """A plan brings no two starts nearer to each other than ``min_interval``."""
        if self.plan is not None and (soonest := self._too_soon()) is not None:
            self.plan.due = max(self.plan.due, soonest)
