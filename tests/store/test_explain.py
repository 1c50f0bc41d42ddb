"""The hot statements stay on their indexes: on 200,000 rows that nobody has ever analysed, for
small and full batches, with plans made for the values at hand and with generic ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.databases import Databases
from tests.kit.ports import FIRST, LAST, ClaimRequest, Range
from tests.kit.records import HandedBack, Succeeded
from tests.kit.store import BatchSize, Planner, Store
from tests.store.bench import LEASE, a_job, a_task, claim_due
from tests.store.explained import Analysed, Explained, Sent, analysing, nodes, scanned

from slotwise import Client, Every
from slotwise.spi import Claim
from slotwise.testing import ManualClock

ROWS = 200_000
#: Of the tables whose reads are counted.
GROWN = 100_000
JOBS = [a_job(f"job-{number:03}", Every("1d")) for number in range(600)]
TASKS = [a_task(f"task-{number:03}") for number in range(200)]
BATCHES = [1, 100, 500]
SIZES = [
    pytest.param(size, marks=pytest.mark.extended if size != 100 else ())
    for size in BATCHES
]
MARK = datetime(2020, 1, 1, tzinfo=UTC)

FILL = """
ALTER TABLE scheduled_tasks SET (autovacuum_enabled = false);
ALTER TABLE scheduled_slots SET (autovacuum_enabled = false);
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, slot, picked, version, created_version)
SELECT 'task-' || lpad((n % 200)::text, 3, '0'), n::text, due, due, false, 1000, 1000
FROM (SELECT n, now() + (n - 3000) * interval '1 minute' AS due FROM generate_series(1, {rows}) AS n) AS rows;
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, slot, next_slot, schedule, kind, picked, version)
SELECT 'job-' || lpad((n - 1)::text, 3, '0'), 'recurring', '2020-01-01Z', '2020-01-01Z', '8000-01-01Z',
       '{schedule}', 'plan', false, 1000
FROM generate_series(1, 600) AS n;
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, finished, token)
SELECT 'job-' || lpad((n % 600)::text, 3, '0'), 'recurring', timestamptz '2010-01-01Z' + n * interval '1 minute',
       'succeeded', now(), 999
FROM generate_series(1, {rows}) AS n;
"""

#: Rows of others, which are held, lost, dead or of instances; gaps; and what the planner knows of
#: all of them.
GROW = """
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, slot, next_slot, schedule, kind, picked,
                             picked_by, version, state, lost_count, plan_instance)
SELECT 'other', n::text, due, due, due + interval '1 day', '{schedule}',
       CASE WHEN n % 50 = 0 THEN 'detached' ELSE 'plan' END, n <= 500, CASE WHEN n <= 500 THEN 'host:2:b' END, 1000,
       CASE WHEN n % 33 = 0 THEN 'dead' END, (n % 40 = 0 AND n <= 4000)::integer,
       CASE WHEN n % 50 = 0 THEN 'recurring' END
