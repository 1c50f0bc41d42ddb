"""What becomes of an attempt, and of the slots that came due meanwhile, by the same plain model."""

from __future__ import annotations

from datetime import datetime, timedelta

from tests.model.contract import Contract, Course


class Endings(Contract):
    """The contract, as far as attempts end."""

    def succeeded(self, course: Course) -> None:
        self._final(course, "succeeded")

    def failed(self, course: Course, *, final: bool = False) -> None:
        if course.completed:
            return self.succeeded(course)
        delay = None if final or course.called_off else self.terms.retry(self._tries(course))
        due, following = None if delay is None else self._apart(course, self.now + delay), self._following(course)
        if due is None:
            return self._final(course, "failed")
        if following is not None and not self.terms.past and due >= following:
            return self._final(course, "failed", "next slot")
        self._again(course, due, "failed", "retry")
        return None

    def _tries(self, course: Course) -> int:
        return max(course.attempt - course.lost - self.fates[course.slot].aborted, 1)

    def _following(self, course: Course) -> datetime | None:
        """The slot after it; triggers, retries and backfills have none."""
        if not course.is_plan:
            return course.following
        if self.timeline.times.delay is not None:
            return None
        return self._next_slot(course.slot)

    def snoozed(self, course: Course, by: timedelta) -> None:
        if course.completed:
            return self.succeeded(course)
        if course.called_off:
            return self._final(course, "cancelled", course.called_off)
        if self.terms.gives_up:
            return self._final(course, "failed")
        self.fates[course.slot].aborted += 1
        self._again(course, self.now + by, "cancelled", "snoozed")
        return None

    def called_off_by_handler(self, course: Course, reason: str) -> None:
        if course.completed:
            return self.succeeded(course)
        self._final(course, "cancelled", reason)
        return None

    def stopped(self, course: Course) -> None:
        """Told to stop by a shutdown."""
        if course.completed:
            return self.succeeded(course)
        if course.called_off:
            return self._final(course, "cancelled", course.called_off)
        if self.terms.gives_up:
            return self._final(course, "cancelled", "shutdown")
        self.fates[course.slot].aborted += 1
        self._again(course, self.now, "cancelled", "shutdown")
        return None

    def handed_back(self, course: Course, reason: str) -> None:
        """It never started: as if it had not been claimed."""
        if course.called_off:
            self.close(course)
        course.attempt -= 1
        if course.is_plan and (not course.called_off or self.terms.gives_up):
            self.last_start = self.before
        if course.called_off:
            self._forget_start(course)
            course.started = course.started if course.is_plan else None
            return self._final(course, "cancelled", course.called_off)
        course.holder = None
        course.paused = self.is_paused
        fate = self.fates[course.slot]
        fate.attempts = course.attempt
        if not course.attempt and course.is_plan:
            del self.fates[course.slot]
            if course.gap is not None:
                self.fates[course.slot] = course.gap
        else:
            fate.outcome, fate.reason = "claimed", reason
        return None

    def _forget_start(self, course: Course) -> None:
        """Of one that starts once at most it is known that it has not."""
        if self.fates[course.slot].outcome == "claimed" and self.terms.gives_up:
            course.started = None

    def taken_over(self, course: Course, lease: timedelta) -> None:
        """Its holder fell silent."""
        assert course.beat is not None
        fate, held_until = self.fates[course.slot], min(course.beat + lease, self.now)
        if course.completed:
            return self._final(course, "succeeded")
        if course.called_off:
            if fate.outcome == "claimed" and self.terms.gives_up and course.is_plan:
                self.last_start = self.before
            self._forget_start(course)
            return self._final(course, "cancelled", course.called_off)
        if fate.outcome == "claimed":
            return self.handed_back(course, "lost")
        self.close(course)
        course.lost += 1
        fate.lost += 1
        if self.terms.gives_up:
            return self._final(course, "lost", "may still be running", held_until=held_until)
        if course.lost >= self.terms.max_lost:
            return self._final(course, "dead", "max_lost", held_until=held_until)
        self._again(course, self.now, "lost", "rerun")
        if course.is_plan:
            self.missed_after, self.missed_until = self.missed_after or held_until, None
        return None

    def _again(self, course: Course, due: datetime, outcome: str, reason: str) -> None:
        self.close(course)
        course.holder, course.due, course.paused = None, self._apart(course, due), self.is_paused
        fate = self.fates[course.slot]
        fate.outcome, fate.reason = outcome, reason

    def _apart(self, course: Course, due: datetime) -> datetime:
        """Two starts are min_interval apart."""
        if self.terms.min_interval is None or course.started is None:
            return due
        return max(due, course.started + self.terms.min_interval)

    def _final(
        self, course: Course, outcome: str, reason: str | None = None, *, held_until: datetime | None = None
    ) -> None:
        self.close(course)
        fate = self.fates[course.slot]
        fate.outcome, fate.reason, fate.attempts, fate.final = outcome, reason, course.attempt, True
        course.holder = None
        if not course.is_plan:
            self.beside.remove(course)
            self._release(course)
            return
        delay = self.timeline.times.delay
        self.plan = None
        if delay is not None:
            self._wait_for(max(self.now, course.slot) + delay)
        elif self.chain == "catch_up":
            self.gap_end = max([slot for slot in [self.gap_end, *self.missed()] if slot is not None])
            self.await_in_chain(course.started, held_until or self.now)
        elif missed := self.missed():
            self.catch_up_on(missed, held_until or self.now)
        else:
            self.overlapped(held_until or self.now)
