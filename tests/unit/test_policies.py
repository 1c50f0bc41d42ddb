"""When another attempt is made, and when not: from counters alone."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest
import tenacity

from slotwise import CatchUp, InvalidJob, Overlap, Retry
from slotwise.jobs.policies import (
    LONGEST_WAIT,
    TASK_RETRY,
    growing_pauses,
    pause_after_loss,
)

SECOND = timedelta(seconds=1)
NOTHING = timedelta(0)


def test_all_attempts_count() -> None:
    """Three attempts are two retries."""
    retry = Retry(max_attempts=3, wait=tenacity.wait_fixed(5))
    assert [retry.delay_after(attempt, NOTHING) for attempt in (1, 2, 3, 4)] == [
        5 * SECOND,
        5 * SECOND,
        None,
        None,
    ]


def test_exponential_doubles_up_to_its_cap() -> None:
    """With up to the first wait of jitter on top, so that those who failed together do not come
    back together.
    """
    retry = Retry.exponential(
        max_attempts=10, initial=2 * SECOND, max_wait=10 * SECOND
    )
    for attempt, least in zip(range(1, 8), [2, 4, 8, 10, 10, 10, 10], strict=True):
        delay = retry.delay_after(attempt, NOTHING)
        assert delay is not None
        assert least * SECOND <= delay <= (least + 2) * SECOND
    assert len({retry.delay_after(1, NOTHING) for _ in range(20)}) > 1


def test_tenacitys_strategies_are_asked_from_the_rows_counters() -> None:
    """Another process, another worker, another day: the same answer."""
    chain = tenacity.wait_chain(
        *[tenacity.wait_fixed(seconds) for seconds in (1, 2, 3)]
    )
    retry = Retry(
        max_attempts=99,
        wait=chain,
        stop=tenacity.stop_after_delay(60) | tenacity.stop_after_attempt(5),
    )
    assert retry.delay_after(2, 10 * SECOND) == 2 * SECOND
    assert retry.delay_after(4, 59 * SECOND) == 3 * SECOND
    assert retry.delay_after(2, 60 * SECOND) is None
    assert retry.delay_after(5, NOTHING) is None


def test_the_elapsed_time_is_exact() -> None:
    """A limit is reached at its very second, whatever the monotonic clock of the process shows."""
    for tenths in range(1, 2000):
        retry = Retry(
            max_attempts=99,
            wait=tenacity.wait_none(),
            stop=tenacity.stop_after_delay(tenths / 10),
        )
        assert retry.delay_after(1, timedelta(seconds=tenths / 10)) is None


def test_a_stop_that_looks_ahead_knows_the_pause() -> None:
    """tenacity's stop_before_delay: no attempt begins after its time."""
    retry = Retry(
        max_attempts=99,
        wait=tenacity.wait_fixed(20),
        stop=tenacity.stop_before_delay(60),
    )
    assert retry.delay_after(1, 39 * SECOND) == 20 * SECOND
    assert retry.delay_after(1, 40 * SECOND) is None


def test_a_strategy_may_look_at_the_failure() -> None:
    """A tenacity state as if one process had made all attempts."""

    def wait(state: tenacity.RetryCallState) -> float:
        assert state.outcome is not None
        return 7.0 if state.outcome.failed else 0.0

    assert Retry(wait=wait).delay_after(1, NOTHING) == 7 * SECOND  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-5, NOTHING),
        (float("nan"), NOTHING),
        (float("inf"), LONGEST_WAIT),
        (10**18, LONGEST_WAIT),
    ],
    ids=str,
)
def test_no_pause_leaves_the_calendar(seconds: float, expected: timedelta) -> None:
    """An exponential wait without a bound of its own grows beyond any date."""
    assert Retry(wait=lambda state: seconds).delay_after(1, NOTHING) == expected  # type: ignore[arg-type]


def test_an_exponential_wait_without_a_bound() -> None:
    """Its fiftieth pause would last for thirty million years."""
    assert (
        Retry(max_attempts=99, wait=tenacity.wait_exponential()).delay_after(
            50, NOTHING
        )
        == LONGEST_WAIT
    )


def _raises(state: Any) -> float:
    raise KeyError("a mistake of the user's")


