"""A page of a long ledger is read from an index that has it in order: of what comes before and
after it, nothing is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.databases import Databases
from tests.kit.ports import Transaction
from tests.kit.store import end_orphans, trigger
from tests.store.explained import Explained

from slotwise.inspect import Inspection
from slotwise.spi import Key

#: 60,000 slots of 600 of 10,000 instances, 40,000 of the job itself, and as many ranges of its
#: slots that did not run.
FILL = """
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, finished, token)
SELECT 'feed', 'customer-' || n % 600, timestamptz '2026-01-01Z' + n * interval '1 second', 'succeeded', now(), 9
FROM generate_series(1, 60000) AS n;
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, finished, token)
SELECT 'feed', 'recurring', timestamptz '2026-01-01Z' + n * interval '2 seconds', 'succeeded', now(), 9
FROM generate_series(1, 40000) AS n;
INSERT INTO scheduled_gaps (task_name, task_instance, first_slot, last_slot, count, reason, created)
SELECT 'feed', 'recurring', first, first + interval '3 seconds', 2, 'overlap', now()
FROM (SELECT timestamptz '2025-01-01Z' + n * interval '10 seconds' AS first
      FROM generate_series(1, 40000) AS n) AS gaps;
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, slot, schedule, kind, picked, version)
SELECT 'feed', 'customer-' || n, '2027-01-01Z', '2027-01-01Z', 'EVERY|1h|1970-01-01T00:00:00Z', 'plan', false, 9
FROM generate_series(1, 10000) AS n;
ANALYZE;
"""
DEEP = datetime(2026, 1, 1, 8, tzinfo=UTC)
IN_GAPS = datetime(2025, 1, 3, tzinfo=UTC)

Look = Callable[[Inspection], Any]


@pytest.fixture(scope="module")
def long(databases: Databases) -> Iterator[Explained]:
    with databases.provisioned() as url:
        stage = Explained(url, [])
        stage.driver.execute(FILL)
        yield stage
        stage.close()


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(
            lambda ledger: ledger.slots("feed", limit=20), id="of all instances"
        ),
        pytest.param(
            lambda ledger: list(ledger.iter_slots("feed", limit=20, ended=True)),
            id="that have ended",
        ),
        pytest.param(
            lambda ledger: ledger.slots("feed", id="customer-7", limit=20),
            id="of one instance",
        ),
        pytest.param(
            lambda ledger: ledger.slots("feed", limit=20, before=DEEP), id="far down"
        ),
        pytest.param(
            lambda ledger: ledger.slots("feed", limit=20, before=IN_GAPS),
            id="far down, ranges",
        ),
        pytest.param(lambda ledger: ledger.pending("feed", limit=20), id="that stand"),
    ],
)
def test_a_page_reads_itself_and_nothing_else(long: Explained, look: Look) -> None:
    """A few blocks for twenty lines, of a hundred thousand."""
    found: list[Any] = []
    sent = long.sent(lambda: found.extend(look(Inspection(lambda: long.store))))
    assert len(found) == 20
    for statement, parameters in sent:
        assert blocks(long, statement, parameters) < 150


def test_a_window_reads_by_the_primary_keys(long: Explained) -> None:
    """A page of instances, of ten thousand: their own slots of an hour, by ranges of the keys."""
    look = Inspection(lambda: long.store)
    start = datetime(2026, 1, 1, 16, tzinfo=UTC)

    def play() -> None:
        found = look.windows(start, start + timedelta(minutes=10), limit=10)
        assert [one.id for one in found][:2] == ["customer-1", "customer-10"]
        assert any(one.actual for one in found)

    for statement, parameters in long.sent(play):
        assert blocks(long, statement, parameters) < 500


def test_what_is_done_to_one_instance_reads_none_of_the_others(
    long: Explained,
) -> None:
    """A trigger, and a look for slots that have lost their row, of which there is one: a few
    blocks each.
    """
    long.driver.execute(
        "UPDATE scheduled_slots SET finished = NULL WHERE task_instance = "
        "'customer-9' AND slot > '2026-01-01 16:30Z'"
    )

    def play() -> None:
        with long.store.transaction() as connection:
            trigger(long.store, connection, "feed", "customer-8")
            end_orphans(
                Transaction(connection, long.store.dialect, DEEP),
                Key("feed", "customer-9"),
            )
            connection.rollback()

    sent = [
        (statement, given)
        for statement, given in long.sent(play)
        if "INSERT" not in statement and "SAVEPOINT" not in statement
    ]
    assert len(sent) > 4
    for statement, parameters in sent:
        assert blocks(long, statement, parameters) < 150


def blocks(long: Explained, statement: str, parameters: dict[str, Any]) -> int:
    """How many a statement reads, which is carried out."""
    row = long.driver.execute(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters
    ).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    print(json.dumps(plan, indent=1))
    found: int = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return found
