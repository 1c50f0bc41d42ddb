"""Each condition is made on a real server, and found with its evidence and cure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from tests.databases import Databases, provision
from tests.integration.test_pooler import pgbouncer

from slotwise import Every, JobContext, JobRegistry, Settings, job, task
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.contrib.doctor import Finding, Limits, Severity, examine
from slotwise.contrib.doctor.server import old_snapshots
from slotwise.embedded import EmbeddedPostgres
from slotwise.inspect import DatabaseInfo, SnapshotHolder
from slotwise.operations import Schema

pytestmark = pytest.mark.slow
NOW = timedelta(0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server that keeps prepared transactions and logical slots."""
    settings = {"max_prepared_transactions": "5", "wal_level": "logical"}
    home = Path("/tmp") / f"slotwise-doctor-{tmp_path_factory.getbasetemp().name}"
    with EmbeddedPostgres(
        home, durable=False, temporary=True, settings=settings
    ) as one:
        yield one


@pytest.fixture
def url(server: EmbeddedPostgres) -> Iterator[str]:
    databases = Databases(server, "doctor")
    with databases.empty() as address:
        provision(address)
        yield address
    databases.close()


@pytest.fixture
def sql(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def found(url: str, check: str, limits: Limits | None = None) -> list[Finding]:
    every = examine(Settings(database_url=url), limits or Limits())
    assert [one for one in every if one.check == "examination"] == []
    return [one for one in every if one.check == check]


def found_one(url: str, check: str, limits: Limits | None = None) -> Finding:
    (one,) = found(url, check, limits)
    assert one.cure
    return one


def test_a_healthy_database_is_found_healthy(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing, and 0; with --json, too."""
    assert examine(Settings(database_url=url)) == []
    assert status(["doctor", "--database-url", url]) == exits.OK
    assert capsys.readouterr().out == "nothing found\n"
    assert status(["doctor", "--database-url", url, "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out) == {"ok": True, "findings": []}


def test_a_database_that_cannot_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    """It is no finding: the exit status says so."""
    nowhere = "postgresql://x@127.0.0.1:9/nowhere"
    assert status(["doctor", "--database-url", nowhere]) == exits.DATABASE
    told = capsys.readouterr()
    assert (told.out, "127.0.0.1" in told.err) == ("", True)


def test_schema_drift(
    url: str, sql: psycopg.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error ends the examination: no read can be trusted then."""
    sql.execute("ALTER TABLE scheduled_gaps DROP COLUMN reason")
    one = found_one(url, "schema")
    assert one.severity == Severity.ERROR
    assert "scheduled_gaps" in one.evidence
    assert status(["doctor", "--database-url", url, "--json"]) == exits.FAILED
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["findings"][0]["severity"]) == (False, "error")


def test_a_missing_index(url: str, sql: psycopg.Connection) -> None:
    sql.execute("DROP INDEX scheduled_tasks_due")
    assert "scheduled_tasks_due" in found_one(url, "schema").evidence


def test_an_older_revision(url: str) -> None:
    Schema(Settings(database_url=url)).downgrade("sw0002")
    assert (
        "upgrade" in found_one(url, "schema").cure + found_one(url, "schema").evidence
    )


FILL = """
INSERT INTO scheduled_gaps (task_name, task_instance, first_slot, last_slot, count, reason, created)
SELECT 'job', n::text, now(), now(), 1, 'late', now() FROM generate_series(1, 30000) AS n"""


def test_a_bloated_index_and_starved_vacuum(url: str, sql: psycopg.Connection) -> None:
    """Rows died, and nobody vacuumed; afterwards the index stays as large."""
    sql.execute("ALTER TABLE scheduled_gaps SET (autovacuum_enabled = off)")
    sql.execute(FILL)
    sql.execute("DELETE FROM scheduled_gaps WHERE task_instance::integer > 100")
    sql.execute("SELECT pg_stat_force_next_flush()")
    one = found_one(url, "starved_vacuum")
    assert "scheduled_gaps has 29,900 dead rows and 100 live ones" in one.evidence
    assert "VACUUM scheduled_gaps" in one.cure
    sql.execute("VACUUM ANALYZE scheduled_gaps")
    sql.execute("SELECT pg_stat_force_next_flush()")
    assert found(url, "starved_vacuum") == []
    bloated = found(url, "bloated_index", Limits(index_bytes=500_000))
    assert "scheduled_gaps_pkey" in {one.evidence.split()[2] for one in bloated}
    sql.execute("REINDEX TABLE scheduled_gaps")
    assert found(url, "bloated_index", Limits(index_bytes=500_000)) == []


def test_an_invalid_index(url: str, sql: psycopg.Connection) -> None:
    """As a CREATE INDEX CONCURRENTLY leaves it that failed."""
    sql.execute(FILL.replace("30000", "2"))
    with pytest.raises(psycopg.errors.UniqueViolation):
        sql.execute("CREATE UNIQUE INDEX CONCURRENTLY twice ON scheduled_gaps (count)")
    one = found_one(url, "invalid_index")
    assert (one.severity, "twice" in one.evidence) == (Severity.ERROR, True)
    assert one.cure == "REINDEX INDEX CONCURRENTLY twice"


def test_who_holds_an_old_snapshot(url: str, sql: psycopg.Connection) -> None:
    """A session, a prepared transaction, and a replication slot, each by its name."""
    limits = Limits(snapshot=NOW)
    with psycopg.connect(url, application_name="report") as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT 1")
        named = [
            one
            for one in found(url, "old_snapshot", limits)
            if "report" in one.evidence
        ]
        assert len(named) == 1
        assert named[0].evidence.startswith("session report (")
        assert " since 20" in named[0].evidence
        assert "pg_terminate_backend" in named[0].cure
        assert found(url, "old_snapshot") == []
    sql.execute("BEGIN")
    sql.execute("CREATE TABLE left_over ()")
    sql.execute("PREPARE TRANSACTION 'forgotten'")
    told = [one.evidence for one in found(url, "old_snapshot", limits)]
    assert any(one.startswith("prepared forgotten holds") for one in told)
    sql.execute("ROLLBACK PREPARED 'forgotten'")
    sql.execute("SELECT pg_create_logical_replication_slot('unread', 'test_decoding')")
    sql.execute("CREATE TABLE one_more ()")
    told = [one.evidence for one in found(url, "old_snapshot", Limits(snapshot_age=0))]
    sql.execute("SELECT pg_drop_replication_slot('unread')")
    assert any(one.startswith("slot unread holds") for one in told)


@pytest.mark.parametrize(
    ("setting", "severity"),
    [
        ("statement_timeout = '5s'", Severity.NOTE),
        ("default_transaction_isolation = 'serializable'", Severity.NOTE),
        ("default_transaction_read_only = on", Severity.ERROR),
    ],
)
def test_isolation_and_timeouts_of_the_role(
    url: str, sql: psycopg.Connection, setting: str, severity: Severity
) -> None:
    name = sql.info.dbname
    sql.execute(f'ALTER DATABASE "{name}" SET {setting}')  # type: ignore[arg-type]
    named = [
        one
        for one in found(url, "role_settings")
        if setting.split()[0] in one.evidence
    ]
    assert [one.severity for one in named] == [severity]


def test_transaction_ids_grow_old(url: str) -> None:
    one = found_one(url, "transaction_age", Limits(transaction_age=1))
    assert one.severity == Severity.ERROR
    assert "VACUUM (FREEZE)" in one.cure


@job(name="broken", schedule=Every("1h"))
def broken(ctx: JobContext) -> None:
    raise ValueError("boom")


@task(name="mail")
def mail(ctx: object) -> None: ...


def test_the_cluster(url: str, sql: psycopg.Connection) -> None:
    """Clock drift, connections, a job that never succeeded, a pause that nobody has ended, and a
    task that no worker knows.
    """
    with JobRegistry(jobs=[broken], database_url=url) as registry:
        assert examine(Settings(database_url=url)) == []
        sql.execute(
            "UPDATE scheduled_workers SET skew = 3.5, last_seen = now() + '1 minute'"
        )
        one = found_one(url, "clock_drift")
        assert "+3.5 s" in one.evidence
        few = Limits(connections=0.01)
        assert "connections" in found_one(url, "connections", few).evidence
        registry.operations.trigger("broken")
        wait_for_failure(sql)
        assert (
            "job broken has never succeeded"
            in found_one(url, "never_succeeded").evidence
        )
        registry.operations.pause("broken")
        limits = Limits(forgotten=NOW)
        assert (
            "broken has been paused since"
            in found_one(url, "forgotten_pause", limits).evidence
        )
        assert found(url, "forgotten_pause") == []
        registry.operations.resume("broken")
        registry.operations.pause("broken", until=timedelta(hours=1))
        assert found(url, "forgotten_pause", limits) == []
        sql.execute(
            "INSERT INTO scheduled_tasks (task_name, task_instance, kind, execution_time, picked, "
            "version) VALUES ('nobodys', '1', 'task', now() - interval '1 hour', false, 1)"
        )
        assert "nobodys" in found_one(url, "unknown_tasks").evidence


def wait_for_failure(sql: psycopg.Connection) -> None:
    import time

    for _ in range(600):
        query = "SELECT 1 FROM scheduled_slots WHERE outcome = 'failed'"
        if sql.execute(query).fetchone():
            return
        time.sleep(0.05)
    raise AssertionError("the job has not run")


def test_a_calendar_that_ends(url: str, sql: psycopg.Connection) -> None:
    from datetime import date

    from slotwise import Calendar, Daily
    from slotwise.operations import Operations

    closed = Calendar(name="closed", days={date(2020, 12, 25)})

    @job(name="by-days", schedule=Daily("02:00").excluding("closed"))
    def by_days(ctx: JobContext) -> None: ...

    settings = Settings(database_url=url)
    with Operations.open(settings) as operations:
        operations.calendars.change("closed", lambda _: closed, "calendar_add")
    with JobRegistry(jobs=[by_days], database_url=url):
        pass
    assert "calendar closed end with 2020" in found_one(url, "calendar_ends").evidence


def test_a_pooler_in_transaction_mode(url: str, tmp_path: Path) -> None:
    """What the check of the tables warns of is a finding of its own."""
    tmp_path.chmod(0o777)
    with pgbouncer(url, tmp_path) as through:
        one = found_one(through, "pooler")
    assert one.severity == Severity.WARNING


def test_a_standby_that_holds_a_snapshot() -> None:
    """With its own cure; the server's view of a standby is read as that of a session."""
    held = SnapshotHolder(kind="standby", name="replica", age=5_000_000)
    about = DatabaseInfo(snapshots=[held])
    (one,) = old_snapshots(about, datetime.now(UTC), Limits())
    assert (
        "standby replica holds a snapshot, over 5,000,000 transactions" in one.evidence
    )
    assert "hot_standby_feedback" in one.cure