@pytest.mark.parametrize(
    "strategies",
    [
        {"wait": _raises},
        {"stop": _raises},
        {"wait": lambda state: "soon"},
        {"wait": lambda state: None},
    ],
    ids=["wait raises", "stop raises", "wait gives a text", "wait gives nothing"],
)
def test_a_strategy_with_a_mistake(
    strategies: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked while outcomes are written: it is logged, a doubling pause stands in, attempts
    count.
    """
    retry = Retry(**strategies)
    delay = retry.delay_after(1, NOTHING)
    assert delay is not None
    assert 2 * SECOND <= delay <= 4 * SECOND
    assert retry.delay_after(3, NOTHING) is None
    assert "the wait before the next attempt doubles instead" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"max_attempts": 0},
            "Retry(max_attempts=0): expected a whole number, 1 or more",
        ),
        ({"max_attempts": True}, "Retry(max_attempts=True): expected a whole number"),
        ({"max_attempts": "3"}, "Retry(max_attempts='3'): expected a whole number"),
        ({"wait": 5}, "Retry(wait=5): expected one of tenacity's wait_* objects"),
        (
            {"retry_on": "OSError"},
            "Retry(retry_on='OSError'): expected an exception type, or a tuple of them",
        ),
        (
            {"give_up_on": (ValueError, 3)},
            "Retry(give_up_on=(<class 'ValueError'>, 3)): expected an exception type",
        ),
        (
            {"give_up_on": [ValueError]},
            "Retry(give_up_on=[<class 'ValueError'>]): expected an exception type",
        ),
        ({"stop": 5}, "Retry(stop=5): expected one of tenacity's stop_* objects"),
    ],
)
def test_what_is_no_retry(options: dict[str, Any], words: str) -> None:
    """Said where it is written, not where it fails."""
    with pytest.raises(InvalidJob) as refused:
        Retry(**options)
    assert words in str(refused.value)


@pytest.mark.parametrize("first", ["10m", timedelta(minutes=6)])
def test_no_first_wait_is_longer_than_the_longest(first: Any) -> None:
    """Every wait would be the cap, whatever was written; as long as the cap is fine, and one that
    is not given is.
    """
    with pytest.raises(
        InvalidJob,
        match=r"initial=(10|6)m, max_wait=5m\): the first wait is longer than the longest",
    ):
        Retry.exponential(max_attempts=3, initial=first, max_wait="5m")
    for longest in ({}, {"max_wait": first}):
        delay = Retry.exponential(
            max_attempts=3, initial=first, **longest
        ).delay_after(1, NOTHING)
        assert delay is not None
        assert delay >= timedelta(minutes=6)


@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        ({}, OSError(), True),
        ({"retry_on": OSError}, ConnectionError(), True),
        ({"retry_on": OSError}, ValueError(), False),
        ({"retry_on": (OSError, KeyError)}, KeyError(), True),
        ({"retry_on": ()}, OSError(), False),
        ({"give_up_on": ValueError}, UnicodeError(), False),
        ({"give_up_on": ValueError}, OSError(), True),
        (
            {"retry_on": OSError, "give_up_on": FileNotFoundError},
            FileNotFoundError(),
            False,
        ),
        ({"retry_on": OSError, "give_up_on": FileNotFoundError}, TimeoutError(), True),
    ],
)
def test_some_errors_are_worth_another_attempt(
    options: dict[str, Any], error: Exception, expected: bool
) -> None:
    """Those of retry_on, all unless it is given, without those of give_up_on; subclasses as
    ``except`` has them.
    """
    assert Retry(**options).retries(error) is expected
    assert Retry.exponential(**options).retries(error) is expected


def test_jitter_is_on_top_of_the_wait() -> None:
    """A random part of it; as much as the first wait, unless it is given; and none, if that is
    wanted.
    """
    for longest, options in ((5, {"jitter": "4s"}), (2, {}), (1, {"jitter": "0s"})):
        waits = {
            Retry.exponential(initial="1s", **options).delay_after(1, NOTHING)
            for _ in range(20)
        }
        assert all(
            wait is not None and SECOND <= wait <= longest * SECOND for wait in waits
        )
        assert (len(waits) > 1) == (longest > 1)


def test_tasks_are_tried_ten_times() -> None:
    """Within some hours."""
    delays = [TASK_RETRY.delay_after(attempt, NOTHING) for attempt in range(1, 11)]
    assert delays[-1] is None
    assert all(
        delay is not None and delay <= timedelta(hours=1, seconds=2)
        for delay in delays[:-1]
    )


def test_a_job_that_kills_its_workers_gives_them_air() -> None:
    """At once, then 5 s, 10 s, … up to five minutes, and up to half as long again."""
    pauses = [
        pause_after_loss(lost, ("poison", "1")).total_seconds()
        for lost in (1, 2, 3, 4, 8, 9, 1000)
    ]
    least = [0, 5, 10, 20, 300, 300, 300]
    assert all(
        base <= pause <= base * 1.5 for base, pause in zip(least, pauses, strict=True)
    )


def test_those_who_died_together_do_not_come_up_together() -> None:
    """Each has its own pause, and always the same: whoever asks, on whatever machine."""
    pauses = [pause_after_loss(2, ("mail", f"{number}")) for number in range(100)]
    assert len(set(pauses)) == 100
    assert pauses == [
        pause_after_loss(2, ("mail", f"{number}")) for number in range(100)
    ]


def test_pauses_of_those_who_wait_grow_and_never_end() -> None:
    """Up to the cap and its jitter; no two alike."""
    pauses = list(itertools.islice(growing_pauses(SECOND, 8 * SECOND), 200))
    assert all(SECOND <= pause <= 9 * SECOND for pause in pauses)
    assert all(pause >= 8 * SECOND for pause in pauses[4:])
    assert len(set(pauses)) > 100


def test_the_policies_are_values() -> None:
    """Equal when they say the same, and frozen."""
    assert CatchUp.latest() == CatchUp()
    assert Overlap.skip() == Overlap()
    with pytest.raises(AttributeError):
        CatchUp().mode = "all"  # type: ignore[misc, assignment]
