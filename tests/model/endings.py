"""How attempts end, and what becomes of the slots that came due meanwhile, by the same plain
model.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tests.model.contract import MICROSECOND, Contract, Course


class Endings(Contract):
    """The contract, as far as attempts end."""

    def returned(self, course: Course) -> None:
        """The handler has returned. Its settlement follows, and says how long ago that was."""
        course.ended = self.now

    def succeeded(self, course: Course) -> None:
        self._final(course, "succeeded")

    def failed(self, course: Course, *, final: bool = False) -> None:
        if course.completed:
            return self.succeeded(course)
        pause = (
            None
            if final or course.called_off
            else self.terms.retry(self._tries(course))
        )
        if pause is None:
            return self._final(course, "failed")
        due = self._apart(course, self.now + pause)
        if self._is_past_next(course, due):
            return self._final(course, "failed", "next_slot")
        self._retry(course, due, "failed", "retry")
        return None

    def _tries(self, course: Course) -> int:
        return max(course.attempt - course.lost - self.fates[course.slot].aborted, 1)

    def _is_past_next(self, course: Course, due: datetime) -> bool:
        """Rule 7: a retry is not made if it would fall at or after the next slot that has not come
        due yet.

        Slots that have come due already, as in a tail or a queue, wait for their turn and prevent
        no retry.
        """
        if (
            self.terms.past
            or course.origin not in ("schedule", "catch_up")
            or self.timeline.times.delay is not None
        ):
            return False
        following = self._next_slot(self.now - self.terms.wait)
        return following is not None and due >= following + self.terms.wait

    def snoozed(self, course: Course, by: timedelta) -> None:
        if course.completed:
            return self.succeeded(course)
        if course.called_off:
            return self._final(course, "cancelled", course.called_off)
        if self.terms.gives_up:
            return self._final(course, "failed")
        self.fates[course.slot].aborted += 1
        self._retry(course, self._apart(course, self.now + by), "cancelled", "snoozed")
        return None

    def called_off_by_handler(self, course: Course, reason: str) -> None:
        if course.completed:
            return self.succeeded(course)
        self._final(course, "cancelled", reason)
        return None

    def stopped(self, course: Course) -> None:
        """A shutdown has stopped the handler."""
        if course.completed:
            return self.succeeded(course)
        if course.called_off:
            return self._final(course, "cancelled", course.called_off)
        if self.terms.gives_up:
            return self._final(course, "cancelled", "shutdown")
        self.fates[course.slot].aborted += 1
        self._retry(course, self._apart(course, self.now), "cancelled", "shutdown")
        return None

    def handed_back(self, course: Course, reason: str) -> None:
        """The attempt never started: as if it had not been claimed. Rule 1: it held nothing."""
        course.attempt -= 1
        if not course.called_off or self.terms.gives_up:
            self._never_started(course)
            if course.is_plan:
                self.last_start = self.before
        if course.called_off:
            if not course.is_plan:
                course.started = None
            self._forget_start(course)
            return self._final(
                course, "cancelled", course.called_off, has_started=False
            )
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
        self._freed(course)
        return None

    def _forget_start(self, course: Course) -> None:
        """``give_up``: the ledger shows that the handler of this claim has not started."""
        if self.fates[course.slot].outcome == "claimed" and self.terms.gives_up:
            course.started = None

    def taken_over(self, course: Course) -> None:
        """The holder fell silent. Rule 1: it held the job to its last heartbeat."""
        fate = self.fates[course.slot]
        if course.completed:
            return self._final(course, "succeeded", is_lost=True)
        if course.called_off:
            if fate.outcome == "claimed" and self.terms.gives_up:
                self._never_started(course)
                if course.is_plan:
                    self.last_start = self.before
            self._forget_start(course)
            return self._final(course, "cancelled", course.called_off, is_lost=True)
        if fate.outcome == "claimed":
            return self.handed_back(course, "lost")
        course.lost += 1
        fate.lost += 1
        if self.terms.gives_up:
            return self._final(course, "lost", "may_still_be_running", is_lost=True)
        if course.lost >= self.terms.max_lost:
            return self._final(course, "dead", "max_lost", is_lost=True)
        self._wait_again(
            course,
            self._apart(course, self.now),
            self._held_until(course, is_lost=True),
        )
        fate.outcome, fate.reason = "lost", "rerun"
        return None

    def _retry(self, course: Course, due: datetime, outcome: str, reason: str) -> None:
        self._wait_again(course, due, due + self.poll)
        fate = self.fates[course.slot]
        fate.outcome, fate.reason = outcome, reason

    def _wait_again(self, course: Course, due: datetime, held_until: datetime) -> None:
        """Rule 1: a retry or a snooze that waits holds the job until it is due plus one poll
        interval; a lost claim has held it to its last heartbeat. Rule 2: ``unheld_since`` says so
        ahead of time, unless the hold has ended before.
        """
        self._judge(course)
        course.holder, course.due, course.paused = None, due, self.is_paused
        if course.is_plan and self.timeline.times.delay is None:
            self.unheld_since = self.unheld_since or held_until
        self._freed(course)

    def _apart(self, course: Course, due: datetime) -> datetime:
        """Return the due time, moved if two starts would be less than ``min_interval`` apart."""
        if self.terms.min_interval is None or course.started is None:
            return due
        return max(due, course.started + self.terms.min_interval)

    # -- how long the job was held ----------------------------------------------------------------

    def _held_until(
        self, course: Course, *, is_lost: bool = False, has_started: bool = True
    ) -> datetime:
        """Rule 1: a job is held to the end of its handler; if the claim is lost, to its last
        heartbeat.

        A claim that is settled under its token was never interrupted, however late the settlement
        is. A claim that ends before its handler has started has held nothing since ``started``,
        which is the claim then.
        """
        assert course.beat is not None
        if is_lost:
            return min(course.beat, self.now)
        return (course.ended if has_started else course.started) or self.now

    def _judge(self, course: Course) -> None:
        """Rule 2: each ending judges ``unheld_since``.

        If an undecided slot came due after it and before this attempt's start, nobody held the job
        then, and it stands. Otherwise the attempt started in time, and it is cleared. Claims never
        write it.
        """
        if course.is_plan and self.unheld_since is not None:
            start = course.started or course.claimed
            assert start is not None
            missed = self.come(start - MICROSECOND)
            if not self._came_after(self.unheld_since, missed):
                self.unheld_since = None

    # -- final settlements ------------------------------------------------------------------------

    def _final(
        self,
        course: Course,
        outcome: str,
        reason: str | None = None,
        *,
        is_lost: bool = False,
        has_started: bool = True,
    ) -> None:
        self._judge(course)
        fate = self.fates[course.slot]
        fate.outcome = outcome
        fate.reason = reason
        fate.attempts = course.attempt
        fate.final = True
        course.holder = None
        if not course.is_plan:
            self.beside.remove(course)
            self._release(course)
            self._freed(course)
            return
        delay = self.timeline.times.delay
        held_until = self._held_until(course, is_lost=is_lost, has_started=has_started)
        self.plan = None
        if delay is not None:
            self._wait_for(max(self.now, course.slot) + delay)
        elif self.catch_up_until is not None:
            self._go_on_with_the_tail(course.started, held_until)
        else:
            self._overlap_decides(held_until)
        self._freed(course)

    def _go_on_with_the_tail(
        self, started: datetime | None, held_until: datetime
    ) -> None:
        """Rule 5: a slot of a tail is final.

        - After an absence the tail extends to all that has come.
        - If a slot of the tail may still start, it is next, ``pace`` after the last start.
        - Otherwise the tail is through, and what is left of it is late. If the last run was
          shorter than the interval to the next slot, what came due meanwhile is a new tail. If
          not, it is overlap's, and the catch-up is over. So a job that is slower than its schedule
          leaves its catch-up.
        """
        assert self.catch_up_until is not None
        come = self.come(self.now)
        if come and (
            self.unheld_since is not None
            or self._came_after(held_until + self.poll, come)
        ):
            self.catch_up_until = max(self.catch_up_until, come[-1])
        self.unheld_since = None
        first_start = self._first_start(started)
        tail = [slot for slot in come if slot <= self.catch_up_until]
        meanwhile = [slot for slot in come if slot > self.catch_up_until]
        latest = first_start + self.poll - self.terms.wait
        if any(self.terms.catches_up_on(slot, latest) for slot in tail):
            self._wait_for(tail[0], first_start)
            return
        self._skip(tail, "late")
        if meanwhile and (
            started is None or held_until - started < self._interval_to(meanwhile[0])
        ):
            self.catch_up_until = self.come(first_start)[-1]
            self._wait_for(meanwhile[0], first_start)
        else:
            self._overlap_decides(held_until)

    def _first_start(self, started: datetime | None) -> datetime:
        """``pace`` is from one slot's last start to the next slot's first. A slot that never
        started sets none.
        """
        spans = [
            span
            for span in (self.terms.pace, self.terms.min_interval)
            if span is not None
        ]
        return (
            self.now
            if started is None
            else max([self.now, *(started + span for span in spans)])
        )

    def _interval_to(self, slot: datetime) -> timedelta:
        """From the slot right before this one, by the job's text. The instant of a deploy is no
        slot.
        """
        return slot - (self.timeline.before(slot) or self.timeline.begin)
