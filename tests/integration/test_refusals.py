"""What a database does not let us do is told in one line: who was refused, what, and what
helps.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
import sqlalchemy as sa
from tests.kit.dialect import grant_receipts
from tests.kit.store import LedgerFence, Store
from tests.store.bench import Bench

from slotwise import (
    Client,
    DatabaseProblem,
    DatabaseRefused,
    Every,
    JobContext,
    Settings,
    job,
    task,
)
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.migrate.grants import grants
from slotwise.operations import InstanceFilter, Operations
from slotwise.spi import Database
from slotwise.testing import ManualWorker

SCHEDULE = ["tasks", "schedule", "mail"]
LOOK = (
    "GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT ON scheduled_meta TO {role};"
)


@pytest.fixture
def role(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One that may do nothing with the tables, and commands are given under."""
    name = f"limited_{sa.make_url(pg_url).database}"
    with psycopg.connect(pg_url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'geheim'")
        owner.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        address = sa.make_url(pg_url).set(username=name, password="geheim")
        monkeypatch.setenv(
            "DATABASE_URL", address.render_as_string(hide_password=False)
        )
        yield name
        owner.execute(f"DROP OWNED BY {name}")
        owner.execute(f"DROP ROLE {name}")


@pytest.mark.parametrize(
    ("rights", "command", "words"),
    [
        (
            "",
            ["health"],
            [
                "are in the schema public, and role '{role}' may not use it",
                "run: GRANT USAGE ON SCHEMA public TO {role}",
            ],
        ),
        (
            "GRANT USAGE ON SCHEMA public TO {role}",
            ["health"],
            [
                "permission denied for table scheduled_meta, for role '{role}' [42501]",
                "slotwise db grants --role ROLE",
            ],
        ),
        (
            LOOK,
            SCHEDULE,
            [
                "permission denied for table scheduled_tasks, for role '{role}'",
                "db grants --role ROLE",
            ],
        ),
        (
            "GRANT USAGE ON SCHEMA public TO {role}",
            ["db", "upgrade", "--table-prefix", "x_"],
            ["permission denied for schema public, for role '{role}'"],
        ),
        (
            LOOK + "ALTER ROLE {role} SET search_path = elsewhere",
            ["health"],
            [
                "in the schema public, and the search_path of role '{role}' is "
                "elsewhere; say --schema public"
            ],
        ),
        (
            LOOK + "ALTER ROLE {role} SET search_path = elsewhere",
            ["db", "check"],
            [
                "in the schema public, and the search_path of role '{role}' "
                "is elsewhere; say --schema public"
            ],
        ),
        (
            LOOK,
            ["health", "--schema", "nowhere"],
            ["missing in the schema nowhere (there are such in: public); run:"],
        ),
        (
            LOOK
            + (
                "GRANT ALL ON scheduled_tasks TO {role}; ALTER ROLE {role} SET "
                "default_transaction_read_only = on"
            ),
            SCHEDULE,
            [
                "cannot execute INSERT in a read-only transaction [25006]; connect to the primary"
            ],
        ),
    ],
    ids=[
        "schema",
        "table",
        "write",
        "create",
        "search-path",
        "db check",
        "wrong-schema",
        "read-only",
    ],
)
def test_refused(
    pg_url: str,
    role: str,
    rights: str,
    command: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Role, object and cure; exit status 3."""
    with psycopg.connect(pg_url, autocommit=True) as owner:
        owner.execute(rights.format(role=role) or "SELECT")
    assert status(command) == exits.DATABASE
    (line,) = capsys.readouterr().err.splitlines()
    for word in words:
        assert word.format(role=role) in line


def test_health_has_an_answer_nevertheless(
    role: str, pg_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A probe that reads JSON reads why."""
    with psycopg.connect(pg_url, autocommit=True) as owner:
        owner.execute(f"GRANT USAGE ON SCHEMA public TO {role}")
    assert status(["health", "--json"]) == exits.DATABASE
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is False
    assert "permission denied for table scheduled_meta" in told["problems"][0]


def test_not_let_into_the_database(pg_url: str, role: str) -> None:
    """No outage, for which a worker would wait: the server is there, and says no."""
    with psycopg.connect(pg_url, autocommit=True) as owner:
        owner.execute(
            f"REVOKE CONNECT ON DATABASE {sa.make_url(pg_url).database} FROM PUBLIC"
        )
    with (
        closing(Database(Settings.load())) as database,
        pytest.raises(DatabaseRefused, match="GRANT CONNECT ON DATABASE"),
    ):
        database.verify()


def _of(role: str, *parts: str) -> str:
    """What ``slotwise db grants`` gives a role for these parts."""
    return "".join(
        grants(part, role, prefix="scheduled_", schema=None) for part in parts
    )


def _granted(pg_url: str, role: str, text: str) -> None:
    with psycopg.connect(pg_url, autocommit=True) as owner:
        owner.execute(re.sub(r"TO \w+;", f"TO {role};", text).encode())
        grant_receipts(owner, role)


def test_the_rights_of_worker_and_operator_are_enough_for_every_operation(
    pg_url: str, role: str
) -> None:
    """And for the worker that obeys: nothing that Operations can do is left out."""
    _granted(pg_url, role, _of(role, "worker", "operator"))

    @job(name="hourly", schedule=Every("1h"))
    def hourly(ctx: JobContext) -> None:
        raise ValueError("boom")

    with ManualWorker([hourly], os.environ["DATABASE_URL"]) as worker:
        worker.plan()
        give = worker.client.operations.by("ada")
        slot = give.trigger("hourly")
        worker.run_due()
        begin = worker.clock.now()
        some = InstanceFilter(prefix="customer-")
        given: dict[str, Callable[[], object]] = {
            "pause": lambda: give.pause("hourly"),
            "resume": lambda: give.resume("hourly"),
            "pause_all": give.pause_all,
            "resume_all": give.resume_all,
            "trigger": lambda: give.trigger("hourly"),
            "skip_next": lambda: give.skip_next("hourly"),
            "retry": lambda: give.retry("hourly", slot),
            "cancel": lambda: give.cancel("hourly", slot),
            "backfill": lambda: give.backfill(
                "hourly", begin - timedelta(hours=5), begin, forgotten=True
            ),
            "cancel_backfill": lambda: give.cancel_backfill("hourly"),
            "new_epoch": give.new_epoch,
            "settle_until": lambda: give.settle_until(begin),
            "pause_instances": lambda: give.pause_instances("hourly", some),
            "resume_instances": lambda: give.resume_instances("hourly", some),
            "trigger_instances": lambda: give.trigger_instances("hourly", some),
            "skip_instances": lambda: give.skip_instances("hourly", some),
            "delete_instances": lambda: give.delete_instances("hourly", some),
            "retry_tasks": lambda: give.retry_tasks("mail"),
            "cancel_tasks": lambda: give.cancel_tasks("mail", state="dead"),
            "delete_tasks": lambda: give.delete_tasks("mail", state="dead"),
            "stacks": lambda: give.stacks("hourly", timeout="1ms"),
            "delete": lambda: give.delete("hourly", force=True),
        }
        others = {"aio", "by", "calendars", "open"}  # each leads to further operations
        assert {
            name for name in dir(Operations) if not name.startswith("_")
        } - others == set(given)
        for operation in given.values():
            operation()


def test_what_the_page_grants_to_an_application(pg_url: str, role: str) -> None:
    """Scheduling, and what takes a further right: that is named where it is missing."""
    _granted(pg_url, role, _of(role, "application"))
    with closing(Database(Settings.load())) as database:
        store = Store(database, {})
        client = Client(lambda: store)
        assert client.schedule("mail", id="1").status == "scheduled"
        assert client.schedule("mail", id="1", if_exists="keep").status == "exists"
        more: list[tuple[str, Callable[[], object]]] = [
            ("UPDATE", lambda: client.schedule("mail", id="1", if_exists="replace")),
            (
                "UPDATE",
                lambda: client.schedule("mail", id="1", if_exists="reschedule"),
            ),
            ("UPDATE", lambda: client.reschedule("mail", "1", delay="1h")),
            ("UPDATE", lambda: client.retry("mail")),
            ("UPDATE, DELETE", lambda: client.cancel("mail", "1")),
            ("UPDATE, DELETE", lambda: client.cancel_all("mail")),
        ]
        for rights, call in more:
            with pytest.raises(
                Exception, match="permission denied for table scheduled_tasks"
            ):
                call()
            _granted(
                pg_url, role, f"GRANT {rights} ON scheduled_tasks TO application;"
            )
            call()
            with psycopg.connect(pg_url, autocommit=True) as owner:
                owner.execute(f"REVOKE UPDATE, DELETE ON scheduled_tasks FROM {role}")


def test_what_the_page_grants_to_handlers_of_an_application(
    pg_url: str, role: str
) -> None:
    """guard, complete_in and history, of slots and of one-time tasks."""
    with (
        closing(Database(Settings(database_url=pg_url))) as owners,
        closing(Database(Settings.load())) as database,
    ):
        bench = Bench(owners).planned()
        bench.tick()
        bench.client.schedule("mail", id="1")
        slot, mail = bench.claim_one("plain"), bench.claim_one("mail")
        _granted(pg_url, role, _of(role, "application"))
        fence = LedgerFence(bench.store)
        for verb in (fence.guard, fence.complete_in):
            with database.main.begin() as connection:
                verb(slot, connection)
                verb(mail, connection)
        assert [
            end.outcome
            for end in Client(lambda: Store(database, {})).history("mail", "1")
        ] == ["succeeded"]


def test_a_right_that_is_taken_away(
    pg_url: str, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a running loop: one line with role, table and cure, and no traceback."""
    _granted(pg_url, role, _of(role, "worker"))
    with ManualWorker(
        [task(name="mail")(print)], os.environ["DATABASE_URL"]
    ) as worker:
        with psycopg.connect(pg_url, autocommit=True) as owner:
            owner.execute(f"REVOKE ALL ON scheduled_tasks FROM {role}")
        worker._worker.poller._round()
    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert record.exc_info is None
    assert (
        f"permission denied for table scheduled_tasks, for role {role!r}"
        in record.getMessage()
    )
    assert "slotwise db grants --role ROLE" in record.getMessage()


def test_a_server_that_is_too_old(pg_url: str) -> None:
    """What is there, what is needed, and the cure."""
    with closing(Database(Settings(database_url=pg_url))) as database:
        database.verify()
        database.main.dialect.server_version_info = (14, 9)
        with pytest.raises(
            DatabaseProblem,
            match=r"14\.9 is too old, slotwise needs 15; upgrade the server",
        ):
            database.verify()
