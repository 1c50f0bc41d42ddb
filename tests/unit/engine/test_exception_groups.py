"""What an exception group means that a handler raises, as asyncio.TaskGroup makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.kit.records import (
    Aborted,
    AttemptOutcome,
    Cancelled,
    Failed,
    Reason,
    Snoozed,
)
from tests.unit.engine.parts import Rig

from slotwise import (
    Cancel,
    Every,
    Fail,
    JobCancelled,
    JobContext,
    Resume,
    Retry,
    Skip,
    Snooze,
    job,
)


def group(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("of the handler", errors)


def outcome_of(error: BaseException, retry: Retry | None = None) -> AttemptOutcome:
    @job(name="job", schedule=Every("1h"), retry=retry)
    def handler(ctx: JobContext) -> None:
        raise error

    with Rig(handler) as rig:
        return rig.run()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (group(Snooze("1m")), Snoozed(timedelta(minutes=1))),
        (group(Resume()), Snoozed(timedelta(0))),
        (group(group(Snooze("1m"))), Snoozed(timedelta(minutes=1))),
        (group(Snooze("1m"), Snooze("1h")), Snoozed(timedelta(hours=1))),
        (group(Cancel("no data")), Cancelled("no data")),
        (group(Cancel("first"), Cancel("second")), Cancelled("first")),
        (group(Skip("no data")), Cancelled("no data")),
        (group(Fail("bad input")), Failed("bad input", final=True)),
    ],
)
def test_a_group_of_one_kind_of_request_is_that_request(
    error: BaseException, expected: AttemptOutcome
) -> None:
    """However deep it is nested; of several snoozes the longest counts."""
    assert outcome_of(error) == expected


@pytest.mark.parametrize(
    "others",
    [[ConnectionError("reset")], [Snooze("1m")], [Cancel("no data"), OSError()]],
    ids=["an error", "a snooze", "both"],
)
def test_a_fail_among_other_errors_is_final(others: list[Exception]) -> None:
    """Another attempt would meet it again."""
    outcome = outcome_of(group(*others, Fail("bad input")), Retry(max_attempts=5))
    assert isinstance(outcome, Failed)
    assert outcome.final


@pytest.mark.parametrize(
    "error",
    [group(Snooze("1m"), OSError()), group(Snooze("1m"), Cancel("no data"))],
    ids=["an error", "a cancel"],
)
def test_requests_that_disagree_are_a_failure(error: BaseException) -> None:
    """The handler's error must not be lost, and retry applies to it."""
    outcome = outcome_of(error, Retry(max_attempts=5))
    assert isinstance(outcome, Failed)
    assert not outcome.final


@pytest.mark.parametrize(
    ("retry", "error", "final"),
    [
        (Retry(retry_on=ConnectionError), group(ConnectionError()), False),
        (Retry(retry_on=OSError), group(group(TimeoutError()), OSError()), False),
        (Retry(retry_on=ConnectionError), group(ConnectionError(), KeyError()), True),
        (Retry(retry_on=ExceptionGroup), group(KeyError()), False),
        (Retry(give_up_on=ValueError), group(ValueError(), UnicodeError()), True),
        (Retry(give_up_on=ValueError), group(ValueError(), OSError()), False),
        (Retry(give_up_on=ExceptionGroup), group(OSError()), True),
    ],
)
def test_retry_looks_into_a_group(
    retry: Retry, error: BaseException, final: bool
) -> None:
    """A group matches a type if it is of that type, or if all of its errors are."""
    outcome = outcome_of(error, retry)
    assert isinstance(outcome, Failed)
    assert outcome.final is final


@pytest.mark.parametrize(
    "error",
    [
        group(JobCancelled("asked to stop")),
        group(asyncio.CancelledError(), JobCancelled()),
    ],
)
def test_a_handler_that_was_asked_to_stop_may_say_so_in_a_group(
    error: BaseException,
) -> None:
    """ctx.check() raises within the task group, and the attempt is aborted, not failed."""
    held: list[Callable[[], None]] = []

    @job(name="job", schedule=Every("1h"))
    def handler(ctx: JobContext) -> None:
        held[0]()
        raise error

    with Rig(handler) as rig:
        holding = rig.hold()
        held.append(lambda: holding.signal.set(Reason.OPERATOR))
        rig.runner.start([holding])
        assert rig.end() == Aborted(Reason.OPERATOR)


def test_a_task_group_of_asyncio() -> None:
    """Python's own advice since 3.11."""

    async def part() -> None:
        raise ConnectionError("reset by peer")

    @job(name="job", schedule=Every("1h"), retry=Retry(retry_on=ConnectionError))
    async def handler(ctx: JobContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(part())

    with Rig(handler) as rig:
        outcome = rig.run()
    assert isinstance(outcome, Failed)
    assert not outcome.final
    assert "reset by peer" in outcome.error
