"""Django with several databases, under its own test runner: what tests and transactions may
reach.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from tests.contrib.servers import environment
from tests.databases import Databases

SETTINGS = """
import os
from psycopg.conninfo import conninfo_to_dict

def database(name):
    given = conninfo_to_dict(os.environ[name])
    found = {"NAME": given["dbname"], "HOST": given.get("host"), "PORT": given.get("port")}
    found |= {"USER": given.get("user"), "PASSWORD": given.get("password")}
    return {"ENGINE": "django.db.backends.postgresql", **found}

SECRET_KEY = "for tests"
USE_TZ = True
DATABASES = {"default": database("DEFAULT_URL"), "jobs": database("JOBS_URL"), "copy": database("DEFAULT_URL")}
DATABASES["direct"] = {**database("DEFAULT_URL"), "OPTIONS": {"application_name": "another address"}}
DATABASES["copy"]["TEST"] = DATABASES["direct"]["TEST"] = {"MIRROR": "default"}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "slotwise.contrib.django", "shop"]
SLOTWISE = {"DATABASE": os.environ["ALIAS"]}
"""

JOBS = """
from slotwise import Every, job, task

@task(name="work")
def work(ctx):
    print("the handler has run")

@job(name="tick", schedule=Every("1h"))
def tick(ctx): ...
"""

TESTS = """
import os, threading
from datetime import timedelta
from django.db import connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from shop.jobs import work
from slotwise import SlotwiseError
from slotwise.contrib.django import joining, registry, schedule
from slotwise.testing import ManualClock, ManualWorker

ALIAS = os.environ["ALIAS"]
CLIENT = registry().client  # held since before the tests

def run_due():
    with ManualWorker(registry(), registry().settings.database_url) as worker:
        return worker.run_due()

class Refused:
    def test_it(self):
        for use in (
            lambda: schedule(work), lambda: CLIENT.schedule(work), lambda: registry().client.list(work),
            lambda: registry().inspect.tasks(), run_due, lambda: registry().start(), lambda: registry().run_now("tick"),
        ):
            with (
                self.subTest(use=use.__code__.co_names),
                self.assertRaisesRegex(AssertionError, rf"'{ALIAS}' are not allowed .* [aA]dd '{ALIAS}' to"),
            ):
                use()
        self.assertIsNone(registry().worker)
        self.assertEqual(set(registry().definitions), {"work", "tick"})

    def test_other_databases_of_the_kit(self):
        with ManualWorker([work]) as worker:
            worker.client.schedule(work)
            worker.tick("1s")
            self.assertEqual(len(worker.run_due()), 1)

class Simple(Refused, SimpleTestCase):
    pass

class WithoutTheAlias(Refused, TestCase):
    databases = {"default"} - {ALIAS}

class Rolled(TestCase):
    databases = {"default", ALIAS}

    def test_it(self):
        schedule(work)
        self.assertEqual(len(CLIENT.list(work, connection=joining())), 1)
        self.assertEqual(CLIENT.list(work), [])

class Committed(TransactionTestCase):
    databases = {"default", ALIAS}

    def test_it(self):
        self.assertIn("/test_", registry().settings.database_url)
        schedule(work)
        now = registry().inspect.now() + timedelta(seconds=1)
        with ManualWorker(registry(), registry().settings.database_url, ManualClock(now)) as worker:
            self.assertEqual([event.outcome for event in worker.run_due()], ["succeeded"])
"""


@dataclass(frozen=True)
class Project:
    """A project with two databases, both with data of development."""

    directory: Path
    default: str
    jobs: str

    def django(self, *words: str, alias: str = "jobs", status: int = 0) -> str:
        """Run a command of Django; return what it says."""
        env = environment(
            "", DEFAULT_URL=self.default, JOBS_URL=self.jobs, ALIAS=alias
        )
        path = os.pathsep.join(
            filter(None, [str(self.directory), os.environ.get("PYTHONPATH")])
        )
        env |= {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-m", "django", *words],
            cwd=self.directory,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def script(self, text: str, alias: str = "jobs") -> list[str]:
        """Run a script in the project's shell; return its lines."""
        (self.directory / "script.py").write_text(
            f"import django\ndjango.setup()\n{text}"
        )
        return self.django("shell", "-c", text, alias=alias).splitlines()

    def tasks(self) -> list[tuple[str, str | None]]:
        """Return the tasks of development in both databases, with the workers that hold them."""
        found = []
        for url in (self.default, self.jobs):
            with psycopg.connect(url) as connection:
                found += connection.execute(
                    "SELECT task_instance, picked_by FROM scheduled_tasks"
                ).fetchall()
        return found


