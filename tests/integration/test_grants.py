"""Each role with its grants alone: what it is for works, and what it must not do is refused by the
database.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from tests.kit.dialect import grant_receipts
from tests.kit.store import LedgerFence, Pruner

from slotwise import (
    Client,
    ConfigurationError,
    DatabaseProblem,
    Every,
    JobContext,
    JobRegistry,
    Settings,
    job,
    task,
)
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.contrib.reconciliation import Reconciler, kept
from slotwise.operations import Operations, Schema
from slotwise.store.operations.transaction import Author
from slotwise.testing import ManualWorker

ran = threading.Event()


@job(name="hourly", schedule=Every("1h"))
def hourly(ctx: JobContext) -> None:
    """Returns."""


@task(name="note", record="all")
def note(ctx: JobContext) -> None:
    ran.set()


@contextmanager
def a_role(owner: str, role: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a new role of the database with the grants of ``role``, which the command has
    applied.
    """
    address = sa.make_url(owner)
    name = f"{address.database}_{role}"
    with psycopg.connect(owner, autocommit=True) as sql:
        sql.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        sql.execute("CREATE TABLE orders (secret text)")
        monkeypatch.setenv("DATABASE_URL", owner)
        assert status(["db", "grants", "--role", role, "--to", name]) == exits.OK
        monkeypatch.setenv(
            "DATABASE_URL",
            url := address.set(username=name, password="secret").render_as_string(
                False
            ),
        )
        if role != "migrator":  # there are no tables yet
            grant_receipts(sql, name)
        yield url
        sql.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


NO_ROLE = (
    "SELECT * FROM orders",
    "CREATE TABLE mine (a int)",
    "DROP TABLE scheduled_tasks",
    "UPDATE scheduled_alembic_version SET version_num = 'x'",
)


def is_refused(url: str, *statements: str) -> None:
    """Each for lack of a right, and not for another reason."""
    with psycopg.connect(url, autocommit=True) as sql:
        for statement in (*statements, *NO_ROLE):
            with pytest.raises(
                (psycopg.errors.InsufficientPrivilege, psycopg.errors.CheckViolation)
            ):
                sql.execute(statement)


ROW = "'x', now(), false, 1"
#: Rows that stand for jobs, hold a place for ever, stall claims, or overtake all others; each in
#: columns it may write.
FORGED = (
    "'task', 'par', 'recurring@2026-11-24T16:35:05+00:00', '9001-01-01', "
    "'9001-01-01', false, 1, 1, 50",
    "'task', 'par', 'ann@2026-11-24T16:35:05.000001+00:00', now(), now(), false, 1, 1, 50",
    "'task', 'par', 'recurring', now(), now(), false, 1, 1, 50",
    "'task', 'par', 'recurring@x', now(), now(), false, 1, 1, 50",
    "'task', 'par', 'trigger:1', now(), now(), false, 1, 1, 50",
    "'detached', 'nightly', 'a', now(), now(), false, 1, 1, 32767",
    "'plan', 'nightly', 'a', now(), now(), false, 1, 1, 50",
    "'task', 'limited', 'a', now(), now(), true, 1, 1, 50",
    "'task', 'limited', 'a', now(), now() - interval '1 day', false, 1, 1, 50",
    "'task', 'limited', 'a', now(), now(), false, 1, 1, 0",
    "'task', 'limited', 'a', now(), now(), false, 1, 1, 101",
    "'task', repeat('n', 251), 'a', now(), now(), false, 1, 1, 50",
    "'task', 'limited', 'a', now(), now(), false, -1, 1, 50",
    "'task', 'limited', 'a', now(), now(), false, 9223372036854775807, 1, 50",
    "'task', 'limited', 'a', now(), now(), false, 1, 253402300800000000, 50",
    "'task', 'limited', 'a', 'infinity', 'infinity', false, 1, 1, 50",
    "'task', 'limited', 'a', '0044-03-15 BC', NULL, false, 1, 1, 50",
    "'task', '', 'a', now(), now(), false, 1, 1, 50",
    "'task', U&'\\00A0', 'a', now(), now(), false, 1, 1, 50",
    "'task', U&'\\2003', 'a', now(), now(), false, 1, 1, 50",
    "'task', 'limited', U&'\\00A0', now(), now(), false, 1, 1, 50",
    "'task', 'limited', U&'a\\202Eb', now(), now(), false, 1, 1, 50",
    "'task', 'limited', U&'a\\200Bb', now(), now(), false, 1, 1, 50",
    "'task', 'limited', U&'a\\2028b', now(), now(), false, 1, 1, 50",
    "'task', 'limited', '', now(), now(), false, 1, 1, 50",
    "'task', 'limited', ' ', now(), now(), false, 1, 1, 50",
    "'task', 'limited', E'a\\nb', now(), now(), false, 1, 1, 50",
    "'task', E'\\x1b[2J', 'a', now(), now(), false, 1, 1, 50",
)
FORGES = (
    "INSERT INTO scheduled_tasks"
    " (kind, task_name, task_instance, execution_time, slot, picked, version, "
    "created_version, priority) VALUES "
)
CHANGES = (
    "UPDATE scheduled_controls SET author = 'x'",
    "DELETE FROM scheduled_controls",
)
HISTORY = (
    "UPDATE scheduled_slots SET outcome = 'succeeded'",
    "DELETE FROM scheduled_slots",
    "DELETE FROM scheduled_gaps",
)


