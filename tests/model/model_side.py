"""The model alone as a player of canonical cases."""

from __future__ import annotations

from datetime import timedelta

from tests.model.canonical_cases import Case
from tests.model.contract import Course, Fate
from tests.model.operations import Operated
from tests.model.policies import Terms
from tests.model.timeline import EPOCH, Timeline, every

LETTERS = {"overlap": "o", "late": "l", "collapsed": "c", "paused": "p"}


def _seconds(number: float | None) -> timedelta | None:
    return None if number is None else timedelta(seconds=number)


def terms_of(case: Case, column: str) -> Terms:
    """The declared policies of the case's job."""
    return Terms(
        catching=column,
        grace=timedelta(seconds=case.grace),
        max=case.max,
        window=_seconds(case.window),
        pace=_seconds(case.pace),
        start_within=_seconds(case.start_within),
        overlap=case.overlap,
        most=case.places,
        gives_up=case.gives_up,
        attempts=case.attempts,
        retry_pause=timedelta(seconds=case.retry_pause),
        past=case.past_next_slot,
    )


class ModelSide:
    """Implements ``Side``."""

    def __init__(
        self, case: Case, column: str, model: type[Operated] = Operated
    ) -> None:
        begin = EPOCH + timedelta(seconds=case.begin)
        timeline = Timeline(begin, every(int(case.every)))
        self.model = model(
            terms_of(case, column), timeline, begin, timedelta(seconds=case.poll)
        )

    def pass_to(self, at: float) -> None:
        self.model.now = EPOCH + timedelta(seconds=at)

    def look(self) -> list[tuple[float, int]]:
        started = []
        for course in self.model.due():
            begun = self.model.claim(course, "worker")
            if begun is not None:
                if self.model.terms.gives_up:
                    self.model.marked(begun)
                started.append(((begun.slot - EPOCH).total_seconds(), begun.attempt))
        return started

    def _course(self, slot: float) -> Course:
        return next(
            one
            for one in self.model.courses
            if one.slot == EPOCH + timedelta(seconds=slot)
        )

    def returned(self, slot: float) -> None:
        self.model.returned(self._course(slot))

    def settle(self, slot: float, ends: str, pause: float) -> None:
        course = self._course(slot)
        if ends == "succeed":
            self.model.succeeded(course)
        elif ends == "fail":
            self.model.failed(course)
        else:
            self.model.snoozed(course, timedelta(seconds=pause))

    def kill(self, slot: float, last_beat: float, *, has_completed: bool) -> None:
        course = self._course(slot)
        course.beat, course.completed = (
            EPOCH + timedelta(seconds=last_beat),
            has_completed,
        )

    def take_over(self, slot: float) -> None:
        self.model.taken_over(self._course(slot))

    def pause(self) -> None:
        self.model.pause()

    def resume(self, *, replay: bool) -> None:
        self.model.resume(replay=replay)

    def deploy(self, every_seconds: int) -> None:
        self.model.redeploy(every(every_seconds))

    def fates(self) -> dict[float, str]:
        return {
            (slot - EPOCH).total_seconds(): _letter(fate)
            for slot, fate in self.model.fates.items()
        }


def _letter(fate: Fate) -> str:
    if fate.outcome == "succeeded":
        return "r" if fate.attempts == 1 else f"#{fate.attempts}"
    return LETTERS[fate.reason or ""] if fate.outcome == "skipped" else fate.outcome
