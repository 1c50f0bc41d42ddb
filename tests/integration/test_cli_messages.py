"""What the command line says to mistakes, guesses and trouble: each text, word by word where it
was wrong before.
"""

from __future__ import annotations

import json
import shlex
import threading
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from slotwise import Context, Every, JobRegistry, job, task
from slotwise.cli.entry import COMMANDS, GUESSES, status
from slotwise.cli.shared import exits
from slotwise.testing import ManualWorker

APP = """
from slotwise import Cron, DistributedJob, Every, JobRegistry, job, task

class Report(DistributedJob):
    name = "report"
    schedule = Every("1h")
    def execute(self, ctx): ...

@job(name="nightly", schedule=Cron("0 2 * * *", "Europe/Vienna"))
def nightly(ctx): ...

@task(name="mail")
def mail(ctx): ...

registry = JobRegistry(jobs=[nightly], tasks=[mail])
"""


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, without settings around."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "SLOTWISE_DATABASE_URL", "SLOTWISE_APP"):
        monkeypatch.delenv(name, raising=False)


TEXTS = [
    (
        "pause tick --all",
        exits.USAGE,
        "give either a job (tick) or --all, not both; see: slotwise pause --help",
    ),
    ("resume", exits.USAGE, "name a job, or give --all; see: slotwise resume --help"),
    (
        "worker --tags",
        exits.USAGE,
        "requires an argument; see: slotwise worker --help",
    ),
    (
        "trigger tick --data 1",
        exits.USAGE,
        "a job takes no data; a one-time task does: slotwise tasks schedule NAME",
    ),
    (
        "tasks schedule mail --delay 1h",
        exits.USAGE,
        "No such option '--delay'; for a delay: --at 1h; see: ",
    ),
    (
        "worker --worker-name w",
        exits.USAGE,
        "the name is a setting: SLOTWISE_WORKER_NAME; see: ",
    ),
    (
        "worker --alive-file f",
        exits.USAGE,
        "it is named in the environment: SLOTWISE_ALIVE_FILE; see: ",
    ),
    (
        "slots -n x",
        exits.USAGE,
        "'x' is not a whole number; see: slotwise slots --help",
    ),
    (
        "schedule explain '13 * FRI'",
        exits.FAILED,
        '"13 * FRI" has 3 fields; a cron expression has 5 (minute hour',
    ),
    (
        "schedule explain 'every 5 minutes'",
        exits.FAILED,
        "; write EVERY|5m\n",
    ),
    (
        "schedule explain '0 25 * * *'",
        exits.FAILED,
        'error: hour must be 0–23, got "25"\n',
    ),
    (
        "schedule explain 'DAILY|25:00'",
        exits.FAILED,
        "a time of day must be 00:00–23:59, with seconds as 02:00:30, got",
    ),
    (
        "tasks purge",
        exits.USAGE,
        "to cancel tasks: slotwise tasks cancel NAME ID, or all that are dead: --state dead; see",
    ),
    (
        "schedule next night-dst",
        exits.FAILED,
        "; for a job's slots write its name and --app MODULE\n",
    ),
    ("tasks schedule a --data '{'", exits.USAGE, "'{' is not valid JSON: "),
    (
        "tasks schedule a --at 5",
        exits.USAGE,
        "'5' is neither an instant of the years 1900 to 8999 (2026-01-31T02:00Z) nor "
        "a duration of at most 36500d from now (2h)",
    ),
    (
        "explain nightly '2026-01-31T02:00 Europe/Viena'",
        exits.USAGE,
        "Invalid value for '[SLOT]': '2026-01-31T02:00 Europe/Viena': unknown "
        "time zone 'Europe/Viena' (did you mean",
    ),
    (
        "tasks schedule a --at '2026-01-31T02:00 Viena'",
        exits.USAGE,
        "--at': '2026-01-31T02:00 Viena': unknown time",
    ),
    (
        "run nightly --slot '2026-01-31T02:00 Viena'",
        exits.USAGE,
        "--slot': '2026-01-31T02:00 Viena': unknown time",
    ),
    (
        "schedule next '@hourly' --after '2026-01-31T02:00 Viena'",
        exits.USAGE,
        "--after: '2026-01-31T02:00 Viena': un",
    ),
    (
        "simulate --app jobs --outage '2026-01-31T02:00 Viena/3h'",
        exits.USAGE,
        "--outage: '2026-01-31T02:00 Viena': unknown time zone 'Viena'",
    ),
    (
        "tasks cancel a",
        exits.USAGE,
        "name the tasks by one of: their IDS, --state, --all; see: ",
    ),
    (
        "crontab --format system x",
        exits.USAGE,
        "write --crontab-format for crontabs",
    ),
    (
        "calendar show AT --years x",
        exits.USAGE,
        "'x': write 2026 or 2026-2028; see: slotwise calendar show --help",
    ),
    (
        "simulate --days x",
        exits.USAGE,
        "'x' is not a number; see: slotwise simulate --help",
    ),
    (
        "db grants",
        exits.USAGE,
        "option '--role'. Choose from: worker, enqueuer, application, reader, operator, migrator; see:",
    ),
    (
        "run nightly",
        exits.FAILED,
        "no application was named; give --app package.module:registry, or set SLOTWISE_APP",
    ),
    (
        "simulate --app jobs --only nope",
        exits.USAGE,
        "--only nope: there is no such job; known are nightly; see",
    ),
    (
        "pause ''",
        exits.USAGE,
        "Invalid value for '[NAME]': '' is blank; write the name of a job, as slotwise jobs",
    ),
    (
        "trigger ' '",
        exits.USAGE,
        "Invalid value for 'NAME': ' ' is blank; write the name of a job, as slotwise jobs",
    ),
    (
        "tasks schedule ''",
        exits.USAGE,
        "Invalid value for 'NAME': '' is blank; write the name of a task, as slotwise t",
    ),
    (
        "tasks list mail ''",
        exits.USAGE,
        "Invalid value for '[ID]': '': an id cannot be blank; see: slotwise tasks list",
    ),
    (
        "tasks cancel mail a ''",
        exits.USAGE,
        "Invalid value for '[IDS]...': '': an id cannot be blank; see: ",
    ),
    (
        "health --max-overdue 5",
        exits.USAGE,
        "'5' is not a duration, such as 10s, 5m or 1h30m",
    ),
    (
        "run mail --app jobs",
        exits.FAILED,
        "'mail' is a one-time task; schedule it: slotwise tasks schedule mail\n",
    ),
    (
        "calendar add office --weekend FOO",
        exits.USAGE,
        """'--weekend': day-of-week must be 0–7 or SUN–SAT, got "FOO"; write SAT,SUN, or - for none; see: """,
    ),
    (
        "schedule next '@hourly' --tz Wien",
        exits.USAGE,
        "'--tz': unknown time zone 'Wien'",
    ),
    (
        "schedule next --month this --tz Wien",
        exits.USAGE,
        "'--tz': unknown time zone 'Wien'",
    ),
    (
        "crontab x --crontab-tz Wien",
        exits.USAGE,
        "'--crontab-tz': unknown time zone 'Wien'",
    ),
    (
        "calendar import AT --years 2028-2026",
        exits.USAGE,
        "'--years': '2028-2026' ends before it begins; write 2026-2028; see",
    ),
    (
        "calendar import AT --years 1969",
        exits.USAGE,
        "'--years': '1969': years are 1970 to 2199; write 2026 or 2026-2",
    ),
    (
        "health --timeout 0s",
        exits.USAGE,
        "'--timeout': '0s' leaves no time for an answer; write 5s, for instance; see:",
    ),
]


