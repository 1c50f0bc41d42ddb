"""A claim with marks: it leaves what lies behind them, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from tests.kit.ports import FIRST, LAST, Range
from tests.store.bench import LEASE, Bench, at

SECOND = timedelta(seconds=1)


def claim(
    bench: Bench, ranges: Sequence[Range] | None, *names: str, limit: int = 100
) -> list[str]:
    """The ids, in their order."""
    found = bench.store.claims.claim_tasks(
        "host:1:a", limit, lease=LEASE, names=names or ("mail",), ranges=ranges
    )
    return [one.row.task_instance for one in found]


def around(name: str, rank: int, since: datetime | None) -> list[Range]:
    """One queue is known."""
    return [
        Range(name, FIRST, rank - 1, None),
        Range(name, rank, rank, since),
        Range(name, rank + 1, LAST, None),
    ]


def fill(bench: Bench) -> None:
    for number in range(5):
        bench.client.schedule("mail", id=str(number), at=at(number / 10))
    bench.tick()


def test_from_the_mark_on(bench: Bench) -> None:
    """The row at the mark is looked at, those behind it are left, and found by a claim without
    marks.
    """
    fill(bench)
    assert claim(bench, around("mail", -50, at(0.2))) == ["2", "3", "4"]
    assert claim(bench, around("mail", -50, at(0.2))) == []
    assert claim(bench, None) == ["0", "1"]


def test_a_mark_that_cannot_be_told(bench: Bench) -> None:
    """From the beginning, for that queue."""
    fill(bench)
    assert claim(bench, around("mail", -50, None)) == ["0", "1", "2", "3", "4"]


def test_other_priorities_have_no_part_in_it(bench: Bench) -> None:
    """Rows of priorities that are not known are found behind the marks of others, in their
    turn.
    """
    fill(bench)
    bench.client.schedule("mail", id="urgent", at=at(0), priority=90)
    bench.client.schedule("mail", id="idle", at=at(0), priority=10)
    assert claim(bench, around("mail", -50, at(0.4))) == ["urgent", "4", "idle"]


def test_each_queue_has_its_own(bench: Bench) -> None:
    """By task and by priority; with a row whose priority was never written."""
    fill(bench)
    bench.change("mail", "3", priority=None)
    for number in range(3):
        bench.client.schedule("once", id=f"once-{number}", at=at(number / 10))
    ranges = [*around("once", -50, at(0.1)), *around("mail", -50, at(0.3))]
    assert claim(bench, ranges, "once", "mail", limit=3) == ["once-1", "once-2", "3"]
    assert claim(bench, ranges, "once", "mail") == ["4"]


def test_nothing_else_is_different(bench: Bench) -> None:
    """What is not due, paused, dead, held or of others is left, and the limit holds."""
    fill(bench)
    bench.client.schedule("mail", id="later", delay="1h")
    bench.client.schedule("strange", id="strange", at=at(0.5))
    bench.change("mail", "4", state="paused")
    bench.change("mail", "2", lost_count=1)
    assert claim(bench, around("mail", -50, at(0)), limit=2) == ["0", "1"]
    assert claim(bench, around("mail", -50, at(0))) == ["3"]


def test_a_pause_of_all_holds(bench: Bench) -> None:
    """As for any claim."""
    fill(bench)
    with bench.store.transaction() as connection:
        connection.execute(bench.tables.meta.insert().values(key="paused", value="x"))
    assert claim(bench, around("mail", -50, at(0))) == []