FROM (SELECT n, now() + n * interval '1 minute' AS due FROM generate_series(1, {rows} / 10) AS n) AS rows;
INSERT INTO scheduled_gaps (task_name, task_instance, first_slot, last_slot, count, reason, created)
SELECT 'job-' || lpad((n % 600)::text, 3, '0'), 'recurring', at, at, 2, 'late', at
FROM (SELECT n, timestamptz '2010-01-01Z' + n * interval '1 minute' AS at FROM generate_series(1, {rows}) AS n) AS rows;
VACUUM ANALYZE scheduled_tasks; VACUUM ANALYZE scheduled_slots; VACUUM ANALYZE scheduled_gaps
"""

OF_TODAY = """
UPDATE scheduled_tasks SET slot = date_trunc('day', now(), 'UTC'), next_slot = date_trunc('day', now(), 'UTC') + '1 day'
WHERE schedule IS NOT NULL AND task_name <> 'other'
"""

KEEP = "CREATE TABLE jobs_before AS SELECT * FROM scheduled_tasks WHERE task_name LIKE 'job-%'"

#: The jobs as they were.
GIVE_BACK = """
UPDATE scheduled_tasks SET picked = false, picked_by = NULL WHERE picked AND task_name LIKE 'task-%';
SELECT set_config('slotwise.delete', 'on', true);
DELETE FROM scheduled_tasks WHERE task_name LIKE 'job-%';
INSERT INTO scheduled_tasks SELECT * FROM jobs_before;
DELETE FROM scheduled_controls;
DELETE FROM scheduled_slots WHERE slot >= '2020-01-01Z';
DELETE FROM scheduled_gaps WHERE first_slot >= '2020-01-01Z';
"""


class Whole(BatchSize):
    """However long the late slots of a claim take, the next one takes as many as it was asked
    for.
    """

    def learn(self, taken: int, late: int, took: float, lease: timedelta) -> None:
        """Forget it."""


class Stage(Explained):
    """A large, never analysed database; each verb is really run, and its statements are explained
    afterwards.
    """

    def __init__(self, url: str, rows: int = ROWS) -> None:
        super().__init__(url, [*JOBS, *TASKS])
        self.jobs = [found.name for found in JOBS]
        self.tasks = [found.name for found in TASKS]
        self.store.claims._batch_size = Whole(BATCHES[-1])
        self.store.claims._batch_size.size = BATCHES[-1]
        self.driver.execute(FILL.format(rows=rows, schedule=Every("1d")).encode())
        self.driver.execute(KEEP)
        for table in ("tasks", "slots", "gaps"):
            # Its locks make a settlement take the longer path, and it changes what plans know.
            off = "SET (autovacuum_enabled = off)"
            self.driver.execute(f"ALTER TABLE scheduled_{table} {off}".encode())

    def claim(self, names: list[str], limit: int) -> list[Claim]:
        _, claims = claim_due(self.store, "host:1:a", limit, lease=LEASE, names=names)
        assert len(claims) == limit
        return claims

    def give_back(self) -> None:
        """The jobs as they were, for the next test."""
        self.driver.execute(GIVE_BACK)


@pytest.fixture(scope="module")
def large(databases: Databases) -> Iterator[Stage]:
    with databases.provisioned() as url:
        stage = Stage(url)
        yield stage
        stage.close()


@pytest.fixture
def stage(large: Stage) -> Iterator[Stage]:
    yield large
    large.give_back()


def _claim_jobs(stage: Stage, size: int) -> list[Sent]:
    return stage.sent(lambda: stage.claim(stage.jobs, size))


def _claim_tasks(stage: Stage, size: int) -> list[Sent]:
    return stage.sent(lambda: stage.claim(stage.tasks, size))


def _claim_anything(stage: Stage, size: int) -> list[Sent]:
    return stage.sent(lambda: stage.claim(sorted([*stage.jobs, *stage.tasks]), size))


def _claim_one_kind(stage: Stage, size: int) -> list[Sent]:
    return stage.sent(
        lambda: claim_due(
            stage.store, "host:1:a", size, lease=LEASE, names=["task-007"]
        )
    )


def _advance_jobs(stage: Stage, size: int) -> list[Sent]:
    stage.driver.execute(OF_TODAY)
    claims = stage.claim(stage.jobs, size)
    sent = stage.sent(
        lambda: stage.store.settlements.settle(
            [(claim, Succeeded()) for claim in claims]
        )
    )
    assert len(sent) == 1
    return sent


def _claim_from_marks(stage: Stage, size: int) -> list[Sent]:
    """Two queues of each task are known, and what lies around them is not."""
    ranges = [
        Range(name, first, last, since)
        for name in stage.tasks[:20]
        for first, last, since in (
            (FIRST, -51, None),
            (-50, -50, MARK),
            (-49, -11, None),
            (-10, -10, MARK),
            (-9, LAST, None),
        )
    ]
    names = stage.tasks[:20]
    return stage.sent(
        lambda: stage.store.claims.claim_tasks(
            "host:1:a", size, lease=LEASE, names=names, ranges=ranges
        )
    )


def _settle_jobs(stage: Stage, size: int) -> list[Sent]:
    claims = stage.claim(stage.jobs, size)
    return stage.sent(
        lambda: stage.store.settlements.settle(
            [(claim, Succeeded()) for claim in claims]
        )
    )


def _finish_tasks(stage: Stage, size: int) -> list[Sent]:
    claims = stage.claim(stage.tasks, size)
    return stage.sent(lambda: stage.store.settlements.finish(claims))


def _settle_tasks(stage: Stage, size: int) -> list[Sent]:
    claims = stage.claim(stage.tasks, size)
    return stage.sent(
        lambda: stage.store.settlements.settle(
            [(claim, Succeeded()) for claim in claims]
        )
    )


def _hand_back(stage: Stage, size: int) -> list[Sent]:
    claims = stage.claim(stage.jobs, size)
    return stage.sent(
        lambda: stage.store.settlements.settle(
            [(claim, HandedBack()) for claim in claims]
        )
    )


def _take_over(stage: Stage, size: int) -> list[Sent]:
    claims = stage.claim(stage.jobs, size)
    return stage.sent(
        lambda: stage.store.settlements.take_over([claim.row for claim in claims])
    )


def _beat(stage: Stage, size: int) -> list[Sent]:
    claims = stage.claim(stage.jobs, size)
    stage.store.settlements.settle(
        [(claims[0], HandedBack())]
    )  # one is lost, so that it is read again
    return stage.sent(lambda: stage.store.held.beat("host:1:a", claims))


def _look(stage: Stage, size: int) -> list[Sent]:
    stage.claim(stage.jobs, size)
    return stage.sent(
        lambda: stage.store.held.silent_rows([*stage.jobs, *stage.tasks])
    )


def _look_for_some(stage: Stage, size: int) -> list[Sent]:
    return stage.sent(lambda: stage.store.held.silent_rows(stage.tasks[:size]))


def _next_due(stage: Stage, size: int) -> list[Sent]:
    return stage.sent(lambda: stage.store.due.next_due(stage.tasks[:size]))


def _next_due_of_all(stage: Stage, size: int) -> list[Sent]:
    return stage.sent(lambda: stage.store.due.next_due([*stage.jobs, *stage.tasks]))


def _claim_within_limits(stage: Stage, size: int) -> list[Sent]:
    most = dict.fromkeys(stage.tasks[:20], 5)
    order = ClaimRequest("host:1:a", stage.tasks, size, LEASE, lost=0, most=most)

    def play() -> None:
        with stage.store.transaction() as connection:
            stage.store.dialect.claim_tasks(connection, order)

    return stage.sent(play)


def _held_by(stage: Stage, size: int) -> list[Sent]:
    stage.claim(stage.jobs, size)
    return stage.sent(lambda: stage.store.held.held_by("host:1:a"))


Verb = Callable[[Stage, int], list[Sent]]

VERBS: list[Verb] = [
    _claim_jobs,
    _claim_tasks,
    _claim_anything,
    _claim_one_kind,
    _claim_from_marks,
    _settle_jobs,
    _advance_jobs,
    _settle_tasks,
    _finish_tasks,
    _hand_back,
    _take_over,
    _beat,
    _look,
    _look_for_some,
    _next_due,
    _next_due_of_all,
    _claim_within_limits,
    _held_by,
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__.strip("_"))
def test_no_large_table_is_read_from_end_to_end(
    stage: Stage, verb: Callable[[Stage, int], list[Sent]], size: int
) -> None:
    """Claim, settlement, heartbeat, reaper: by index or by place, whatever the planner knows of
    the table.
    """
    statements = verb(stage, size)
    assert statements
    for mode in ("custom", "generic"):
        for sent in statements:
            plan = stage.plan(sent, mode)
            assert not scanned(plan), (
                f"{mode} plan of\n{sent[0]}\n{json.dumps(plan, indent=1)}"
            )


def test_a_late_claim_stays_on_its_indexes(stage: Stage) -> None:
    """The longer path too: ledger, gaps, and the row itself are found by their keys."""
    stage.driver.execute(
        "UPDATE scheduled_tasks SET slot = '2026-01-01Z', next_slot = "
        "'2026-01-02Z' WHERE task_name = 'job-000'"
    )
    statements = stage.sent(
        lambda: claim_due(stage.store, "host:1:a", 1, lease=LEASE, names=["job-000"])
    )
    assert len(statements) > 3
    for sent in statements:
        for mode in ("custom", "generic"):
            plan = stage.plan(sent, mode)
            assert not scanned(plan), (
                f"{mode} plan of\n{sent[0]}\n{json.dumps(plan, indent=1)}"
            )


def test_the_next_slot_of_a_backfill_is_found_beside_its_plan(stage: Stage) -> None:
    """The end of one lets the next one go: which of them run is asked of the few rows beside that
    job's, not of all.
    """
    operations = Client(lambda: stage.store).operations
    found = operations.backfill(
        "job-007",
        datetime(2019, 12, 1, tzinfo=UTC),
        MARK - timedelta(days=1),
        pace=timedelta(seconds=1),
    )
    assert len(found.slots) > 2
    (claim,) = [
        one for one in stage.claim(["job-007"], 2) if one.row.origin == "backfill"
    ]
    statements = stage.sent(
        lambda: stage.store.settlements.settle([(claim, Succeeded())])
    )
    assert sum("scheduled_controls" in statement for statement, _ in statements) > 1
    for sent in statements:
        for mode in ("custom", "generic"):
            plan = stage.plan(sent, mode)
            assert not scanned(plan), (
                f"{mode} plan of\n{sent[0]}\n{json.dumps(plan, indent=1)}"
            )


@pytest.mark.parametrize("mode", ["custom", "generic"])
def test_a_start_finds_its_jobs_by_their_keys(stage: Stage, mode: str) -> None:
    """Rows, and of each the newest slots of the ledger, however long that is."""
    (look,) = [
        sent
        for sent in stage.sent(lambda: Planner(stage.store).plan(JOBS[:20]))
        if "orphaned" in sent[0] and "FOR UPDATE" in sent[0]
    ]
    plan = stage.plan(look, mode)
    assert not scanned(plan), json.dumps(plan, indent=1)


@pytest.mark.parametrize("mode", ["custom", "generic"])
@pytest.mark.parametrize(
    "play",
    [
        lambda client: client.list(state="dead"),
        lambda client: client.list("task-007", state="paused"),
        lambda client: client.retry("task-007"),
        lambda client: client.cancel_all("task-007", state="blocked"),
    ],
    ids=["list", "list of one", "retry", "cancel"],
)
def test_what_is_parked_is_found_among_many_that_wait(
    stage: Stage, play: Callable[[Client], Any], mode: str
) -> None:
    """Few rows are dead, paused or blocked: they have an index, and no row that waits is read."""
    client = Client(lambda: stage.store)
    read = [
        sent
        for sent in stage.sent(lambda: play(client))
        if "scheduled_tasks" in sent[0]
    ]
    assert read
    for sent in read:
        plan = stage.plan(sent, mode)
        found = {node["Index Name"] for node in nodes(plan) if "Index Name" in node}
        assert "scheduled_tasks_parked" in found, (
            f"{mode} plan of\n{sent[0]}\n{json.dumps(plan, indent=1)}"
        )
        assert not scanned(plan)


@pytest.mark.extended
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "verb",
    [
        _claim_jobs,
        _claim_tasks,
        _claim_anything,
        _claim_one_kind,
        _claim_from_marks,
        _settle_jobs,
        _advance_jobs,
        _settle_tasks,
        _finish_tasks,
        _hand_back,
        _take_over,
    ],
    ids=lambda verb: verb.__name__.strip("_"),
)
def test_what_is_written_is_found_by_its_place(
    stage: Stage, verb: Verb, size: int
) -> None:
    """No join and no index to choose: the rows were locked a moment ago, and their places are
    known.
    """
    batches = [sent for sent in verb(stage, size) if "ctid = ANY" in sent[0]]
    assert batches
    for mode in ("custom", "generic"):
        for sent in batches:
            writes = [
                node
                for node in nodes(stage.plan(sent, mode))
                if node.get("Operation") in ("Update", "Delete")
            ]
            assert writes
            for written in writes:
                found = [
                    node["Node Type"]
                    for node in nodes(written)
                    if node.get("Alias") == written["Alias"]
                ]
                assert found[1:] == ["Tid Scan"], (
                    f"{mode} plan of\n{sent[0]}\n{json.dumps(written, indent=1)}"
                )


def test_the_check_itself_sees_a_scan(stage: Stage) -> None:
    """A volatile now, and a condition that no index knows: both are found out."""
    for statement in (
        "SELECT count(*) FROM scheduled_tasks WHERE execution_time <= clock_timestamp()",
        "SELECT count(*) FROM scheduled_slots WHERE token = 7",
    ):
        for mode in ("custom", "generic"):
            assert scanned(stage.plan((statement, {}), mode))


def test_rows_of_the_future_cost_a_poll_nothing(stage: Stage) -> None:
    """A claim that finds nothing due reads some pages for each name (more where rows died, whom
    nobody vacuums here), however much waits for later: that would be thousands.
    """
    early = Store(
        stage.database,
        stage.store.definitions,
        clock=ManualClock(datetime(2000, 1, 1, tzinfo=UTC)),
    )
    names = stage.tasks[:3]
    slots, tasks = stage.sent(
        lambda: claim_due(early, "host:1:a", 100, lease=LEASE, names=names)
    )
    for (statement, parameters), pages in ((slots, 60), (tasks, 60 * len(names))):
        found = stage.driver.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters
        ).fetchone()
        assert found is not None
        plan = found[0][0]["Plan"]
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < pages


@pytest.mark.parametrize("mode", ["custom", "generic"])
def test_a_mark_bounds_the_look_at_its_queue(stage: Stage, mode: str) -> None:
    """It is a bound of the index, not a condition on rows that are read: dead entries before it
    cost nothing.
    """
    (sent,) = _claim_from_marks(stage, 100)
    plan = stage.plan(sent, mode)
    (found,) = [node for node in nodes(plan) if node.get("Alias") == "w"]
    assert found["Index Name"] == "scheduled_tasks_queue"
    assert all(
        word in found["Index Cond"]
        for word in ("task_name", "priority", "since", "statement_timestamp")
    )


@pytest.mark.parametrize("mode", ["custom", "generic"])
def test_one_instance_and_its_slots_are_found_among_many(
    stage: Stage, mode: str
) -> None:
    """By the row's key and by an index of the rows beside one: an operation to one of many reads none
    of the others.
    """
    operations = Client(lambda: stage.store).operations
    looks = [
        sent
        for sent in stage.sent(lambda: operations.trigger("job-007", dry_run=True))
        if " OR " in sent[0]
    ]
    assert len(looks) == 2  # whom to lock, and whether the slot is free
    for look in looks:
        plan = stage.plan(look, mode)
        found = {
            node["Index Name"]: node["Index Cond"]
            for node in nodes(plan)
            if "Index Name" in node
        }
        assert "task_instance =" in found["scheduled_tasks_pkey"], json.dumps(
            plan, indent=1
        )
        assert "plan_instance =" in found["scheduled_tasks_beside"], json.dumps(
            plan, indent=1
        )
        assert set(found) <= {
            "scheduled_tasks_pkey",
            "scheduled_tasks_beside",
            "scheduled_slots_pkey",
        }


# -- what is read, on tables that have grown ------------------------------------------------------


class Grown(Stage):
    """Large tables that the planner knows; of what a verb sends, it is counted what each statement
    reads.
    """

    def __init__(self, url: str, rows: int) -> None:
        super().__init__(url, rows)
        for statement in GROW.format(rows=rows, schedule=Every("1d")).split(";"):
            self.driver.execute(statement.encode())
        self.analysed: list[Analysed] = []

    def sent(self, play: Callable[[], Any]) -> list[Sent]:
        with analysing(self.database) as found:
            sent = super().sent(play)
        self.analysed += found
        return sent

    def give_back(self) -> None:
        """Without the dead entries that a test has left: how many there are depends on which tests
        ran before.
        """
        super().give_back()
        for table in ("scheduled_tasks", "scheduled_slots", "scheduled_gaps"):
            self.driver.execute(f"VACUUM {table}".encode())


@pytest.fixture(
    scope="module", params=[GROWN, pytest.param(1_000_000, marks=pytest.mark.slow)]
)
def grown_tables(
    databases: Databases, request: pytest.FixtureRequest
) -> Iterator[Grown]:
    with databases.provisioned() as url:
        stage = Grown(url, request.param)
        yield stage
        stage.close()


@pytest.fixture
def grown(grown_tables: Grown) -> Iterator[Grown]:
    grown_tables.analysed = []
    yield grown_tables
    grown_tables.give_back()


def _claim_late(stage: Stage, size: int) -> list[Sent]:
    stage.driver.execute(
        "UPDATE scheduled_tasks SET next_slot = slot + interval '1 day' WHERE task_name < 'job-200'"
    )
    return _claim_jobs(stage, size)


def _claim_late_ones(stage: Stage, size: int) -> list[Sent]:
    """Whose decisions differ: the ledger knows newer slots of them."""
    stage.driver.execute(
        "UPDATE scheduled_tasks SET next_slot = slot + interval '1 day' WHERE "
        "task_name < 'job-200';"
        "INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, finished, token) "
        "SELECT task_name, task_instance, '2020-02-01Z', 'succeeded', now(), 999 "
        "FROM scheduled_tasks "
        "WHERE task_name < 'job-200'"
    )
    return _claim_jobs(stage, size)


def _mark(stage: Stage, size: int) -> list[Sent]:
    claims = stage.claim(stage.jobs, size)
    return stage.sent(
        lambda: [stage.store.held.mark_running(claim) for claim in claims[:3]]
    )


def _mark_tasks(stage: Stage, size: int) -> list[Sent]:
    claims = stage.claim(stage.tasks, size)
    return stage.sent(
        lambda: [stage.store.held.mark_running(claim) for claim in claims[:3]]
    )


#: For a batch of 100, the most rows that one statement reads, whether it takes them or throws them
#: away. 600 jobs are due, some 600 rows held, and 90 rows of others lost. Left out is the look of
#: a worker without jobs: it reads the rows of all jobs.
READS: list[tuple[Verb, int]] = [
    (_claim_jobs, 600),
    (_claim_tasks, 600),
    (_claim_anything, 600),
    (_claim_one_kind, 600),
    (_claim_from_marks, 200),
    (_claim_late, 600),
    (_claim_late_ones, 600),
    (_settle_jobs, 300),
    (_advance_jobs, 400),
    (_settle_tasks, 200),  # by key, then by place
    (_finish_tasks, 200),
    (_hand_back, 200),
    (_take_over, 300),
    (_beat, 200),
    (_mark, 1),
    (_mark_tasks, 2),
    (_look, 600),
    (_look_for_some, 500),
    (_held_by, 100),
    (_next_due_of_all, 320),
    (_claim_within_limits, 3000),
]

#: The most pages that one statement touches: 45 for each row of the batch, which is locked,
#: written, and entered into up to nine indexes.
PAGES = 4500


@pytest.mark.extended
@pytest.mark.parametrize(
    ("verb", "rows"), READS, ids=[verb.__name__.strip("_") for verb, _ in READS]
)
def test_what_is_read_does_not_grow_with_the_tables(
    grown: Grown, verb: Verb, rows: int
) -> None:
    """Each statement reads the rows of its batch, and those that are due or held: not those that
    wait, nor history.
    """
    assert verb(grown, 100)
    assert grown.analysed
    for found in grown.analysed:
        shown = f"{found.mode}:\n{found.statement}\n{json.dumps(found.plan, indent=1)}"
        assert found.rows <= rows, shown
        assert found.pages <= PAGES, shown
