"""Which of several due slots runs: catch-up and overlap, as tables and against a plain model."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.decisions import Choice, choose_missed, choose_overlapped
from tests.kit.records import Gap

from slotwise import (
    CatchUp,
    DistributedJob,
    Every,
    FixedDelay,
    InvalidJob,
    JobContext,
    Overlap,
    Schedule,
)
from slotwise.spi import define

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MINUTELY = Every(MINUTE)


def at(minutes: float) -> datetime:
    return NOON + minutes * MINUTE


def gap(first: float, last: float, reason: str) -> Gap:
    return Gap(
        first=at(first), last=at(last), count=int(last - first) + 1, reason=reason
    )


#: Slots at noon and each minute after it were missed; the time is 12:05:30.
NOW = at(5.5)


@pytest.mark.parametrize(
    ("catch_up", "within", "chosen"),
    [
        pytest.param(
            CatchUp.latest(),
            None,
            Choice(
                slot=at(5),
                watermark=at(5),
                gaps=(gap(0, 4, "collapsed"),),
                collapsed=5,
            ),
            id="latest",
        ),
        pytest.param(
            CatchUp.latest(),
            timedelta(seconds=10),
            Choice(slot=None, watermark=at(5), gaps=(gap(0, 5, "late"),)),
            id="latest, but all of them are too late",
        ),
        pytest.param(
            CatchUp.none(),
            None,
            Choice(slot=at(5), watermark=at(5), gaps=(gap(0, 4, "late"),)),
            id="none, the newest within its grace",
        ),
        pytest.param(
            CatchUp.none(grace="29s"),
            None,
            Choice(slot=None, watermark=at(5), gaps=(gap(0, 5, "late"),)),
            id="none, out of its grace",
        ),
        pytest.param(
            CatchUp.first(),
            None,
            Choice(
                slot=at(0),
                watermark=at(5),
                gaps=(gap(1, 5, "collapsed"),),
                collapsed=5,
            ),
            id="first",
        ),
        pytest.param(
            CatchUp.first(),
            3 * MINUTE,
            Choice(
                slot=at(3),
                watermark=at(5),
                gaps=(gap(0, 2, "late"), gap(4, 5, "collapsed")),
                collapsed=2,
            ),
            id="first that is not too late",
        ),
        pytest.param(
            CatchUp.all(),
            None,
            Choice(slot=at(0), watermark=at(0), until=at(5)),
            id="all",
        ),
        pytest.param(
            CatchUp.all(max=2),
            None,
            Choice(
                slot=at(4),
                watermark=at(4),
                gaps=(gap(0, 3, "collapsed"),),
                until=at(5),
            ),
            id="all, the newest two",
        ),
        pytest.param(
            CatchUp.all(window="3m"),
            None,
            Choice(
                slot=at(3), watermark=at(3), gaps=(gap(0, 2, "late"),), until=at(5)
            ),
            id="all of three minutes",
        ),
        pytest.param(
            CatchUp.all(max=1, window="3m"),
            None,
            Choice(
                slot=at(5),
                watermark=at(5),
                gaps=(gap(0, 2, "late"), gap(3, 4, "collapsed")),
                until=at(5),
            ),
            id="all within two limits",
        ),
    ],
)
def test_which_missed_slot_runs(
    catch_up: CatchUp, within: timedelta | None, chosen: Choice
) -> None:
    """Six slots were missed; what runs, what does not, and why."""
    assert choose_missed(catch_up, within, MINUTELY, at(0), NOW) == chosen


@pytest.mark.parametrize(
    "catch_up",
    [CatchUp.none(), CatchUp.latest(), CatchUp.first(), CatchUp.all()],
    ids=str,
)
def test_a_slot_on_time_simply_runs(catch_up: CatchUp) -> None:
    """Whatever the policy, nothing was missed."""
    chosen = choose_missed(catch_up, None, MINUTELY, at(5), NOW)
    assert (chosen.slot, chosen.watermark, chosen.gaps, chosen.collapsed) == (
        at(5),
        at(5),
        (),
        0,
    )


@pytest.mark.parametrize(
    ("overlap", "chosen"),
    [
        pytest.param(
            Overlap.skip(),
            Choice(slot=None, watermark=at(5), gaps=(gap(1, 5, "overlap"),)),
            id="skip",
        ),
        pytest.param(
            Overlap.queue(),
            Choice(slot=at(5), watermark=at(4), gaps=(gap(1, 4, "overlap"),)),
            id="queue",
        ),
        pytest.param(
            Overlap.queue(3),
            Choice(slot=at(3), watermark=at(2), gaps=(gap(1, 2, "overlap"),)),
            id="queue of three",
        ),
        pytest.param(
            Overlap.queue(9), Choice(slot=at(1), watermark=at(0)), id="queue with room"
        ),
        pytest.param(
            Overlap.queue_all(), Choice(slot=at(1), watermark=at(0)), id="queue_all"
        ),
    ],
)
def test_what_becomes_of_slots_that_came_due_during_a_run(
    overlap: Overlap, chosen: Choice
) -> None:
    """The slot of noon was held until 12:05:30."""
    assert choose_overlapped(overlap, MINUTELY, at(0), NOW) == chosen


@pytest.mark.parametrize("schedule", [MINUTELY, FixedDelay("1s")], ids=str)
def test_nothing_overlaps_what_ended_in_time(schedule: Schedule) -> None:
    """And nothing ever overlaps a fixed delay."""
    held_until = at(0.5) if schedule is MINUTELY else NOW
    assert choose_overlapped(
        Overlap.queue_all(), schedule, at(0), held_until
    ) == Choice(slot=None, watermark=at(0))


policies = st.one_of(
    st.just(CatchUp.latest()),
    st.just(CatchUp.first()),
    st.builds(
        CatchUp.none,
        grace=st.integers(0, 600).map(lambda seconds: timedelta(seconds=seconds)),
    ),
    st.builds(
        CatchUp.all,
        max=st.none() | st.integers(1, 12),
        window=st.none() | st.integers(1, 20).map(lambda minutes: minutes * MINUTE),
    ),
)


@given(
    catch_up=policies,
    within=st.none()
    | st.integers(1, 1200).map(lambda seconds: timedelta(seconds=seconds)),
    every=st.integers(1, 300),
    late=st.integers(0, 3000),
)
def test_every_missed_slot_is_in_one_place(
    catch_up: CatchUp, within: timedelta | None, every: int, late: int
) -> None:
    """Run now, kept to run later, or in exactly one gap whose count is true; none is lost, none
    stands twice.
    """
    schedule = Every(timedelta(seconds=every))
    oldest = schedule.next_after(NOON)
    assert oldest is not None
    now = oldest + timedelta(seconds=late)
    chosen = choose_missed(catch_up, within, schedule, oldest, now)
    missed = [oldest, *schedule.slots(oldest, now)]
    placed = [
        slot for one in chosen.gaps for slot in missed if one.first <= slot <= one.last
    ]
    assert [one.count for one in chosen.gaps] == [
        sum(one.first <= slot <= one.last for slot in missed) for one in chosen.gaps
    ]
    if chosen.slot is not None:
        placed.append(chosen.slot)
        assert within is None or now - chosen.slot <= within
    later = [slot for slot in missed if slot > chosen.watermark]
    assert sorted([*placed, *later]) == missed
    assert not later or (catch_up.mode == "all" and chosen.until == missed[-1])


class Settlement(DistributedJob):
    name = "settlement"
    schedule = MINUTELY

    def __init__(self, **policies: Any) -> None:
        self.__dict__.update(policies)

    def execute(self, ctx: JobContext) -> None:
        pass


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: CatchUp.all(max=0), "CatchUp.all.max=0"),
        (lambda: CatchUp.none(grace="soon"), "grace='soon'"),
        (lambda: Overlap.queue(True), "Overlap.queue.max=True"),
        (
            lambda: define(Settlement(catch_up=CatchUp.all(pace="1m"))),
            "never catches up",
        ),
        (
            lambda: define(
                Settlement(schedule=FixedDelay("1m"), catch_up=CatchUp.all())
            ),
            "misses one slot at most",
        ),
        (lambda: define(Settlement(start_within="0s")), "start_within"),
        (
            lambda: define(Settlement(catch_up="all")),
            "catch_up is 'all', expected CatchUp; write CatchUp",
        ),
    ],
    ids=["max", "grace", "queue", "pace", "fixed delay", "start_within", "a text"],
)
def test_policies_that_make_no_sense_are_refused(make: Any, said: str) -> None:
    """With the place and the value."""
    with pytest.raises(InvalidJob, match=said):
        make()
