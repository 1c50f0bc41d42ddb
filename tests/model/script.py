"""What may happen to a job, step by step: each is done to the cluster and to the model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from tests.kit.records import (
    Aborted,
    AttemptOutcome,
    Cancelled,
    Failed,
    Snoozed,
    Succeeded,
)
from tests.model.cluster import JOB, Cluster, Member
from tests.model.contract import Course
from tests.model.declarations import is_refused
from tests.model.timeline import Times

from slotwise import InvalidJob
from slotwise.spi import Claim, define

#: The name of a method, and what it is given.
Step: TypeAlias = tuple[str, dict[str, Any]]

NAP = timedelta(seconds=30)
OUTCOMES: dict[str, AttemptOutcome] = {
    "succeed": Succeeded(),
    "fail": Failed("boom"),
    "fail for good": Failed("boom", final=True),
    "snooze": Snoozed(NAP),
    "cancel": Cancelled("enough"),
    "stop": Aborted("shutdown"),
}


class Script:
    """``play`` raises AssertionError where cluster and model differ."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.model = cluster, cluster.model
        self.former = cluster.times

    def play(self, steps: Sequence[Step]) -> None:
        for name, given in steps:
            getattr(self, name)(**given)
            self.cluster.compare()

    def member(self, pick: int) -> Member:
        return self.cluster.members[pick % len(self.cluster.members)]

    # -- time and workers -------------------------------------------------------------------------

    def pass_time(self, by: timedelta) -> None:
        self.cluster.tick(by)

    def pass_until(self, pick: int, off: timedelta) -> None:
        """Up to one of the next instants at which something may happen, or a little before or
        after it.
        """
        instants = self.cluster.instants()
        if instants:
            self.cluster.tick(
                max(
                    instants[pick % len(instants)] + off - self.model.now, timedelta(0)
                )
            )

    def poll(self, pick: int) -> None:
        if not self.member(pick).frozen:
            self.cluster.poll(self.member(pick))

    def wait_and_run(self, pick: int, by: timedelta) -> None:
        """The usual course of things."""
        self.cluster.tick(by)
        self.run_due(pick)

    def run_due(self, pick: int) -> None:
        """Claim what is due, and begin with it."""
        member = self.member(pick)
        if not member.frozen:
            self.cluster.poll(member)
            self.cluster.compare()
            for claim in member.worker.waiting:
                self.cluster.begin(member, claim)

    def started(self, pick: int) -> tuple[Member, Claim] | None:
        members = [
            member
            for member in self.cluster.members
            if member.running and not member.frozen
        ]
        if not members:
            return None
        member = members[pick % len(members)]
        return member, member.running[pick % len(member.running)]

    def begin(self, pick: int) -> None:
        member = self.member(pick)
        if not member.frozen and (waiting := member.worker.waiting):
            self.cluster.begin(member, waiting[pick % len(waiting)])

    def succeed(self, pick: int) -> None:
        self._end(pick, "succeed")

    def fail(self, pick: int, final: bool) -> None:
        self._end(pick, "fail for good" if final else "fail")

    def end_otherwise(self, pick: int, kind: str) -> None:
        self._end(pick, kind)

    def _end(self, pick: int, kind: str) -> None:
        if (found := self.started(pick)) is not None:
            course = self.cluster.end(*found, OUTCOMES[kind])
            if course is not None:
                self._ended(course, kind)

    def end_late(self, pick: int, kind: str, by: timedelta) -> None:
        """The handler returns, and its settlement comes so much later."""
        if (found := self.started(pick)) is not None:
            course = self.cluster.end(*found, OUTCOMES[kind], settled_after=by)
            if course is not None:
                self._ended(course, kind)

    def _ended(self, course: Course, kind: str) -> None:
        match kind:
            case "succeed":
                self.model.succeeded(course)
            case "fail" | "fail for good":
                self.model.failed(course, final=kind == "fail for good")
            case "snooze":
                self.model.snoozed(course, NAP)
            case "cancel":
                self.model.called_off_by_handler(course, "enough")
            case "stop":
                self.model.stopped(course)

    def complete(self, pick: int, kind: str) -> None:
        """Within a transaction of the handler, which then succeeds, fails, or takes its process
        along.
        """
        if (found := self.started(pick)) is None or not self.cluster.complete(*found):
            return
        if kind == "crash":
            self.cluster.crash(found[0])
        else:
            outcome = (
                Succeeded(promised=True)
                if kind == "succeed"
                else Failed("boom", promised=True)
            )
            course = self.cluster.end(*found, outcome)
            assert course is not None
            self.model.succeeded(course)

    def crash(self, pick: int) -> None:
        self.cluster.crash(self.member(pick))

    def freeze_or_thaw(self, pick: int) -> None:
        member = self.member(pick)
        member.frozen = not member.frozen

    def reap(self) -> None:
        if any(course.holder for course in self.model.courses):
            self.cluster.reap()

    # -- operators --------------------------------------------------------------------------------

    def pause_or_resume(self, replay: bool) -> None:
        if self.model.is_paused:
            self.cluster.operations.resume(JOB, replay=replay)
            self.model.resume(replay=replay)
        else:
            self.cluster.operations.pause(JOB)
            self.model.pause()

    def pause_or_resume_all(self, replay: bool) -> None:
        if self.model.all_paused:
            self.cluster.operations.resume_all(replay=replay)
            self.model.resume_all(replay=replay)
        else:
            self.cluster.operations.pause_all()
            self.model.all_paused = True

    def skip_next(self) -> None:
        if self.model.skippable() is not None:
            self.cluster.operations.skip_next(JOB)
            self.model.skip_next()

    def trigger(self, rule: str) -> None:
        slot = self.cluster.operations.trigger(JOB, overlap=rule)
        self.model.trigger(slot, rule)

    def cancel(self, pick: int, which: bool) -> None:
        known = [
            course.slot
            for course in self.model.courses
            if course.attempt or course.holder or not course.is_plan
        ]
        slot = known[pick % len(known)] if which and known else None
        self.cluster.operations.cancel(JOB, slot)
        self.model.cancel(slot)

    def retry(self, pick: int) -> None:
        if slots := self.model.retryable():
            slot = slots[pick % len(slots)]
            self.cluster.anybody.retry(JOB, slot)
            self.model.retry_slot(slot)

    def backfill(self, ago: timedelta, at_once: int, failed: bool, pace: int) -> None:
        if self.cluster.times.delay is not None:
            return
        first, last = (
            max(self.model.now - ago, self.model.timeline.changed),
            self.model.now,
        )
        if first > last:
            return
        slots = self.model.missing(first, last, failed=failed)
        found = self.cluster.operations.backfill(
            JOB,
            first,
            last,
            concurrency=at_once,
            failed=failed,
            pace=timedelta(seconds=pace) if pace else None,
        )
        assert list(found.slots) == slots, f"backfills {found.slots}, expected {slots}"
        self.model.backfill(slots, timedelta(seconds=pace), at_once)

    def cancel_backfill(self) -> None:
        self.cluster.operations.cancel_backfill(JOB)
        self.model.cancel_backfill()

    # -- deploys ----------------------------------------------------------------------------------

    def redeploy(self, times: Times) -> None:
        if (
            times.delay is None
            and self.cluster.times.delay is None
            and not is_refused(self.cluster.terms, times)
        ):
            try:
                define(self.cluster.terms.declare(JOB, times))
            except InvalidJob:
                return
            self.former = self.cluster.times
            self.cluster.redeploy(times)

    def deploy_the_former(self) -> None:
        """Somebody takes the last change back."""
        self.redeploy(self.former)

    def create_anew(self) -> None:
        """Delete the job, and plan it again."""
        if (
            any(course.holder for course in self.model.courses)
            or self.cluster.times.delay is not None
        ):
            return
        self.cluster.operations.delete(JOB, force=True)
        self.model.delete()
        self.cluster.plan()
        self.model.create(self.cluster.times)