@pytest.mark.parametrize(
    ("line", "expected", "text"), TEXTS, ids=[line for line, *_ in TEXTS]
)
def test_mistakes(
    line: str,
    expected: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """One line on stderr: value, place, cure."""
    (tmp_path / "jobs.py").write_text(APP)
    assert say(line) == expected
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert text in err


def say(line: str) -> int:
    return status(shlex.split(line))


def test_day_and_weekday_are_either(capsys: pytest.CaptureFixture[str]) -> None:
    """Not a Friday the 13th."""
    say("schedule explain '0 0 13 * FRI'")
    told = (
        "At 00:00 on day 13 of the month, and also on Friday (either is enough), by "
        "the clocks of UTC."
    )
    assert capsys.readouterr().out.splitlines()[0] == told


@pytest.mark.parametrize("guess", sorted(GUESSES))
def test_guesses(guess: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that another tool has, or that one would expect, names the right one."""
    assert status([guess]) == exits.USAGE
    err = capsys.readouterr().err
    assert err.startswith(f"error: No such command '{guess}'; ")
    assert "slotwise " in err.removesuffix("; see: slotwise --help\n")
    assert len(err.splitlines()) == 1


def test_guesses_hide_no_command() -> None:
    """What exists is no guess."""
    assert not GUESSES.keys() & COMMANDS.keys()


def test_the_login_is_refused(pg_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The server answered: it was reached."""
    url = sa.make_url(pg_url)
    wrong = url.set(username="nobody_of_this_name", password="wr0ng").render_as_string(
        hide_password=False
    )
    for command in (
        ["jobs"],
        ["health"],
        ["db", "upgrade"],
        ["slots"],
        ["failures"],
        ["explain", "a"],
    ):
        assert status([*command, "--database-url", wrong]) == exits.DATABASE
        err = capsys.readouterr().err
        assert " refused the login: " in err, err
        assert "cannot be reached" not in err
        assert "wr0ng" not in err
        assert len(err.splitlines()) == 1


def test_errors_as_json(
    pg_url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With --json, the error is an object on stderr, whatever it is."""
    (tmp_path / "broken.py").write_text("1 / 0")
    cases = [
        ("jobs nope --json", exits.FAILED),
        ("slots nope --json", exits.FAILED),
        ("slots --id x --json", exits.USAGE),
        ("nonsense --json", exits.USAGE),
        ("jobs --json --database-url postgresql://127.0.0.1:1/x", exits.DATABASE),
        ("plan --json --app broken", exits.FAILED),
    ]
    for line, expected in cases:
        url = [] if "--database-url" in line else ["--database-url", pg_url]
        assert status([*line.split(), *url]) == expected
        out, err = capsys.readouterr()
        told = json.loads(err)
        assert (out, told["status"], bool(told["error"])) == ("", expected, True)
    assert "ZeroDivisionError" in told["traceback"]


def test_a_class_is_no_registry(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Named as what it is, not by its metaclass."""
    (tmp_path / "jobs_of_a_class.py").write_text(APP)
    assert say("plan --app jobs_of_a_class:Report") == exits.FAILED
    told = (
        "error: --app jobs_of_a_class:Report is the class Report; expected a "
        "JobRegistry, such as"
    )
    assert capsys.readouterr().err.startswith(told)


def test_the_slots_of_a_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """By its name, in its zone, without a database."""
    (tmp_path / "named_jobs.py").write_text(APP)
    assert (
        say("schedule next nightly --app named_jobs --after 2026-10-23T12:00Z -n 1")
        == exits.OK
    )
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "2026-10-24T02:00:00+02:00",
        "2026-10-24T00:00:00Z",
    ]


def test_plan_without_tables(
    pg_empty_url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A first deploy can be rehearsed, too."""
    (tmp_path / "first_jobs.py").write_text(APP)
    assert (
        status(["plan", "--app", "first_jobs", "--database-url", pg_empty_url])
        == exits.CHANGES
    )
    out, err = capsys.readouterr()
    assert "nightly  added" in out
    assert "02:00 Europe/Vienna: " in out
    assert err.splitlines()[0] == (
        "the tables are missing, so all jobs would be added; create them first: slotwise db upgrade"
    )


@pytest.mark.extended
@pytest.mark.parametrize("url", ["pg_url", "sqlite_url"])
def test_unknown_names(
    url: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of jobs and of tasks: status 1, and what to do."""
    place = ["--database-url", request.getfixturevalue(url)]
    for line, text in (
        (
            "slots nope",
            "no job 'nope' in this database; no worker has planned any job yet",
        ),
        ("explain nope", "no job 'nope' in this database; "),
        ("explain nope 2026-01-31T02:00Z", "no job 'nope' in this database; "),
        ("failures nope", "no job 'nope' in this database; "),
        (
            "trigger nope",
            "no job 'nope' in this database; start a worker that registers it, or "
            "see: slotwise jobs",
        ),
        (
            "tasks retry nope --yes",
            "no task 'nope' in this database; none is scheduled",
        ),
        (
            "tasks cancel nope --all --yes",
            "no task 'nope' in this database; none is scheduled",
        ),
        ("tasks list nope", "no task 'nope' in this database; none is scheduled"),
        (
            "tasks cancel nope x",
            "no task 'nope' has the id 'x'; it has ended, was cancelled, or was never scheduled",
        ),
    ):
        assert status([*line.split(), *place]) == exits.FAILED, line
        out, err = capsys.readouterr()
        assert text in err
        assert "gone" not in out


def test_a_task_without_rows(pg_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Live workers register it, so it is known: it has not failed, has no slots, and is no job."""

    @task(name="quiet")
    def quiet(ctx: Context) -> None: ...

    with JobRegistry(tasks=[quiet], database_url=pg_url, process_hook=False):
        for line, expected, text in (
            ("failures quiet", exits.OK, "no failures since "),
            ("slots quiet", exits.OK, "quiet: no slots in this range"),
            (
                "explain quiet",
                exits.OK,
                "quiet: waiting\n0 tasks are due; running: 0.",
            ),
            (
                "jobs quiet",
                exits.FAILED,
                "live workers register 'quiet' as a one-time task; see: slotwise tasks",
            ),
        ):
            assert status([*line.split(), "--database-url", pg_url]) == expected, line
            assert text in "".join(capsys.readouterr()), line


def test_a_limit_needs_the_application(
    pg_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The database does not know the limit that holds a task back: the answer names the option."""
    runs, may_end = threading.Event(), threading.Event()

    @task(name="limited", concurrency=1)
    def limited(ctx: Context) -> None:
        runs.set()
        may_end.wait(60)

    with JobRegistry(
        tasks=[limited], database_url=pg_url, process_hook=False
    ) as registry:
        registry.client.schedule_many(limited, [None] * 2)
        assert runs.wait(60)
        found = status(["explain", "limited", "--database-url", pg_url])
        may_end.set()
    out, err = capsys.readouterr()
    assert (found, "one task is due" in out) == (exits.OK, True), out
    assert "with --app MODULE" in err


def test_health_says_so(pg_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict is a word, when it is bad as when it is good."""
    assert status(["health", "--database-url", pg_url]) == exits.FAILED
    assert capsys.readouterr().err == "unhealthy: live workers: 0, wanted: 1\n"
    assert (
        status(["health", "--min-workers", "0", "--database-url", pg_url]) == exits.OK
    )
    assert capsys.readouterr().out.startswith("healthy: ")


def test_an_id_that_exists(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cures are options of the command."""
    given = ["tasks", "schedule", "mail", "--id", "a", "--database-url", sqlite_url]
    assert status(given) == exits.OK
    assert status([*given, "--if-exists", "raise"]) == exits.FAILED
    told = (
        "error: task 'mail' with id 'a' is already scheduled; choose another --id, or "
        "--if-exists keep\n"
    )
    assert capsys.readouterr().err == told


def test_grants_of_an_unknown_role(
    pg_url: str, pg_empty_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Role or tables are missing: the command that makes them."""
    grants = [
        "db",
        "grants",
        "--role",
        "worker",
        "--to",
        "no_such_role",
        "--database-url",
    ]
    assert status([*grants, pg_url]) == exits.FAILED
    told = (
        "error: --to no_such_role: there is no such role in this server; create it: "
        "createuser no_such_role\n"
    )
    assert capsys.readouterr().err == told
    assert (
        status([*grants[:-2], "postgres", "--database-url", pg_empty_url])
        == exits.DATABASE
    )
    assert "slotwise db upgrade" in capsys.readouterr().err


def test_a_missing_right(pg_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The cure is a command."""
    url = sa.make_url(pg_url)
    name = f"{url.database}_bare"
    with psycopg.connect(pg_url, autocommit=True) as sql:
        sql.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        try:
            bare = url.set(username=name, password="secret").render_as_string(
                hide_password=False
            )
            assert status(["jobs", "--database-url", bare]) == exits.DATABASE
        finally:
            sql.execute(f"DROP ROLE {name}")
    cure = (
        f", for role '{name}' [42501]; as the owner of the tables: slotwise db grants "
        "--role ROLE --to NAME\n"
    )
    assert cure in capsys.readouterr().err


def test_tasks_that_are_known(pg_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a row, of the ledger, and of a live worker; jobs are not among them."""

    @task(name="recorded", record="all")
    def recorded(ctx: Context) -> None: ...

    @task(name="registered")
    def registered(ctx: Context) -> None: ...

    @job(name="tick", schedule=Every("1h"))
    def tick(ctx: Context) -> None: ...

    with ManualWorker(JobRegistry(jobs=[tick], tasks=[recorded]), pg_url) as worker:
        worker.plan()
        worker.client.schedule(recorded)
        assert [event.outcome for event in worker.run_due()] == ["succeeded"]
    assert (
        status(
            ["tasks", "schedule", "waiting", "--at", "1h", "--database-url", pg_url]
        )
        == exits.OK
    )
    with JobRegistry(
        tasks=[registered], database_url=pg_url, process_hook=False, retention="0s"
    ):
        assert (
            status(["tasks", "list", "nope", "--database-url", pg_url]) == exits.FAILED
        )
    told = "error: no task 'nope' in this database; known are recorded, registered, waiting\n"
    said = capsys.readouterr()
    assert (said.err, "no such tasks" in said.out) == (told, False)


def test_a_task_that_was_cancelled(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """While it waited: it leaves no row, and nothing in the ledger. Each command says that this
    may be so.
    """
    assert (
        say(f"tasks schedule mail --id a --at 1h --database-url {sqlite_url}")
        == exits.OK
    )
    assert say(f"tasks cancel mail a --database-url {sqlite_url}") == exits.OK
    for line, text in (
        (
            "tasks list mail a",
            "it may have succeeded or been cancelled, which leaves no row",
        ),
        (
            "explain mail --id a",
            "it has ended without a record, was cancelled while it waited, or was never",
        ),
        ("tasks cancel mail a", "it has ended, was cancelled, or was never scheduled"),
    ):
        assert say(f"{line} --database-url {sqlite_url}") == exits.FAILED
        assert text in "".join(capsys.readouterr())


def test_a_job_is_not_scheduled(
    sqlite_url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The application knows it, before any worker has planned it."""
    (tmp_path / "planned_jobs.py").write_text(APP)
    assert (
        say(f"tasks schedule nightly --app planned_jobs --database-url {sqlite_url}")
        == exits.FAILED
    )
    told = (
        "error: 'nightly' is a job, which runs by its schedule; to run it now: "
        "slotwise trigger nightly\n"
    )
    assert capsys.readouterr().err == told


def test_a_task_under_the_name_of_a_job(
    pg_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused, also without --app; a row that is there nevertheless is explained."""

    @job(name="tick", schedule=Every("1h"))
    def tick(ctx: Context) -> None: ...

    @task(name="other")
    def other(ctx: Context) -> None: ...

    with JobRegistry(jobs=[tick], database_url=pg_url, process_hook=False):
        assert (
            status(
                ["tasks", "schedule", "tick", "--data", "{}", "--database-url", pg_url]
            )
            == exits.FAILED
        )
        told = (
            "error: 'tick' is a job, which runs by its schedule; to run it now: "
            "slotwise trigger tick\n"
        )
        assert capsys.readouterr() == ("", told)
        stranger = JobRegistry(tasks=[other], database_url=pg_url)
        stranger.client.schedule("tick", id="oops")
        stranger.database.close()
        assert (
            status(["explain", "tick", "--id", "oops", "--database-url", pg_url])
            == exits.OK
        )
        assert (
            "No live worker can: it is a one-time row under the name of a job"
            in capsys.readouterr().out
        )