def test_an_enqueuer(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It schedules, alone and in a transaction of its own; it reads no payload, and changes
    nothing that is there.
    """
    with a_role(pg_url, "enqueuer", monkeypatch) as url:
        registry = JobRegistry(tasks=[note], database_url=url, process_hook=False)
        assert registry.client.schedule(note, id="1").status == "scheduled"
        assert registry.client.schedule(note, id="1").status == "exists"
        assert registry.client.schedule_many(note, range(3)).scheduled == 3
        with psycopg.connect(url) as sql:
            registry.client.schedule(note, id="2", connection=sql)
            registry.client.schedule_many(note, range(700), connection=sql)
        assert (
            registry.client.schedule_many(
                note, range(9), if_exists="raise", copy=True
            ).scheduled
            == 9
        )
        assert (
            registry.client.schedule(note, id="ann@example.com", priority=100).status
            == "scheduled"
        )
        assert list(registry.client.list(note))
        client = registry.client
        not_theirs: tuple[Callable[[], object], ...] = (
            lambda: client.get(note, "1"),
            lambda: client.cancel(note, "1"),
            lambda: client.history(note, "1"),
            lambda: client.reschedule(note, "1", delay="1h"),
            lambda: client.retry(note),
            lambda: client.schedule(note, id="1", if_exists="replace"),
        )
        for call in not_theirs:
            with pytest.raises(DatabaseProblem, match="permission denied"):
                call()
        registry.database.close()
        into = (
            "INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, "
            "picked, version"
        )
        is_refused(
            url,
            *CHANGES,
            *HISTORY,
            "SELECT task_data FROM scheduled_tasks",
            "SELECT * FROM scheduled_slots",
            "UPDATE scheduled_tasks SET execution_time = now()",
            "DELETE FROM scheduled_tasks",
            f"{into}, schedule) VALUES ('hourly', {ROW}, 'EVERY|1ms')",
            f"{into}, state) VALUES ('note', {ROW}, 'dead')",
            f"{into}, priority) VALUES ('note', {ROW}, 32767)",
            "INSERT INTO scheduled_meta VALUES ('paused', 'x')",
            "INSERT INTO scheduled_controls (at, author, command) VALUES (now(), 'boss', 'pause')",
            "INSERT INTO scheduled_slots (task_name, task_instance, slot, "
            "outcome) VALUES ('a', 'b', now(), 'x')",
        )


def test_an_enqueuer_stands_in_for_no_job(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor through a group; and a row of another transaction that has the id makes none of its own
    wait.
    """
    with a_role(pg_url, "enqueuer", monkeypatch) as url:
        is_refused(url, *(f"{FORGES}({row})" for row in FORGED))
        name, member = (f"{sa.make_url(url).username}{end}" for end in ("", "_app"))
        with psycopg.connect(pg_url, autocommit=True) as sql:
            sql.execute(f"CREATE ROLE {member} LOGIN PASSWORD 'secret' IN ROLE {name}")
            through = sa.make_url(url).set(username=member).render_as_string(False)
            is_refused(through, *(f"{FORGES}({row})" for row in FORGED))
            with psycopg.connect(pg_url) as owner:
                owner.execute(f"{FORGES}({FORGED[0]})")  # and no commit
                is_refused(
                    url,
                    f"SET lock_timeout = '9s'; {FORGES}({FORGED[0]}) ON CONFLICT DO NOTHING",
                )
            sql.execute(f"DROP OWNED BY {member}; DROP ROLE {member}")


def test_one_role_for_workers_and_enqueuers(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker may do besides stays; the commands can be repeated in any order."""
    with a_role(pg_url, "enqueuer", monkeypatch) as url:
        with monkeypatch.context() as owner:
            owner.setenv("DATABASE_URL", pg_url)
            for role in ("worker", "enqueuer", "enqueuer"):
                assert (
                    status(
                        [
                            "db",
                            "grants",
                            "--role",
                            role,
                            "--to",
                            str(sa.make_url(url).username),
                        ]
                    )
                    == exits.OK
                )
        with ManualWorker([hourly, note], url) as worker:
            worker.client.schedule(note, id="1")
            worker.client.schedule(note, id="1", if_exists="replace", priority=7)
            worker.client.schedule(note, id="1", if_exists="reschedule")
            worker.operations.trigger("hourly")
            worker.tick("1h")
            assert len(worker.run_due()) == 3


SLOT = "(task_name, task_instance, slot, outcome, origin, attempts, token, worker)"
#: What an application may not write of a slot that runs: it may only note its success, now.
OF_RUNNING = [
    "outcome = 'dead', finished = now()",
    "outcome = 'nonsense', finished = now()",
    "outcome = 'succeeded'",
    "outcome = 'succeeded', finished = '2001-01-01Z'",
    "outcome = 'succeeded', finished = now() + interval '1h'",
    "outcome = 'succeeded', finished = now(), token = 4000000000000000000",
    "outcome = 'succeeded', finished = now(), worker = 'evil'",
    "outcome = 'succeeded', finished = now(), attempts = 99",
    "worker = 'evil'",
]
#: Nor of a task that runs: another slot, another claim, another end.
OF_TASK = [
    "now(), 'succeeded', 'task', 1, version, picked_by, now()",
    "slot, 'dead', 'task', 1, version, picked_by, now()",
    "slot, 'succeeded', 'task', 1, 7, picked_by, now()",
    "slot, 'succeeded', 'task', 1, version, 'evil', now()",
    "slot, 'succeeded', 'task', 7, version, picked_by, now()",
    "slot, 'succeeded', 'task', 1, version, picked_by, NULL",
]


def test_an_application(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It schedules, proves its claims and completes them; it forges no job's row, and keeps no
    slot from running.
    """
    with (
        a_role(pg_url, "application", monkeypatch) as url,
        ManualWorker([hourly, note], pg_url) as worker,
        psycopg.connect(url) as sql,
    ):
        engine = sa.create_engine(
            sa.make_url(url).set(drivername="postgresql+psycopg")
        )
        worker.plan()
        worker.client.schedule(note, id="1")
        worker.tick("1h")
        for claim in worker.poll():
            worker.begin(claim)
            if claim.row.task_name == "hourly":
                slots = "UPDATE scheduled_slots SET"
                is_refused(url, *(f"{slots} {columns}" for columns in OF_RUNNING))
            else:
                slots = f"INSERT INTO scheduled_slots {SLOT[:-1]}, finished) SELECT"
                task = "task_name, task_instance"
                held = "FROM scheduled_tasks WHERE task_name = 'note' AND picked"
                is_refused(url, *(f"{slots} {task}, {row} {held}" for row in OF_TASK))
            with engine.begin() as connection:
                worker.client.schedule(note, connection=connection)
                LedgerFence(worker.store).guard(claim, connection)
                LedgerFence(worker.store).complete_in(claim, connection)
            assert worker.finish(claim)
        assert {event.name for event in worker.settle()} == {"settled"}
        engine.dispose()
        assert [end.outcome for end in worker.client.history(note, "1")] == [
            "succeeded"
        ]
        into = f"INSERT INTO scheduled_slots {SLOT} VALUES"
        is_refused(
            url,
            *(f"{FORGES}({row})" for row in FORGED),
            *CHANGES,
            f"{into} ('hourly', 'recurring', now() + interval '1h', 'succeeded', 'task', 1, 1, "
            "'x')",
            f"{into} ('hourly', 'ann', now(), 'succeeded', 'schedule', 1, 1, 'x')",
            f"{into} ('note', '1', now(), 'succeeded', 'task', 1, 1, 'x')",
            "UPDATE scheduled_slots SET outcome = 'failed'",
            "UPDATE scheduled_slots SET slot = now()",
            "UPDATE scheduled_tasks SET execution_time = now()",
            "UPDATE scheduled_tasks SET version = 1",
            "DELETE FROM scheduled_slots",
            "DELETE FROM scheduled_tasks",
        )
        assert sql.execute("SELECT count(*) FROM scheduled_slots").fetchone() == (2,)


@pytest.mark.parametrize("role", [role for role in Schema.roles if role != "migrator"])
def test_each_role_may_check(
    pg_url: str,
    role: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The page on troubleshooting asks for this command's output; without the right to read
    alembic's table, the rest is checked.
    """
    with a_role(pg_url, role, monkeypatch) as url:
        assert status(["db", "check"]) == exits.OK
        assert "warning" not in capsys.readouterr().err
        with psycopg.connect(pg_url, autocommit=True) as sql:
            name = sa.make_url(url).username
            sql.execute(
                f"REVOKE ALL ON scheduled_alembic_version FROM {name}".encode()
            )
        assert status(["db", "check"]) == exits.OK
        assert "may not read scheduled_alembic_version" in capsys.readouterr().err


def test_a_migrator_may_check(
    pg_empty_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of the tables that it has made."""
    with a_role(pg_empty_url, "migrator", monkeypatch):
        assert status(["db", "upgrade"]) == exits.OK
        assert status(["db", "check"]) == exits.OK, capsys.readouterr().err


@pytest.mark.parametrize(
    "values",
    [
        ("repeat('a', 201)", "NULL", "NULL"),
        ("'ceo@corp (database role r_op)'", "NULL", "NULL"),
        ("U&'ceo\\00A0(database role postgres)'", "NULL", "NULL"),
        ("'ceo (Database  role postgres)'", "NULL", "NULL"),
        ("E'ceo\\n(database role postgres)'", "NULL", "NULL"),
        ("E'ceo\\nsecond line'", "NULL", "NULL"),
        ("'ceo'", "'{\"a\": \"' || repeat('x', 100000) || '\"}'", "NULL"),
        ("'ceo'", "'x'", "NULL"),
        ("'ceo'", "'[]'", "NULL"),
        ("'ceo'", "'1'", "NULL"),
        ("'ceo'", "NULL", "repeat('n', 10001)"),
    ],
)
def test_the_audit_keeps_its_form(
    pg_url: str, values: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An author is short and none that the database seems to have signed; arguments are an
    object.
    """
    into = (
        "INSERT INTO scheduled_controls (at, author, command, arguments, note) VALUES"
    )
    author, arguments, note_ = values
    with (
        a_role(pg_url, "operator", monkeypatch) as url,
        psycopg.connect(url, autocommit=True) as sql,
    ):
        with pytest.raises((psycopg.errors.CheckViolation, psycopg.DataError)):
            sql.execute(
                f"{into} (now(), {author}, 'pause', {arguments}, {note_})".encode()
            )
        sql.execute(f"{into} (now(), 'ceo', 'pause', '{{}}', NULL)".encode())


def test_no_client_signs_as_the_database() -> None:
    """The error is the client's, before anything is sent."""
    with pytest.raises(ConfigurationError, match="database itself writes"):
        Author("ceo (database role r_op)")


@pytest.mark.extended
def test_grants_wait_for_seconds_only(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trigger needs a lock on the queue, and all claims wait behind it."""
    monkeypatch.setenv("DATABASE_URL", pg_url)
    with psycopg.connect(pg_url) as writer:
        writer.execute("DELETE FROM scheduled_tasks")  # and no commit
        begun = time.monotonic()
        assert (
            status(
                [
                    "db",
                    "grants",
                    "--role",
                    "enqueuer",
                    "--to",
                    str(sa.make_url(pg_url).username),
                ]
            )
            != exits.OK
        )
        assert time.monotonic() - begun < 20
    assert "another transaction" in capsys.readouterr().err


def test_a_worker(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It checks, plans, signs in, claims, settles and signs out; it can neither change the audit
    nor upgrade.
    """
    with a_role(pg_url, "worker", monkeypatch) as url:
        registry = JobRegistry(
            jobs=[hourly], tasks=[note], database_url=url, process_hook=False
        )
        ran.clear()
        registry.client.schedule(note)
        with registry:
            assert ran.wait(60)
        registry.database.close()
        is_refused(
            url,
            *CHANGES,
            "DELETE FROM scheduled_meta",
            "DELETE FROM scheduled_calendars",
            "UPDATE scheduled_meta SET value = 'x'",
            "INSERT INTO scheduled_meta VALUES ('paused', 'x')",
            "INSERT INTO scheduled_controls (id, at, author, command) VALUES "
            "(999, now(), 'boss', 'pause')",
        )


def test_a_worker_prunes_holds_to_the_rate_and_paces_a_backfill(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it writes down in ``scheduled_meta``, and what it locks in the audit."""
    with a_role(pg_url, "worker", monkeypatch) as url:
        with ManualWorker([hourly], url, recovery_rate=1) as worker:
            worker.tick("1h")
            worker.run_due()
            worker.tick("1h 10m")  # late
            worker.run_due()
            begin = worker.clock.now()
            first, last = begin - timedelta(hours=9), begin - timedelta(hours=5)
            worker.client.operations.backfill(
                "hourly", first, last, forgotten=True, pace="1m"
            )
            for _ in range(9):
                worker.run_due()
                worker.tick("1m")
            worker.tick("9d")
            worker.run_due()
            span = timedelta(days=1)
            pruner, other = (
                Pruner(worker.store, keep=span, failure_retention=span)
                for _ in range(2)
            )
            assert pruner.take_turn(timedelta(hours=1))
            assert not other.take_turn(timedelta(hours=1))
            assert sum(page.slots for page in pruner.pages()) > 3
        with psycopg.connect(pg_url) as sql:
            noted = {key for (key,) in sql.execute("SELECT key FROM scheduled_meta")}
        assert noted >= {"pruning", "pruned_until", "recovery"}


@pytest.mark.parametrize("role", ["worker", "operator"])
def test_comparisons_are_kept(
    pg_url: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher inserts the row, and renews it."""
    with a_role(pg_url, role, monkeypatch) as url:
        reconciler = Reconciler(lambda: Client.open(url), timedelta(0))
        assert reconciler.run_once()
        assert reconciler.run_once()
        with Client.open(url) as client:
            assert kept(client) is not None


def test_a_reader(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All listings work, and nothing is written."""
    with JobRegistry(
        jobs=[hourly], database_url=pg_url, process_hook=False
    ) as registry:
        registry.client.schedule("note", id="1")
    registry.database.close()
    with a_role(pg_url, "reader", monkeypatch) as url:
        for line in (
            "jobs",
            "jobs hourly",
            "slots",
            "failures",
            "audit",
            "workers",
            "tasks",
            "tasks list",
            "tasks list note 1",
            "explain hourly",
            "calendar show",
        ):
            assert status(line.split()) == exits.OK, (line, capsys.readouterr().err)
        assert status(["health", "--min-workers", "0"]) in (exits.OK, exits.FAILED), (
            capsys.readouterr().err
        )
        assert "42501" not in capsys.readouterr().err
        is_refused(
            url,
            *CHANGES,
            *HISTORY,
            "DELETE FROM scheduled_tasks",
            "UPDATE scheduled_tasks SET picked = false",
        )


def test_an_operator(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its orders are carried out; the audit has the database's user beside the author, and cannot
    be changed.
    """
    with JobRegistry(
        jobs=[hourly], database_url=pg_url, process_hook=False
    ) as registry:
        pass
    registry.database.close()
    with a_role(pg_url, "operator", monkeypatch) as url:
        monkeypatch.setenv("SLOTWISE_AUTHOR", "ceo@corp")
        for line in (
            "pause hourly",
            "resume hourly",
            "trigger hourly",
            "skip-next hourly",
            "pause --all --yes",
            "resume --all --yes",
            "delete hourly --yes",
            "audit",
        ):
            assert status(line.split()) == exits.OK, (line, capsys.readouterr().err)
        with psycopg.connect(pg_url) as sql:
            authors = {
                author
                for (author,) in sql.execute("SELECT author FROM scheduled_controls")
            }
            with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
                sql.execute("DELETE FROM scheduled_controls")
        assert authors == {f"ceo@corp (database role {sa.make_url(url).username})"}
        with psycopg.connect(url) as sql:
            sql.execute(
                "INSERT INTO scheduled_controls (at, author, command) VALUES "
                "('1999-01-01', 'x', 'y')"
            )
            recent = (
                "SELECT at > now() - interval '1 minute' FROM scheduled_controls "
                "ORDER BY id DESC LIMIT 1"
            )
            assert sql.execute(recent).fetchone() == (True,), (
                "the client has set the time"
            )
        number = (
            "INSERT INTO scheduled_controls (id, at, author, command) VALUES (999, "
            "now(), 'boss', 'pause')"
        )
        is_refused(url, *CHANGES, number, "DELETE FROM scheduled_workers")
        for line in ("db new-epoch --yes", "db settle-until now --yes"):
            assert status(line.split()) == exits.OK, (line, capsys.readouterr().err)


#: Each would stop or mislead every program.
NO_NOTE = (
    "DELETE FROM scheduled_meta",
    "DELETE FROM scheduled_meta WHERE key = 'schema_version'",
    "UPDATE scheduled_meta SET value = '99' WHERE key = 'schema_version'",
    "UPDATE scheduled_meta SET key = 'x' WHERE key = 'installation_id'",
    "INSERT INTO scheduled_meta VALUES ('timezone', 'x')",
    "INSERT INTO scheduled_meta SELECT 'schema_version', '9' "
    "ON CONFLICT (key) DO UPDATE SET value = '9'",
)


@pytest.mark.parametrize("role", ["operator", "worker"])
@pytest.mark.parametrize("second", ["operator", "worker"])
def test_the_schemas_version_is_the_migrators(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, role: str, second: str
) -> None:
    """Whichever role was granted last; the pause of everything and the installation's id are the
    operator's.
    """
    with a_role(pg_url, role, monkeypatch) as url:
        monkeypatch.setenv("DATABASE_URL", pg_url)
        name = str(sa.make_url(pg_url).username)
        assert status(["db", "grants", "--role", second, "--to", name]) == exits.OK
        is_refused(url, *NO_NOTE)
        with psycopg.connect(pg_url) as sql:
            sql.execute("UPDATE scheduled_meta SET value = value")


def test_a_migrator(pg_empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It creates the tables, and owns them."""
    with a_role(pg_empty_url, "migrator", monkeypatch) as url:
        assert status(["db", "upgrade"]) == exits.OK
        assert status(["db", "check"]) == exits.OK
        with (
            psycopg.connect(url) as sql,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            sql.execute("SELECT * FROM orders")


def test_the_statements_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a database; a hostile name is quoted."""
    assert (
        status(
            [
                "db",
                "grants",
                "--role",
                "reader",
                "--to",
                'x"; DROP TABLE y',
                "--schema",
                "jobs",
                "--sql",
            ]
        )
        == exits.OK
    )
    told = capsys.readouterr().out
    assert 'GRANT SELECT ON jobs.scheduled_gaps TO "x""; DROP TABLE y";' in told


def test_a_reader_sees_the_schema_version(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the revision, where it may read alembic's table."""
    with a_role(pg_url, "reader", monkeypatch) as url:
        capsys.readouterr()
        assert status(["db", "check"]) == exits.OK
        assert "revision sw" in capsys.readouterr().out
        with psycopg.connect(pg_url, autocommit=True) as sql:
            name = sa.make_url(url).username
            sql.execute(
                f"REVOKE ALL ON scheduled_alembic_version FROM {name}".encode()
            )
        assert status(["db", "check"]) == exits.OK
        assert capsys.readouterr().out == "all in place: schema version 1\n"


def test_a_downgrade_leaves_nothing_behind(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The functions of the triggers go with the tables."""
    monkeypatch.setenv("DATABASE_URL", pg_url)
    ours = "SELECT proname FROM pg_proc WHERE proname LIKE 'scheduled%'"
    with psycopg.connect(pg_url, autocommit=True) as sql:
        for role in ("worker", "enqueuer"):
            assert (
                status(
                    [
                        "db",
                        "grants",
                        "--role",
                        role,
                        "--to",
                        str(sa.make_url(pg_url).username),
                    ]
                )
                == exits.OK
            )
        assert {name for (name,) in sql.execute(ours)} >= {
            "scheduled_refuse_rows",
            "scheduled_sign_controls",
        }
        assert status(["db", "downgrade", "--yes"]) == exits.OK
        assert sql.execute(ours).fetchall() == []


def test_a_limit_cannot_be_held_by_an_enqueuer(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it can lock is in no worker's way: neither the names' rows nor advisory locks of any
    key.
    """

    @task(name="few", concurrency=1)
    def few(ctx: JobContext) -> None:
        """Returns."""

    with (
        a_role(pg_url, "enqueuer", monkeypatch) as url,
        ManualWorker([few], pg_url) as worker,
    ):
        worker.client.schedule(few, id="1")
        worker.run_due()
        worker.client.schedule(few, id="2")
        is_refused(url, "SELECT running FROM scheduled_keys FOR UPDATE")
        with psycopg.connect(url) as sql:
            for kind in (0, 1):
                key = f"hashtextextended(table_name || '/few', {kind})"
                sql.execute(
                    f"SELECT pg_advisory_lock({key}) FROM (VALUES "
                    "('scheduled_tasks')) AS t(table_name)"
                )
            assert len(worker.run_due()) == 1


LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def test_the_recipe_against_advisory_locks(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page has it: a role with nothing locks nothing, and workers and operators still
    work.
    """
    (recipe,) = re.findall(
        r"```sql\n(REVOKE EXECUTE.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    with (
        a_role(pg_url, "worker", monkeypatch) as url,
        psycopg.connect(pg_url, autocommit=True) as sql,
        ManualWorker([hourly], url) as worker,
    ):
        name = str(sa.make_url(url).username)
        sql.execute(f"CREATE ROLE {name}_nobody LOGIN PASSWORD 'secret'".encode())
        recipe = recipe.replace("jobs_worker", name).replace("jobs_migrator", name)
        sql.execute(recipe.encode())
        nobody = (
            sa.make_url(url).set(username=f"{name}_nobody").render_as_string(False)
        )
        with psycopg.connect(nobody, autocommit=True) as other:
            for function in ("pg_advisory_lock", "pg_try_advisory_xact_lock_shared"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    other.execute(f"SELECT {function}(1)".encode())
        worker.tick("1h")
        assert len(worker.run_due()) == 1
        assert Pruner(
            worker.store, keep=timedelta(days=1), failure_retention=timedelta(days=1)
        ).take_turn(timedelta(hours=1))
        worker.client.schedule_recurring("hourly", "ann", "EVERY|5m")
        worker.operations.pause("hourly")
        worker.operations.resume("hourly")
        sql.execute(f"DROP ROLE {name}_nobody".encode())


def test_an_operator_pauses_although_a_role_locks_what_it_can(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the rights of an operator alone, whatever advisory locks others hold."""
    with ManualWorker([hourly], pg_url) as worker:
        worker.plan()
    squat = "SELECT pg_advisory_lock(hashtextextended('scheduled_tasks/hourly', seed)) FROM "
    with (
        a_role(pg_url, "operator", monkeypatch) as url,
        psycopg.connect(pg_url) as other,
        Operations.open(Settings(database_url=url)) as theirs,
    ):
        other.execute(f"{squat} generate_series(0, 3) AS seed".encode())
        theirs.pause("hourly")
        theirs.resume("hourly")


def test_the_recipe_for_tenants(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page has it: workers and enqueuers of one task see its rows alone; operators and
    readers see all.
    """
    (recipe,) = re.findall(
        r"```sql\n(-- Tenants.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    database = str(sa.make_url(pg_url).database)
    roles = {
        "mail_worker": "worker",
        "mail_app": "enqueuer",
        "jobs_operator": "operator",
        "jobs_reader": "reader",
    }

    @task(name="other", record="all")
    def other(ctx: JobContext) -> None:
        raise AssertionError("another tenant's")

    @task(name="send-mail", record="all", concurrency=5)
    def mail(ctx: JobContext) -> None:
        """Returns."""

    with (
        ManualWorker([other, mail], pg_url) as owner,
        psycopg.connect(pg_url, autocommit=True) as sql,
    ):
        owner.client.schedule(other, id="1")
        monkeypatch.setenv("DATABASE_URL", pg_url)
        urls = {}
        for name, role in roles.items():
            sql.execute(f"CREATE ROLE {database}_{name} LOGIN PASSWORD 'secret'")
            assert (
                status(["db", "grants", "--role", role, "--to", f"{database}_{name}"])
                == exits.OK
            )
            address = sa.make_url(pg_url).set(
                username=f"{database}_{name}", password="secret"
            )
            urls[name] = (
                f"{address.render_as_string(hide_password=False)}"
                "?options=-c%20row_security%3Don"
            )
            recipe = re.sub(rf"\b{name}\b", f"{database}_{name}", recipe)
        sql.execute(recipe.encode())
        registry = JobRegistry(
            tasks=[mail], database_url=urls["mail_app"], process_hook=False
        )
        assert (
            registry.client.schedule(mail, id="1", at=LONG_AGO).status == "scheduled"
        )
        assert registry.client.schedule(mail, id="1").status == "exists"
        assert [line.task for line in registry.client.list()] == ["send-mail"]
        with pytest.raises(DatabaseProblem, match="row-level security"):
            registry.client.schedule("other", id="2")
        refused = pytest.raises(
            psycopg.errors.InsufficientPrivilege, match="row-level security"
        )
        with psycopg.connect(urls["mail_app"], autocommit=True) as own, refused:
            own.execute(
                f"{FORGES}('task', 'other', '3', now(), now(), false, 1, 1, 50)"
            )
        registry.database.close()
        with ManualWorker([mail, other], urls["mail_worker"]) as worker:
            assert [line.task for line in worker.client.list()] == ["send-mail"]
            assert len(worker.run_due()) == 1
            assert [line.task for line in worker.client.list()] == []
            assert [end.outcome for end in worker.client.history(mail, "1")] == [
                "succeeded"
            ]
        for name in ("jobs_operator", "jobs_reader"):
            with psycopg.connect(urls[name]) as other_role:
                assert other_role.execute(
                    "SELECT task_name FROM scheduled_tasks"
                ).fetchall() == [("other",)]
                assert other_role.execute(
                    "SELECT task_name FROM scheduled_slots"
                ).fetchall() == [("send-mail",)]
        for name in roles:
            sql.execute(
                f"DROP OWNED BY {database}_{name} CASCADE; DROP ROLE {database}_{name}"
            )


@pytest.mark.parametrize(
    ("role", "expected", "said"),
    [
        ("operator", exits.FAILED, "no answer within 100ms"),
        ("reader", exits.DATABASE, "permission denied for table scheduled_receipts"),
    ],
)
def test_who_may_ask_for_stacks(
    pg_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    role: str,
    expected: int,
    said: str,
) -> None:
    """A reader is refused in one line. Here no worker is alive to answer."""
    with JobRegistry(
        jobs=[hourly], database_url=pg_url, process_hook=False
    ) as registry:
        registry.client.schedule("note", id="1")
    registry.database.close()
    with psycopg.connect(pg_url) as sql:
        sql.execute("UPDATE scheduled_tasks SET picked = true, picked_by = 'host:1:a'")
    with a_role(pg_url, role, monkeypatch):
        assert status(["workers", "stack", "note", "--timeout", "100ms"]) == expected
        assert said in capsys.readouterr().err