@pytest.fixture
def project(databases: Databases, tmp_path: Path) -> Iterator[Project]:
    (tmp_path / "settings.py").write_text(SETTINGS)
    app = tmp_path / "shop"
    app.mkdir()
    for name, text in {"__init__": "", "jobs": JOBS, "tests": TESTS}.items():
        (app / f"{name}.py").write_text(text)
    with databases.provisioned() as default, databases.provisioned() as jobs:
        for url in (default, jobs):
            with psycopg.connect(url) as connection:
                connection.execute(
                    "INSERT INTO scheduled_tasks (task_name, task_instance, "
                    "execution_time, picked, version) "
                    "VALUES ('work', 'of development', now() - interval '1 day', false, 1)"
                )
        with psycopg.connect(jobs) as connection:  # both are clones of one database
            connection.execute(
                "UPDATE scheduled_meta SET value = 'other' WHERE key = 'installation_id'"
            )
        yield Project(tmp_path, default, jobs)


OF_DEVELOPMENT = [("of development", None)] * 2


@pytest.mark.extended
@pytest.mark.parametrize(
    ("alias", "tests"),
    [
        ("jobs", "shop.tests"),
        pytest.param("jobs", "shop.tests.Simple", marks=pytest.mark.extended),
        pytest.param("default", "shop.tests.Simple", marks=pytest.mark.extended),
    ],
)
def test_tests_never_reach_the_database_of_development(
    project: Project, alias: str, tests: str
) -> None:
    """They use the test database, or are refused by Django's own rule: TestCase.databases."""
    if alias == "default":
        (project.directory / "shop" / "tests.py").write_text(
            TESTS.replace("class WithoutTheAlias", "class _Unused")
        )
    assert "\nOK\n" in project.django("test", "--noinput", tests, alias=alias)
    assert project.tasks() == OF_DEVELOPMENT


SCHEDULED_IN_ATOMIC = """
from django.db import transaction
from shop.jobs import work
from slotwise.contrib.django import joining, registry, schedule
with transaction.atomic():
    try:
        schedule(work)
    except Exception as error:
        print(type(error).__name__, error)
    transaction.on_commit(lambda: print(schedule(work).status))
    print(registry().client.schedule(work).status, len(registry().client.list(work)))
with transaction.atomic(using="jobs"):
    schedule(work)
    print(len(registry().client.list(work)), len(registry().client.list(work, connection=joining())))
"""


RECURRING_IN_ATOMIC = """
from django.db import transaction
from shop.jobs import work
from slotwise import RecurringItem
from slotwise.contrib.django import joining, registry
client = registry().client
def make():
    client.schedule_recurring(work, "c-1", "EVERY|1h", connection=joining())
    found = client.sync_schedules(work, [RecurringItem("c-2", "EVERY|1h")], scope="s", connection=joining())
    print(*found.added, client.unschedule_recurring(work, "c-3", connection=joining()))
try:
    with transaction.atomic(using="jobs"):
        make()
        raise ValueError
except ValueError:
    print(len(registry().inspect.instances("work")))
with transaction.atomic(using="jobs"):
    make()
print(len(registry().inspect.instances("work")))
"""


def test_recurring_instances_join_atomic(project: Project) -> None:
    """They commit with Django's transaction, or not at all."""
    made = "c-2 False"
    assert project.script(RECURRING_IN_ATOMIC)[-4:] == [made, "0", made, "2"]


def test_a_transaction_of_another_database_is_refused(project: Project) -> None:
    """The task would commit at once, and stay if that transaction rolls back."""
    assert project.script(SCHEDULED_IN_ATOMIC)[-4:] == [
        "ConfigurationError schedule() in transaction.atomic of 'default', but "
        "slotwise's tables are in 'jobs': the "
        "task would stay if that transaction rolls back; write "
        "transaction.on_commit(lambda: schedule(…)), or call "
        "registry().client.schedule(…), which commits at once",
        "scheduled 2",
        "scheduled",
        "3 4",
    ]


