"""The policies of a job: missed slots, overlaps, losses, failures and rates."""

from __future__ import annotations

import itertools
import logging
import re
import zlib
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

import tenacity
from tenacity import RetryCallState as RetryState
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from slotwise.errors import InvalidJob, InvalidSetting, located
from slotwise.model.durations import format_duration, parse_duration
from slotwise.model.records import is_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)


#: The longest and the shortest period of a rate.
LONGEST_WINDOW = timedelta(days=366)
SHORTEST_WINDOW = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` starts within any ``window``, in the whole cluster."""

    count: int
    window: timedelta

    @classmethod
    def read(cls, text: str) -> Rate:
        """Parse ``"100/m"``, ``"5/s"`` or ``"1000/24h"``: a count and a period. Raise
        InvalidSetting.
        """
        try:
            count, span = (part.strip() for part in text.split("/"))
            if not re.fullmatch("0*[1-9][0-9]{0,8}", count):
                raise ValueError
            window = parse_duration(
                span if span[0].isdigit() or span.startswith("P") else f"1{span}"
            )
        except (ValueError, IndexError, InvalidSetting):
            cure = 'write a count and a period: "100/m", "5/s", "1000/24h"'
            raise InvalidSetting(f"{text!r:.60} is not a rate; {cure}") from None
        if not SHORTEST_WINDOW <= window <= LONGEST_WINDOW:
            raise InvalidSetting(
                f"{text!r:.60}: the period must be from 100ms to {LONGEST_WINDOW.days}d"
            )
        return cls(int(count), window)

    @property
    def grain(self) -> timedelta:
        """The resolution at which starts are counted: a place becomes free at most this much
        too late.
        """
        return max(self.window / 100, timedelta(milliseconds=1))


#: One exception type or several, as ``except`` takes them.
ErrorTypes: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
OnLost: TypeAlias = Literal["rerun", "give_up"]

#: The largest queue of slots; use queue_all for more.
LONGEST_QUEUE = 10_000


#: No pause between two attempts is longer.
LONGEST_WAIT = timedelta(days=366)

#: Default cap for exponential backoff.
USUAL_CAP = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What happens to slots that came due while no worker held the job.

    ``CatchUp.latest()`` (the default): one run for the whole outage, with the newest missed slot;
    ``ctx.missed_count`` is the number of older ones, and the ledger lists them as skipped
    (collapsed). ``CatchUp.none()``: a slot that is later than ``grace`` does not run, and of
    several within it only the newest does; the others are skipped (late). ``CatchUp.first()``: one
    run, with the oldest missed slot. ``CatchUp.all()``: every missed slot runs, the oldest first,
    at least ``pace`` apart; only the newest ``max``, and none older than ``window``, counted again
    at each start. Slots that come due meanwhile run afterwards, unless the last run took longer
    than the interval to the next slot: then overlap decides about them.

    Raises InvalidJob for an invalid limit.
    """

    mode: Literal["none", "latest", "first", "all"] = "latest"
    grace: timedelta = timedelta(minutes=1)
    max: int | None = None
    window: timedelta | None = None
    pace: timedelta | None = None

    @classmethod
    def none(cls, *, grace: timedelta | str = timedelta(minutes=1)) -> CatchUp:
        return cls("none", grace=_span("CatchUp.none", "grace", grace))

    @classmethod
    def latest(cls) -> CatchUp:
        return cls()

    @classmethod
    def first(cls) -> CatchUp:
        return cls("first")

    @classmethod
    def all(
        cls,
        *,
        max: int | None = None,
        window: timedelta | str | None = None,
        pace: timedelta | str | None = None,
    ) -> CatchUp:
        if max is not None:
            _whole("CatchUp.all", max)
        return cls(
            "all",
            max=max,
            window=None if window is None else _span("CatchUp.all", "window", window),
            pace=None if pace is None else _span("CatchUp.all", "pace", pace),
        )


@dataclass(frozen=True, slots=True)
class Overlap:
    """What happens to slots that come due while the job is held: by a run, or by an attempt or a
    slot that waits.

    ``Overlap.skip()`` (the default): they do not run; the ledger lists them as skipped (overlap).
    ``Overlap.queue(max=1)``: the newest ``max`` of them run afterwards, the older ones are
    skipped, also those that wait already. ``Overlap.queue_all()``: all of them run afterwards, one
    after another. ``Overlap.allow(max)``: up to ``max`` slots run side by side in the whole
    cluster, including those that wait for a retry; a slot without a place is skipped.
    ``Overlap.cancel_previous()``: the running slot is asked to stop, and the newest slot starts
    when it has ended.

    Raises InvalidJob for a ``max`` below 1.
    """

    mode: Literal["skip", "queue", "queue_all", "allow", "cancel_previous"] = "skip"
    max: int = 1

    @property
    def detaches(self) -> bool:
        """Whether slots run in rows of their own, beside the plan row."""
        return self.mode in ("allow", "cancel_previous")

    @classmethod
    def skip(cls) -> Overlap:
        return cls()

    @classmethod
    def queue(cls, max: int = 1) -> Overlap:
        _whole("Overlap.queue", max)
        return cls("queue", max)

    @classmethod
    def queue_all(cls) -> Overlap:
        return cls("queue_all")

    @classmethod
    def allow(cls, max: int) -> Overlap:
        _whole("Overlap.allow", max)
        return cls("allow", max)

    @classmethod
    def cancel_previous(cls) -> Overlap:
        return cls("cancel_previous")


def _span(where: str, name: str, value: timedelta | str) -> timedelta:
    with located(f"{where}({name}={value!r})", InvalidJob):
        return parse_duration(value)


def _whole(where: str, value: int) -> None:
    if not is_whole(value, 1, LONGEST_QUEUE):
        raise InvalidJob(
            f"{where}(max={value!r}): expected a whole number, 1 to {LONGEST_QUEUE}"
        )


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors in an exception group, however deep; of any other error, itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in leaves(inner)]


def matches(error: BaseException, types: ErrorTypes) -> bool:
    """Return whether this error, or each one in this group, is of one of these types."""
    return isinstance(error, types) or all(
        isinstance(one, types) for one in leaves(error)
    )


@dataclass(frozen=True, slots=True)
class Retry:
    """Further attempts of the same slot (or task) after a failure.

    ``max_attempts`` counts failures, the first included; a snoozed or lost attempt, and one that a
    shutdown stopped, is not a failure. ``wait`` is one of tenacity's ``wait_*`` objects. ``stop``
    is one of its ``stop_*`` objects, which can end the attempts earlier. Both are called with the
    row's own counters, so they hold across restarts and workers. Their time counts from the claim
    of the first failed attempt. If a strategy raises, the error is logged and the wait doubles
    from two seconds up to an hour. No wait is longer than a year.

    A job's retry that would fall at or after the next slot to come due is not made: the slot ends
    as failed and the schedule continues. With ``past_next_slot`` it is made, and overlap decides
    about slots that come due meanwhile.

    ``retry_on`` and ``give_up_on`` are exception types, one or several. An error that is not in
    ``retry_on``, or is in ``give_up_on``, ends the attempts, as with ``Fail``. An exception group,
    such as one of ``asyncio.TaskGroup``, is in them if it is of such a type, or if all of its
    errors are. A timeout and a lost worker raise nothing here, so neither applies to them.

    ``resets_on_progress``: an attempt that has committed a checkpoint counts as the first again,
    for ``max_attempts``, ``wait`` and ``stop``, and for the ``max_lost`` of the job or task.

    Raises InvalidJob when ``max_attempts`` is below 1, or a strategy or an exception type is of
    the wrong type.
    """

    max_attempts: int = 3
    wait: wait_base = field(
        default_factory=lambda: tenacity.wait_random_exponential(multiplier=1, max=300)
    )
    stop: stop_base | None = None
    past_next_slot: bool = False
    retry_on: ErrorTypes | None = None
    give_up_on: ErrorTypes = ()
    resets_on_progress: bool = False

    def __post_init__(self) -> None:
        if not is_whole(self.max_attempts, 1):
            raise InvalidJob(
                f"Retry(max_attempts={self.max_attempts!r}): expected a whole number, 1 or more"
            )
        if not callable(self.wait):
            raise InvalidJob(
                f"Retry(wait={self.wait!r}): expected one of tenacity's wait_* objects"
            )
        if self.stop is not None and not callable(self.stop):
            raise InvalidJob(
                f"Retry(stop={self.stop!r}): expected one of tenacity's stop_* objects"
            )
        for word in ("retry_on", "give_up_on"):
            given = getattr(self, word)
            several = (
                given
                if isinstance(given, tuple)
                else ()
                if given is None
                else (given,)
            )
            if not all(
                isinstance(one, type) and issubclass(one, BaseException)
                for one in several
            ):
                raise InvalidJob(
                    f"Retry({word}={given!r:.60}): expected an exception type, or a tuple of them"
                )

    def retries(self, error: BaseException) -> bool:
        """Return whether an attempt that raised this error may be followed by another one."""
        wanted = self.retry_on is None or matches(error, self.retry_on)
        return wanted and not matches(error, self.give_up_on)

    @classmethod
    def exponential(
        cls,
        max_attempts: int = 3,
        *,
        initial: timedelta | str = timedelta(seconds=1),
        max_wait: timedelta | str | None = None,
        jitter: timedelta | str | None = None,
        past_next_slot: bool = False,
        retry_on: ErrorTypes | None = None,
        give_up_on: ErrorTypes = (),
        resets_on_progress: bool = False,
    ) -> Retry:
        """``max_attempts`` in all; the wait doubles from ``initial`` up to ``max_wait``, plus a
        random part of ``jitter``.

        The default of ``max_wait`` is five minutes, or ``initial`` if that is longer; the default
        of ``jitter`` is ``initial``. Durations are ``timedelta`` or strings such as ``"10s"``.
        Raises InvalidJob for an invalid duration, and for an ``initial`` that is longer than
        ``max_wait``.
        """
        shortest = _span("Retry.exponential", "initial", initial)
        longest = (
            max(shortest, USUAL_CAP)
            if max_wait is None
            else _span("Retry.exponential", "max_wait", max_wait)
        )
        random = (
            shortest
            if jitter is None
            else _span("Retry.exponential", "jitter", jitter)
        )
        if shortest > longest:
            raise InvalidJob(
                f"Retry.exponential(initial={format_duration(shortest)}, "
                f"max_wait={format_duration(longest)}): "
                "the first wait is longer than the longest; give a longer max_wait"
            )
        return cls(
            max_attempts=max_attempts,
            wait=_doubling(shortest, longest, random),
            past_next_slot=past_next_slot,
            retry_on=retry_on,
            give_up_on=give_up_on,
            resets_on_progress=resets_on_progress,
        )

    def delay_after(self, attempt: int, elapsed: timedelta) -> timedelta | None:
        """Return the wait after attempt ``attempt`` (from 1), ``elapsed`` after the first claim;
        None: give up.
        """
        if attempt >= self.max_attempts:
            return None
        state = _retry_state(attempt, elapsed)
        try:
            pause = _within_bounds(self.wait(state))
            state.upcoming_sleep = pause.total_seconds()
            return None if self.stop is not None and self.stop(state) else pause
        except (
            Exception
        ):  # other outcomes of the batch must not fail with a user's strategy
            logger.exception(
                "%r failed; the wait before the next attempt doubles instead", self
            )
            return _within_bounds(_FALLBACK(state))


def _within_bounds(seconds: float) -> timedelta:
    """Limit a wait: tenacity's own bound of an exponential wait overflows a datetime."""
    return timedelta(
        seconds=min(max(0.0, float(seconds)), LONGEST_WAIT.total_seconds())
    )


def _retry_state(attempt: int, elapsed: timedelta) -> RetryState:
    """Return a tenacity state with the row's counters, as if one process had made all attempts."""
    state = RetryState(retry_object=tenacity.Retrying(), fn=None, args=(), kwargs={})
    state.attempt_number = attempt
    # not from the monotonic clock: in a sum with it, the fractions of a second are rounded
    state.start_time = 0.0
    state.outcome_timestamp = elapsed.total_seconds()
    future = tenacity.Future(attempt)
    future.set_exception(RuntimeError("the attempt failed"))
    state.outcome = future
    return state


def _doubling(first: timedelta, cap: timedelta, jitter: timedelta) -> wait_base:
    """Return a wait that doubles from ``first`` up to ``cap``, plus a random part of
    ``jitter``.
    """
    return tenacity.wait_combine(
        tenacity.wait_exponential(
            multiplier=first.total_seconds(), max=cap.total_seconds()
        ),
        tenacity.wait_random(0, jitter.total_seconds()),
    )


_FALLBACK = _doubling(timedelta(seconds=2), timedelta(hours=1), timedelta(seconds=2))

#: One-time tasks try ten times unless told otherwise.
TASK_RETRY = Retry.exponential(
    max_attempts=10, initial=timedelta(seconds=2), max_wait=timedelta(hours=1)
)


def pause_after_loss(lost: int, key: tuple[str, str] = ("", "")) -> timedelta:
    """Return the pause after the ``lost``-th lost attempt of a slot: none, then 5 s, 10 s, … 5
    min.

    ``key`` lengthens later pauses by up to half, so that rows lost together do not come due
    together again.
    """
    if lost <= 1:
        return timedelta(0)
    doublings: int = 2 ** min(lost - 2, 10)
    pause = min(timedelta(seconds=5) * doublings, timedelta(minutes=5))
    return pause + pause * (zlib.crc32(repr((*key, lost)).encode()) / 2**33)


def growing_pauses(first: timedelta, cap: timedelta) -> Iterator[timedelta]:
    """Yield growing pauses with jitter, without end, for waiting until the database is back."""
    wait = _doubling(first, cap, first)
    for attempt in itertools.count(1):
        yield timedelta(
            seconds=float(wait(_retry_state(min(attempt, 32), timedelta(0))))
        )
