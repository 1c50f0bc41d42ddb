"""Functions and operators that another role has put into a schema of the search_path are never
called.
"""

from __future__ import annotations

import psycopg
import pytest

from slotwise import Every, JobContext, JobRegistry, TaskContext, job, task
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.testing import ManualClock, ManualWorker

#: Types of columns and parameters: a function that takes exactly these beats one of pg_catalog
#: whose arguments must be converted.
TYPES = (
    "text",
    "varchar",
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "boolean",
    "timestamptz",
    "interval",
    "bytea",
    "text[]",
    "bigint[]",
    "timestamptz[]",
    "json",
    "jsonb",
    "regclass",
    "oid",
    "tid",
    "date",
    "timestamp",
)
_NAMES = """
unnest count min max sum bool_or hashtext hashtextextended pg_notify set_config decode substr
string_to_array current_setting length pg_advisory_xact_lock pg_advisory_xact_lock_shared
pg_try_advisory_xact_lock has_table_privilege has_schema_privilege to_regclass pg_xact_status
"""
NAMES = _NAMES.split()
TRAP = """
CREATE FUNCTION public.trap(called text) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the trap %', called; END $$
"""
#: Of one to three arguments, where pg_catalog has none of exactly these types.
FUNCTIONS = """
DO $$
DECLARE
  one text; two text; arguments text; name text;
BEGIN
  FOREACH name IN ARRAY {names}::text[] LOOP
    FOREACH one IN ARRAY {types}::text[] LOOP
      FOREACH two IN ARRAY ARRAY[
          '', ', varchar', ', integer', ', varchar, boolean', ', integer, integer'] LOOP
        arguments := one || two;
        IF to_regprocedure(format('pg_catalog.%I(%s)', name, arguments)) IS NULL THEN
          EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS integer LANGUAGE sql AS '
            '$f$ SELECT public.trap(%L) $f$', name, arguments, name || '(' || arguments || ')');
        END IF;
      END LOOP;
    END LOOP;
  END LOOP;
END $$
"""
#: What reads PostgreSQL's own catalogue: SQLAlchemy's reflection, whose text is not ours.
CATALOGUE = ("regclass", "oid")
#: Between all pairs of types for which pg_catalog has no operator of exactly these.
OPERATORS = """
DO $$
DECLARE
  types text[] := {columns}::text[];
  one text; two text; sign text; result text; number integer := 0;
BEGIN
  FOREACH one IN ARRAY types LOOP
    FOREACH two IN ARRAY types LOOP
      FOREACH sign IN ARRAY ARRAY['=', '<>', '<', '<=', '>', '>=', '+', '-', '*', '||'] LOOP
        IF to_regoperator(format('pg_catalog.%s(%s, %s)', sign, one, two)) IS NULL THEN
          result := CASE WHEN sign IN ('+', '-', '*') THEN one WHEN sign = '||' THEN 'text'
            ELSE 'boolean' END;
          number := number + 1;
          EXECUTE format('CREATE FUNCTION public.trap_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS '
            '$f$ BEGIN PERFORM public.trap(%L); END $f$',
            number, one, two, result, one || sign || two);
          EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, '
            'FUNCTION = public.trap_%s)', sign, one, two, number);
        END IF;
      END LOOP;
    END LOOP;
  END LOOP;
END $$
"""


@job(name="hourly", schedule=Every("1h"))
def hourly(ctx: JobContext) -> None:
    """Returns."""


@task(name="mail", record="all", concurrency=2)
def mail(ctx: TaskContext[int]) -> None:
    if ctx.data == 3:
        raise ValueError("three")


@task(name="sync")
def sync(ctx: JobContext) -> None:
    """Returns."""


def set_traps(url: str, traps: str) -> None:
    columns = [one for one in TYPES if one not in CATALOGUE]
    lists = {"{names}": NAMES, "{types}": TYPES, "{columns}": columns}
    for mark, values in lists.items():
        traps = traps.replace(mark, "'{" + ",".join(values) + "}'")
    with psycopg.connect(url, autocommit=True) as sql:
        sql.execute(traps.encode())


