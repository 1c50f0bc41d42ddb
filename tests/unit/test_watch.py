"""Death is observed: how a reaper adds up silence, and whom it takes for dead."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.kit.loops import Watch

from slotwise.spi import Key, Row

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEAT = timedelta(seconds=10)
LEASE = 6 * BEAT


def held(
    name: str = "a",
    *,
    version: int = 1,
    beat: datetime | None = NOON,
    lease: timedelta | None = LEASE,
) -> Row:
    return Row(
        task_name=name,
        task_instance="recurring",
        execution_time=NOON,
        version=version,
        picked=True,
        picked_by="host:1:a",
        last_heartbeat=beat,
        lease=lease,
    )


class Reaper:
    """A watch with its two clocks: the database's, and its own, which only ever goes on."""

    def __init__(self) -> None:
        self.watch = Watch(BEAT)
        self.now = NOON
        self.at = 1_000.0

    def dead(
        self, *rows: Row, after: timedelta = BEAT, step: timedelta = timedelta(0)
    ) -> set[Key]:
        """Look again ``after`` so long; ``step`` is what the database's clock was stepped by
        meanwhile.
        """
        self.at += after.total_seconds()
        self.now += after + step
        return {row.key for row in self.watch.dead(rows, self.now, self.at)}

    def looks(
        self, count: int, *rows: Row, after: timedelta = BEAT
    ) -> Iterator[set[Key]]:
        return (self.dead(*rows, after=after) for _ in range(count))


@pytest.fixture
def reaper() -> Reaper:
    return Reaper()


def test_a_silent_claim_is_dead_once_its_lease_has_run_out(reaper: Reaper) -> None:
    """Silent for two intervals or more, and expired by the database's time: dead at the lease's
    end, not before.
    """
    verdicts = list(reaper.looks(6, held()))
    assert verdicts[:5] == [set()] * 5
    assert verdicts[5] == {held().key}


def test_a_claim_that_beats_is_never_dead(reaper: Reaper) -> None:
    """A change of the heartbeat is a sign of life, whatever the clocks say."""
    for number in range(100):
        beat = NOON + number * timedelta(
            microseconds=1
        )  # a database clock that hardly moves
        assert reaper.dead(held(beat=beat), step=timedelta(hours=1)) == set()


def test_one_that_stirs_starts_afresh(reaper: Reaper) -> None:
    """The silence before a heartbeat does not count after it."""
    assert set().union(*reaper.looks(5, held())) == set()
    stirred = held(beat=reaper.now)
    assert reaper.dead(stirred) == set()
    verdicts = list(reaper.looks(6, stirred))
    assert verdicts[:4] == [set()] * 4
    assert verdicts[5] == {stirred.key}


def test_a_new_claim_on_the_row_is_another_claim(reaper: Reaper) -> None:
    """The version is part of what is watched: a successor does not inherit the silence."""
    assert set().union(*reaper.looks(5, held(version=1))) == set()
    assert reaper.dead(held(version=2)) == set()
    assert reaper.dead(held(version=2)) == set()


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(days=30)])
def test_a_clock_stepped_on_kills_nobody(reaper: Reaper, step: timedelta) -> None:
    """Expired by the database's time alone is not dead: two intervals of silence must be seen."""
    reaper.dead(held())
    beat = reaper.now
    assert reaper.dead(held(beat=beat), step=step) == set()
    assert (
        reaper.dead(held(beat=beat)) == set()
    )  # still: one interval of silence, and the heartbeat may be under way
    assert reaper.dead(held(beat=reaper.now)) == set()


def test_a_clock_stepped_back_makes_nobody_immortal(reaper: Reaper) -> None:
    """A heartbeat in the future: silent for the whole lease that the claim stores is dead all the
    same.
    """
    verdicts = [
        reaper.dead(held(), step=timedelta(0) if number else -timedelta(hours=1))
        for number in range(7)
    ]
    assert verdicts[:6] == [set()] * 6
    assert verdicts[6] == {held().key}


def test_a_database_that_was_away_kills_nobody(reaper: Reaper) -> None:
    """A gap between two looks counts as one interval at most: nobody could beat meanwhile."""
    reaper.dead(held())
    assert (
        reaper.dead(held(), after=timedelta(hours=1)) == set()
    )  # expired long ago, one interval of silence seen
    assert reaper.dead(held(beat=reaper.now)) == set()


def test_the_first_look_accuses_nobody(reaper: Reaper) -> None:
    """A reaper that has just started has observed nothing yet."""
    assert reaper.dead(held(), after=timedelta(days=365)) == set()
    assert reaper.dead(held()) == set()
    assert reaper.dead(held()) == {held().key}


def test_each_claim_is_measured_by_its_own_lease(reaper: Reaper) -> None:
    """Workers with different settings share the tables: the lease that counts is the one the claim
    stores.
    """
    short, long = held("short", lease=3 * BEAT), held("long", lease=30 * BEAT)
    verdicts = list(reaper.looks(30, short, long))
    assert [short.key in dead for dead in verdicts].index(True) == 2
    assert [long.key in dead for dead in verdicts].index(True) == 29


@pytest.mark.parametrize(
    "row", [held(lease=None), held(beat=None), held(lease=None, beat=None)]
)
def test_a_claim_without_lease_or_heartbeat_does_not_live_for_ever(
    reaper: Reaper, row: Row
) -> None:
    """A row that another program has picked is measured by our own intervals."""
    assert set().union(*reaper.looks(7, row)) == {row.key}


def test_a_row_that_was_let_go_is_forgotten(reaper: Reaper) -> None:
    """Nothing is remembered of rows that are not held any more."""
    assert set().union(*reaper.looks(5, held())) == set()
    reaper.dead()
    assert set().union(*reaper.looks(3, held())) == {
        held().key
    }  # expired, and silent twice since it is held again


@pytest.mark.parametrize("interval", [BEAT / 10, BEAT / 2, BEAT, 2 * BEAT, LEASE])
def test_the_dead_are_taken_within_the_bound(interval: timedelta) -> None:
    """However often a reaper looks: take-over ≤ lease + 2 reaper intervals, and never before the
    lease has run out.
    """
    reaper = Reaper()
    while not (dead := reaper.dead(held(), after=interval)):
        assert reaper.now - NOON <= LEASE + 2 * interval
    assert dead == {held().key}
    assert LEASE <= reaper.now - NOON <= LEASE + 2 * interval