USING = """
from contextlib import ExitStack
from django.db import connections, transaction
from shop.jobs import work
from slotwise.contrib.django import registry, schedule
for entered in (["default", "jobs", "copy", "direct"], [], ["default"]):
    with ExitStack() as stack:
        for alias in entered:
            stack.enter_context(transaction.atomic(alias))
        for alias in ("default", "jobs", "copy", "direct", "jbos", 7):
            try:
                print(alias, schedule(work, using=alias).status)
            except Exception as error:
                print(alias, type(error).__name__, error)
with transaction.atomic("default"), transaction.atomic("jobs"):
    for alias in ("default", "jobs"):
        try:
            print(alias, registry().client.schedule(work, connection=connections[alias]).status)
        except Exception as error:
            print(alias, type(error).__name__, error)
"""


@pytest.mark.extended
@pytest.mark.parametrize(
    "tables", ["with tables", pytest.param("without", marks=pytest.mark.extended)]
)
def test_the_alias_of_another_database_is_refused(
    project: Project, tables: str
) -> None:
    """Also if it has tables of slotwise, and outside a transaction: no worker of this project
    would see the task.
    """
    if tables == "without":
        with psycopg.connect(project.jobs) as connection:
            connection.execute("ALTER TABLE scheduled_meta RENAME TO away")
    lines = project.script(USING, alias="default")[-20:]
    refusal = (
        r"jobs ConfigurationError using='jobs' leads to '\w+' at host \S+, port "
        r"\d+, but slotwise's tables are in "
        r"'default', '\w+' at host \S+, port \d+; name an alias of that database, "
        r"or leave using= out"
    )
    wrong = [
        "jbos ConfigurationError using='jbos' is no alias in DATABASES; did you mean 'jobs'?",
        "7 ConfigurationError using=7 is no alias in DATABASES; known: copy, default, direct, jobs",
    ]
    for first in (0, 6):
        assert lines[first] == "default scheduled"
        assert lines[first + 2 : first + 6] == [
            "copy scheduled",
            "direct scheduled",
            *wrong,
        ]
    apart = (
        "ConfigurationError schedule() in transaction.atomic of 'default', but "
        "slotwise's tables are in"
    )
    assert (lines[12], lines[16:18]) == ("default scheduled", wrong)
    assert lines[14].startswith(f"copy {apart} 'copy'")
    assert lines[15].startswith(f"direct {apart} 'direct'")
    for refused in lines[1:18:6]:
        assert re.fullmatch(refusal, refused), refused
    assert lines[18] == "default scheduled"
    leads_away = (
        "jobs SchemaMissing"
        if tables == "without"
        else "jobs ConfigurationError work: the connection leads to"
    )
    assert lines[19].startswith(leads_away)
    assert len(project.tasks()) == 2 + 3 + 3 + 1 + 1


WITHOUT_TABLES = """
from shop.jobs import work
from slotwise.contrib.django import registry, schedule
for use in (lambda: schedule(work), lambda: registry().run_now("tick"), lambda: registry().start()):
    try:
        use()
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.extended
@pytest.mark.parametrize(
    ("alias", "option"),
    [
        ("jobs", " --database jobs"),
        pytest.param("default", "", marks=pytest.mark.extended),
    ],
)
def test_the_cure_for_missing_tables_is_migrate(
    project: Project, alias: str, option: str
) -> None:
    """With the alias of slotwise's tables, as the page on Django writes it."""
    with psycopg.connect(
        project.jobs if alias == "jobs" else project.default
    ) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    for line in project.script(WITHOUT_TABLES, alias=alias)[-3:]:
        assert line.startswith(
            "SchemaMissing the tables scheduled_* are missing in this database"
        )
        assert line.endswith(f"run: python manage.py migrate slotwise{option}")


@pytest.mark.extended
def test_dumpdata(project: Project) -> None:
    """The admin's pages have no tables: nothing is dumped for them, and nothing fails."""
    project.django("migrate", "--verbosity", "0")
    for options in ([], ["--all"], ["slotwise"], ["--natural-foreign"]):
        assert '"slotwise.' not in project.django("dumpdata", *options)
    assert "No changes detected" in project.django("makemigrations", "--check")