@pytest.mark.parametrize(
    ("traps", "proof"),
    [
        (FUNCTIONS, "SELECT unnest(ARRAY['a'])"),
        (OPERATORS, "SELECT 'a'::text = 'a'::varchar"),
    ],
    ids=["functions", "operators"],
)
def test_nothing_of_another_schema_is_called(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, traps: str, proof: str
) -> None:
    """A worker, a client and the commands run where public has a function or an operator for each
    exact type.
    """
    set_traps(pg_url, TRAP)
    set_traps(pg_url, traps)
    with (
        psycopg.connect(pg_url) as sql,
        pytest.raises(psycopg.Error, match="the trap"),
    ):
        sql.execute(proof.encode())
    registry = JobRegistry(jobs=[hourly], tasks=[mail, sync], database_url=pg_url)
    client = registry.client
    client.schedule(mail, 1, id="one")
    client.schedule_many(mail, [2, 3, 4])
    with psycopg.connect(pg_url) as connection:
        client.schedule(mail, 5, id="five", connection=connection)
    client.schedule_recurring(sync, "customer", Every("1h"))
    clock = ManualClock(registry.inspect.now())
    with ManualWorker(registry, pg_url, clock) as worker:
        for _ in range(3):
            worker.tick("1h")
            worker.run_due()
    client.unschedule_recurring(sync, "customer")
    client.cancel(mail, "five")
    monkeypatch.setenv("DATABASE_URL", pg_url)
    for command in COMMANDS:
        assert status(command.split()) == exits.OK, command
    assert status(["health"]) == exits.FAILED  # no worker is alive
    registry.database.close()


CATALOGUE_TYPES = [
    '"char"',
    "oid",
    "regclass",
    "name",
    "text",
    "integer",
    "smallint",
    "boolean",
]


def test_no_operator_between_types_of_the_catalogue_is_called(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's start and the commands look for the tables in PostgreSQL's catalogue."""
    set_traps(pg_url, TRAP)
    types = ", ".join(f"'{one}'" for one in CATALOGUE_TYPES)
    traps = OPERATORS.replace("{columns}", f"ARRAY[{types}]")
    with psycopg.connect(pg_url, autocommit=True) as sql:
        sql.execute(traps.encode())
        with pytest.raises(psycopg.Error, match="the trap"):
            sql.execute("SELECT FROM pg_class WHERE relkind = 'r'::text")
    monkeypatch.setenv("DATABASE_URL", pg_url)
    registry = JobRegistry(jobs=[hourly], database_url=pg_url)
    registry.start()
    try:
        with psycopg.connect(pg_url) as holder:  # of an old snapshot, which is named
            holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            holder.execute("SELECT")
            for command in ("health", "jobs", "db check", "audit"):
                assert status(command.split()) == exits.OK, command
    finally:
        registry.stop()


COMMANDS = (
    "jobs",
    "tasks",
    "tasks list mail",
    "slots hourly",
    "explain hourly",
    "pause hourly --yes",
    "resume hourly --yes",
    "trigger hourly",
    "failures",
    "workers",
    "audit",
    "db check",
)


def test_a_role_that_may_create_functions_is_named(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``db check`` and ``db upgrade`` warn, with the statement that ends it; nothing else does."""
    monkeypatch.setenv("DATABASE_URL", pg_url)
    assert status(["db", "check"]) == exits.OK
    assert "create functions" not in capsys.readouterr().err
    with psycopg.connect(pg_url, autocommit=True) as sql:
        sql.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
        for command in ("check", "upgrade"):
            assert status(["db", command]) == exits.OK
            warned = capsys.readouterr().err
            assert "PUBLIC in public" in warned
            assert "REVOKE CREATE ON SCHEMA public FROM PUBLIC" in warned
        sql.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        sql.execute("CREATE SCHEMA jobs; GRANT ALL ON SCHEMA jobs TO PUBLIC")
    assert status(["db", "check"]) == exits.OK
    assert "create functions" not in capsys.readouterr().err
    assert status(["db", "upgrade", "--schema", "jobs"]) == exits.OK
    assert "PUBLIC in jobs" in capsys.readouterr().err
