"""Django: one history of migrations, scheduling in its transactions, settings, connections,
commands.
"""

from __future__ import annotations

import asyncio
import html
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test.utils import override_settings
from tests.kit.events import SettledDead

from slotwise import ConfigurationError, SlotwiseError
from slotwise.contrib.django import aschedule, joining, registry, schedule
from slotwise.contrib.django.management.commands.slotwise import Command
from slotwise.contrib.django.project import database_address, fresh_connections
from slotwise.contrib.events import Events
from slotwise.testing import ManualClock, ManualWorker, override, scheduled


@contextmanager
def worker(url: str) -> Iterator[ManualWorker]:
    with ManualWorker(
        registry(), url, ManualClock(registry().inspect.now() + timedelta(seconds=1))
    ) as made:
        yield made


def fail_in(body: Callable[[], object]) -> None:
    """Do this in a transaction that rolls back."""
    try:
        with transaction.atomic():
            body()
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass


def test_the_registry_has_the_apps_jobs_and_the_settings(shop: str) -> None:
    """Jobs of the apps' modules, constructor arguments from the settings, keys in capitals or not,
    the database.
    """
    found = registry()
    assert sorted(found.definitions) == [
        "count-orders",
        "django:default:default",
        "django:default:mail",
        "django:patient",
        "send-mail",
        "tidy",
    ]
    handler: Any = found.definitions["tidy"].handler
    assert handler.__self__.site == "shop.example"
    assert (found.settings.poll_interval.total_seconds(), found.settings.threads) == (
        1,
        2,
    )
    assert found.inspect.health().live_workers == 0
    assert registry() is found


def test_a_task_commits_with_the_transaction(shop: str) -> None:
    """Within transaction.atomic on Django's own connection: together with the order, or not at
    all.
    """
    from tests.contrib.djangoshop.jobs import send_mail
    from tests.contrib.djangoshop.models import Order

    with transaction.atomic():
        order = Order.objects.create(email="ann@example.com")
        receipt = schedule(send_mail.call(order=order.pk))
        assert (
            registry().client.get(send_mail, receipt.id) is None
        )  # nobody else sees it yet
        assert (
            registry().client.get(send_mail, receipt.id, connection=joining())
            is not None
        )
    fail_in(
        lambda: registry().client.schedule(
            send_mail, {"order": order.pk}, connection=connection
        )
    )
    with transaction.atomic():
        fail_in(lambda: schedule(send_mail, {"order": order.pk}))  # a savepoint
    assert [found.id for found in registry().client.list(send_mail)] == [receipt.id]
    with worker(shop) as made:
        assert [event.outcome for event in made.run_due()] == ["succeeded"]  # type: ignore[union-attr]
    order.refresh_from_db()
    assert order.is_mailed


def test_an_event_commits_with_the_transaction(shop: str) -> None:
    events = Events()
    events.use(registry().client)
    with transaction.atomic():
        first = events.publish(connection, "order.paid", {"order": 1}, key=1)
    fail_in(lambda: events.publish(connection, "order.paid", {"order": 2}, key=1))
    with transaction.atomic():
        third = events.publish(connection, "order.paid", {"order": 3}, key=1)
    with connection.cursor() as cursor:
        cursor.execute("select id from scheduled_events order by id")
        assert [id for (id,) in cursor.fetchall()] == [first, third]


def test_reading_in_djangos_transaction_keeps_types(shop: str) -> None:
    """Django registers loaders of its own for times and JSON; ours read what psycopg reads."""
    from tests.contrib.djangoshop.jobs import send_mail

    receipt = schedule(send_mail, {"order": 1}, delay="1h")
    with override_settings(USE_TZ=False):
        connection.close()
        with transaction.atomic():
            inside = registry().client.get(
                send_mail, receipt.id, connection=connection
            )
            with (
                connection.cursor() as cursor
            ):  # Django's own cursors are as they were
                cursor.execute("select now(), '{}'::jsonb")
                now, text = cursor.fetchone()
        connection.close()
    assert (now.tzinfo, text) == (None, "{}")
    assert inside == registry().client.get(send_mail, receipt.id)


def test_the_kit_captures_tasks_of_the_project(shop: str) -> None:
    """In Django's transaction, which rolls back; and on a database of the kit, which the project's
    must not replace.
    """
    from tests.contrib.djangoshop.jobs import send_mail
    from tests.contrib.djangoshop.models import Order

    with scheduled(registry()) as tasks, transaction.atomic():
        order = Order.objects.create(email="ann@example.com")
        schedule(send_mail, {"order": order.pk})
        with pytest.raises(ConfigurationError, match="complete_in"):
            tasks.run(tasks.one(send_mail, order=order.pk))
        order.refresh_from_db()  # on the same connection, which is as it was
        transaction.set_rollback(True)
    with override(registry()):
        schedule(send_mail, {"order": 1})
        assert len(registry().client.list(send_mail)) == 1
        assert registry().database.in_memory
    assert registry().client.list(send_mail) == []


def test_scheduling_on_commit(shop: str) -> None:
    """The callback schedules at once, after the commit."""
    from tests.contrib.djangoshop.jobs import send_mail

    with transaction.atomic():
        transaction.on_commit(lambda: schedule(send_mail, {"order": 1}))
        assert registry().client.list(send_mail) == []
    assert len(registry().client.list(send_mail)) == 1


def test_scheduling_from_async_code(shop: str) -> None:
    """The coroutine uses the thread of Django's connections."""
    from tests.contrib.djangoshop.jobs import send_mail

    async def call() -> str:
        return (await aschedule(send_mail, {"order": 1})).status

    assert asyncio.run(call()) == "scheduled"

    async def block() -> None:
        schedule(send_mail, {"order": 1})

    with pytest.raises(
        SynchronousOnlyOperation,
        match=r"would block the event loop; write: await aschedule\(",
    ):
        asyncio.run(block())


def test_a_connection_outside_a_transaction_is_refused(shop: str) -> None:
    """The line names the alias and the cure."""
    from tests.contrib.djangoshop.jobs import send_mail

    with pytest.raises(
        SlotwiseError,
        match=r"'default' is in no transaction; write: with transaction.atomic\(\)",
    ):
        registry().client.schedule(send_mail.call(1), connection=connection)


def test_async_handlers_use_the_orm(shop: str) -> None:
    """Their queries run on Django's thread; its connections are closed there."""
    from tests.contrib.djangoshop.jobs import count_orders
    from tests.contrib.djangoshop.models import Order

    Order.objects.create(email="ann@example.com")
    receipt = schedule(count_orders)
    with worker(shop) as made:
        made.run_due()
        found = made.client.result(count_orders, receipt.id)
    assert found is not None
    assert found.result == 1


def test_connections_are_closed_around_handlers(shop: str) -> None:
    """A connection that is too old does not reach the next handler; within a transaction it
    stays.
    """
    ctx: Any = None
    connection.ensure_connection()
    first = connection.connection
    with transaction.atomic():
        with fresh_connections(ctx):
            assert connection.connection is first
        with connection.cursor() as cursor:
            cursor.execute("select 1")
    connection.close_at = 0.0
    with fresh_connections(ctx):
        assert connection.connection is None
        connection.ensure_connection()
        assert connection.connection is not first
    assert connection.connection is None  # CONN_MAX_AGE is 0


def test_migrations_are_slotwises_own_history(
    databases: Any, django_project: Callable[[str], None], pg_empty_url: str
) -> None:
    """``migrate`` stamps slotwise's version table; ``db upgrade`` finds nothing to do; zero drops
    the tables.
    """
    django_project(pg_empty_url)
    call_command("migrate", "slotwise", verbosity=0)
    from slotwise.migrate.revisions import _script_directory

    assert _revision() == _script_directory().get_current_head()
    call_command("migrate", "slotwise", verbosity=0)
    call_command("migrate", "slotwise", "0001", verbosity=0)
    assert _revision() == "sw0001"
    call_command("migrate", "slotwise", "zero", verbosity=0)
    assert not [
        name
        for name in connection.introspection.table_names()
        if name.startswith("scheduled_slots")
    ]
    connections.close_all()


def _revision() -> str:
    with connection.cursor() as cursor:
        cursor.execute("select version_num from scheduled_alembic_version")
        (found,) = cursor.fetchone()
    return str(found)


def test_tables_that_exist_are_adopted_by_the_migration(
    django_project: Callable[[str], None], pg_url: str
) -> None:
    """``slotwise db upgrade`` first, then ``migrate``: nothing to do."""
    django_project(pg_url)
    call_command("migrate", "slotwise", verbosity=0)
    connections.close_all()


def test_each_revision_has_a_migration() -> None:
    """A later revision of the tables comes with a migration, so that ``migrate`` applies it."""
    from slotwise.contrib.django import migrations
    from slotwise.migrate.revisions import _script_directory

    ours = list(Path(str(migrations.__file__)).parent.glob("0*.py"))
    assert len(ours) == len(list(_script_directory().walk_revisions()))


def test_makemigrations_and_checks_are_clean(shop: str) -> None:
    """The project's models need no migration, and the system checks find nothing."""
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
    out = io.StringIO()
    call_command("check", stdout=out, databases=["default"], fail_level="WARNING")
    assert "no issues" in out.getvalue()


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown setting": (
        {"POLL_INTERVALL": "1s"},
        r"settings\.SLOTWISE: POLL_INTERVALL .* mean poll_interval\?",
    ),
    "a wrong value": (
        {"THREADS": 0},
        r"settings\.SLOTWISE: THREADS must be a whole number from 1",
    ),
    "no such alias": (
        {"DATABASE": "jobs"},
        r"SLOTWISE\['DATABASE'\] is 'jobs', which is no alias in DATABASES; known",
    ),
    "an address": (
        {"DATABASE_URL": "sqlite://"},
        r"SLOTWISE\['DATABASE_URL'\]: name an alias of DATABASES",
    ),
    "no such module": (
        {"JOBS": ["nowhere.jobs"]},
        r"SLOTWISE\['JOBS'\]: there is no module nowhere; ",
    ),
    "no such listener": (
        {"LISTENERS": ["nowhere.listen"]},
        r"SLOTWISE\['LISTENERS'\]: 'nowhere\.listen': there is no module nowhere; ",
    ),
    "a wrong list": (
        {"LISTNERS": []},
        r"SLOTWISE\['LISTNERS'\] is not a setting; did you mean 'LISTENERS'\?",
    ),
    "a setting of the registry": (
        {"TASKS": []},
        r"SLOTWISE: TASKS is not a setting; ",
    ),
    "the registry's keyword": (
        {"config": "x.toml"},
        r"SLOTWISE: CONFIG is not a setting; ",
    ),
    "two spellings": (
        {"threads": 1, "THREADS": 2},
        r"SLOTWISE: THREADS is the same setting as threads; keep one",
    ),
    "two spellings of ours": (
        {"jobs": [], "JOBS": []},
        r"SLOTWISE\['JOBS'\] is there twice: 'jobs' and 'JOBS'; keep one",
    ),
    "a key of nothing": (
        {7: 1},
        r"settings\.SLOTWISE has the key 7; write a string, e\.g\. 'THREADS'",
    ),
    "an alias of nothing": (
        {"DATABASE": ["jobs"]},
        r"SLOTWISE\['DATABASE'\] is \['jobs'\], which is no alias in DATABASES",
    ),
    "a blank alias": (
        {"DATABASE": ""},
        r"SLOTWISE\['DATABASE'\] is '', which is no alias in DATABASES; known: default",
    ),
    "a module of nothing": (
        {"JOBS": 7},
        r"SLOTWISE\['JOBS'\] is 7; write names of modules, e\.g\. \['shop\.jobs'\]",
    ),
    "a blank module": (
        {"JOBS": ""},
        r"SLOTWISE\['JOBS'\] has ''; write the name of a module, e\.g\. 'shop\.jobs'",
    ),
    "one wrong module": (
        {"JOBS": ["tests.contrib.djangoshop.jobs", 7]},
        r"SLOTWISE\['JOBS'\] has 7; write the name of a module, e\.g\. 'shop\.jobs'",
    ),
    "a misspelt module": (
        {"JOBS": ["tests.contrib.djangoshop.jbos"]},
        r"SLOTWISE\['JOBS'\]: there is no module .*jbos; did you mean "
        r"'tests\.contrib\.djangoshop\.jobs'\?",
    ),
    "a listener of nothing": (
        {"LISTENERS": [7]},
        r"SLOTWISE\['LISTENERS'\]: listeners: 7 cannot be called",
    ),
    "no list": (
        {"INTERCEPTORS": 7},
        r"SLOTWISE\['INTERCEPTORS'\]: interceptors: 7 cannot be called",
    ),
    "no dotted path": (
        {"LISTENERS": "listen"},
        r"SLOTWISE\['LISTENERS'\]: 'listen' is no dotted path; write one",
    ),
    "a dotted path to nothing": (
        {"LISTENERS": ["tests.contrib.djangoshop.jobs.send_mial"]},
        r"SLOTWISE\['LISTENERS'\]: module tests\.contrib\.djangoshop\.jobs has no "
        r"'send_mial'; did you mean 'send_",
    ),
    "a lifespan of nothing": (
        {"LIFESPAN": 7},
        r"SLOTWISE\['LIFESPAN'\]: lifespan is 7; pass the function",
    ),
    "customize of nothing": (
        {"CUSTOMIZE": 7},
        r"SLOTWISE\['CUSTOMIZE'\]: customize is 7; pass a function",
    ),
    "no resolver's class": (
        {"RESOLVERS": [int]},
        r"SLOTWISE\['RESOLVERS'\]: resolvers: 0 has no method resolve",
    ),
    "a resolver without its argument": (
        {"RESOLVERS": ["slotwise.contrib.injection.SvcsServices"]},
        r"SLOTWISE\['RESOLVERS'\]: SvcsServices\(\) raised TypeError: "
        r".*'services'; name an instance",
    ),
    "no resolver": (
        {},
        r"Tidy.*no resolver supplies the argument Tidy\(… site: str …\)",
    ),
}


def test_one_value_stands_for_a_list_and_none_for_the_default(shop: str) -> None:
    """Keys of Django's own may be written in any case, too."""
    given = {
        "resolvers": {"site": "x"},
        "Listeners": None,
        "JOBS": "tests.contrib.djangoshop.jobs",
        "LIFESPAN": None,
    }
    with override_settings(SLOTWISE=given | {"DATABASE": None, "threads": None}):
        assert "tidy" in registry().definitions
        assert registry().hooks.listeners == ()


@pytest.mark.parametrize("value", [None, 7, "threads", [("THREADS", 1)]])
def test_settings_that_are_no_dictionary(shop: str, value: object) -> None:
    """One line, from the call and from the system check."""
    with (
        override_settings(SLOTWISE=value),
        pytest.raises(SlotwiseError, match=r"settings\.SLOTWISE is .*; write a dict"),
    ):
        registry()


@pytest.mark.parametrize(("given", "line"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_the_settings_is_one_line(
    shop: str, given: dict[str, Any], line: str
) -> None:
    """It names the setting; the system check reports it, too."""
    if line != MISTAKES["no resolver"][1]:
        given = {"RESOLVERS": [{"site": "x"}], **given}
    with override_settings(SLOTWISE=given):
        with pytest.raises(SlotwiseError, match=line) as raised:
            registry()
        assert "\n" not in str(raised.value)
        with pytest.raises(Exception, match=r"slotwise\.E001"):
            call_command("check")
    assert registry() is not None


ADDRESSES: dict[str, tuple[dict[str, Any], str]] = {
    "all of it": (
        {
            "NAME": "my/db",
            "USER": "ann@shop",
            "PASSWORD": "p:w d",
            "HOST": "db",
            "PORT": 5433,
        },
        "postgresql://ann%40shop:p%3Aw%20d@/my%2Fdb?host=db&port=5433",
    ),
    "options": (
        {
            "NAME": "d",
            "OPTIONS": {
                "sslmode": "require",
                "pool": True,
                "options": "-c a=b",
                "assume_role": "r",
            },
        },
        "postgresql:///d?sslmode=require&options=-c%20a%3Db%20-c%20role%3Dr",
    ),
    "a service": (
        {"NAME": "", "OPTIONS": {"service": "shop"}},
        "postgresql:///?service=shop",
    ),
}


@pytest.mark.parametrize(("given", "url"), ADDRESSES.values(), ids=ADDRESSES)
def test_the_address_is_djangos(shop: str, given: dict[str, Any], url: str) -> None:
    """What DATABASES says about a PostgreSQL is what slotwise connects to."""
    kept = dict(connections["default"].settings_dict)
    try:
        connections["default"].settings_dict.update(
            {"HOST": "", "PORT": "", "USER": "", "PASSWORD": ""} | given
        )
        assert database_address("default") == url
    finally:
        connections["default"].settings_dict.update(kept)


def test_commands_know_the_project(
    shop: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """``manage.py slotwise …`` is the command line: its options, its output, its exit status."""
    for name in ("SLOTWISE_DATABASE_URL", "SLOTWISE_TABLE_PREFIX"):
        monkeypatch.setenv(name, "")  # restored afterwards
    call_command("slotwise", "db", "check")
    Command().run_from_argv(
        [
            "manage.py",
            "slotwise",
            "db",
            "check",
            "--settings",
            "x",
            "--pythonpath=x",
            "--no-color",
        ]
    )
    call_command("slotwise", "workers")
    assert capfd.readouterr().out.endswith(
        "no workers; start one: python manage.py slotwise worker\n"
    )
    call_command("slotwise", "run", "tidy", "--json")
    assert (
        json.loads(capfd.readouterr().out.splitlines()[-1])["outcome"] == "succeeded"
    )
    with pytest.raises(SystemExit, match="1"):
        call_command("slotwise", "health")  # no worker is alive
    with pytest.raises(SystemExit, match="2"):
        call_command("slotwise", "no-such-command")


def test_the_admin_reads(shop: str) -> None:
    """Pages of jobs with their slots, tasks and workers; nothing can be changed, and permissions
    are Django's.
    """
    from django.contrib.auth.models import Permission, User
    from django.test import Client
    from tests.contrib.djangoshop.jobs import send_mail

    schedule(send_mail, {"order": 1}, delay="1h")
    with worker(shop) as made:
        made.operations.trigger("tidy")
        made.run_due()
    http = Client()
    http.force_login(User.objects.create_superuser("ann"))
    pages = {
        "": "slotwise",
        "job/": ">02:00 UTC<",
        "job/tidy/change/": "succeeded",
        "task/": "send-mail",
    }
    for page, text in {
        **pages,
        "task/send-mail/change/": "waiting",
        "worker/": "nothing yet",
    }.items():
        answer = http.get(f"/admin/slotwise/{page}")
        assert (answer.status_code, text in answer.content.decode()) == (200, True), (
            answer.content.decode()
        )
    slots = http.get("/admin/slotwise/job/tidy/change/").content.decode()
    seconds = r">\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}<"
    assert re.search(seconds, slots), slots
    assert http.get("/admin/slotwise/job/add/").status_code == 404
    assert http.post("/admin/slotwise/job/tidy/delete/").status_code == 404
    for unknown in ("job/nosuch", "task/nosuch", "worker/nosuch", "job/%00"):
        page = f"/admin/slotwise/{unknown}/change/"
        assert http.get(page).status_code == 404, page
    bob = User.objects.create_user("bob", is_staff=True)
    http.force_login(bob)
    assert http.get("/admin/slotwise/job/").status_code == 403
    bob.user_permissions.add(Permission.objects.get(codename="view_job"))
    assert http.get("/admin/slotwise/job/").status_code == 200


def test_the_admin_operates(shop: str) -> None:
    """With the permission to change, in the user's name; each operation is in the audit."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    with worker(shop) as made:
        made.operations.trigger("tidy")
        made.run_due()
    http = Client(enforce_csrf_checks=True)
    page = "/admin/slotwise/job/tidy/change/"
    bob = User.objects.create_user("bob", is_staff=True)
    bob.user_permissions.add(Permission.objects.get(codename="view_job"))
    http.force_login(bob)
    assert 'value="pause"' not in http.get(page).content.decode()
    bob.user_permissions.add(Permission.objects.get(codename="change_job"))
    text = http.get(page).content.decode()
    assert 'value="pause"' in text
    assert http.post(page, {"operation": "pause"}).status_code == 403
    token = http.cookies["csrftoken"].value

    def do(operation: str) -> str:
        given = {"operation": operation, "note": "why", "csrfmiddlewaretoken": token}
        answer = http.post(page, given, follow=True)
        return str(answer.content.decode()) if answer.status_code == 200 else ""

    assert "Paused tidy" in do("pause")
    assert "Already paused: tidy" in do("pause")
    paused = http.get(page).content.decode()
    assert "paused: paused by bob" in paused, paused
    for label in ("schedule", "next slot", "failures in a row"):
        assert f'<th scope="row">{label}</th>' in paused, label
    assert "Resumed tidy" in do("resume")
    assert "Started tidy as the slot" in do("run now")
    assert "Found no slot of tidy" in do("retry")
    assert do("delete") == ""
    with worker(shop) as made:
        entries = [one for one in made.inspect.audit("tidy") if one.author == "bob"]
    assert [(one.operation, one.note) for one in reversed(entries)] == [
        ("pause", "why"),
        ("resume", "why"),
        ("trigger", "why"),
    ]
    bob.user_permissions.clear()
    bob.user_permissions.add(Permission.objects.get(codename="view_job"))
    assert do("pause") == ""


def test_the_admin_schedules(shop: str) -> None:
    """A task, or a recurring instance, with data as JSON; Django's log has who did it, and why."""
    from django.contrib.admin.models import LogEntry
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    page = "/admin/slotwise/task/send-mail/change/"
    http = Client()
    bob = User.objects.create_user("bob", is_staff=True)
    bob.user_permissions.add(Permission.objects.get(codename="view_task"))
    http.force_login(bob)
    assert page in http.get("/admin/slotwise/task/").content.decode()  # none waits yet
    schedule(send_mail_of_the_shop(), {"order": 1}, delay="1h")
    assert 'value="schedule"' not in http.get(page).content.decode()
    assert http.post(page, {"operation": "schedule"}).status_code == 403
    bob.user_permissions.add(Permission.objects.get(codename="change_task"))
    assert 'value="schedule"' in http.get(page).content.decode()

    def do(**given: str) -> str:
        answer = http.post(
            page, {"operation": "schedule", "note": "why", **given}, follow=True
        )
        assert answer.status_code == 200
        return html.unescape(answer.content.decode())

    data = '{"order": 7}'
    assert "Scheduled: send-mail o-7" in do(data=data, id="o-7", delay="2h")
    assert "Exists: send-mail o-7" in do(data=data, id="o-7")
    recurring = do(data=data, id="o-8", schedule="30 4 * * *")
    assert "Scheduled: send-mail o-8, 30 4 * * *, next slot" in recurring
    listed = http.get(page).content.decode()
    assert "<td>o-8</td>" in listed, listed
    assert "<td>04:30" in listed, re.findall("<tr>.*</tr>", listed)
    assert '<th scope="row">recurring instances</th><td>1</td>' in listed
    assert "ata is no JSON" in do(data="{")
    assert "an id and no delay" in do(data=data, schedule="@daily")
    assert "error\">'soon' is not a duration" in do(data=data, delay="soon")
    unknown = page.replace("send-mail", "send-mial")
    given = {"operation": "schedule", "data": data}
    told = http.post(unknown, given, follow=True).content.decode()
    assert "did you mean &#x27;send-mail&#x27;" in told, told
    assert "errorlist" in (said := do(data="[1, 2]")) or "error" in said
    with worker(shop) as made:
        assert len(made.inspect.tasks("send-mail")) == 2
        (line,) = made.inspect.instances("send-mail")
    assert line.id == "o-8"
    told = [(one.user.username, one.change_message) for one in LogEntry.objects.all()]
    assert len(told) == 3
    assert ("bob", "Scheduled: send-mail o-7: why") in told


def send_mail_of_the_shop() -> Any:
    from tests.contrib.djangoshop.jobs import send_mail

    return send_mail


def test_the_admin_without_the_tables(
    django_project: Callable[[str], None], shop: str
) -> None:
    """The page says what is missing, in one line."""
    from django.contrib.auth.models import User
    from django.test import Client

    http = Client()
    http.force_login(User.objects.create_superuser("ann"))
    with override_settings(
        SLOTWISE={"TABLE_PREFIX": "other_", "RESOLVERS": [{"site": "x"}]}
    ):
        answer = http.get("/admin/slotwise/job/")
    assert answer.status_code == 200
    (problem,) = re.findall('<p class="errornote">(.*)</p>', answer.content.decode())
    assert "see what is missing: python manage.py slotwise db check" in problem


def test_cures_name_the_projects_command(shop: str) -> None:
    """They can be pasted; a message that is raised again is not changed twice."""
    for text, cure in (
        (
            "missing; run: slotwise db upgrade",
            "missing; run: python manage.py migrate slotwise",
        ),
        (
            "missing; run: slotwise db upgrade --schema a-b",
            "missing; run: python manage.py migrate slotwise",
        ),
        (
            "run: slotwise db upgrade --schema jobs --adopt",
            "run: python manage.py slotwise db upgrade --schema jobs --adopt",
        ),
        (
            "start afresh: slotwise db downgrade, then slotwise db upgrade",
            "start afresh: python manage.py slotwise db downgrade, then python "
            "manage.py migrate slotwise",
        ),
        (
            "adopt it with `slotwise db upgrade --adopt`",
            "adopt it with `python manage.py slotwise db upgrade --adopt`",
        ),
        (
            "none; start one: slotwise worker --app …",
            "none; start one: python manage.py slotwise worker",
        ),
        (
            "find such rows with `slotwise health`",
            "find such rows with `python manage.py slotwise health`",
        ),
        (
            "not a setting: slotwise never deletes rows",
            "not a setting: slotwise never deletes rows",
        ),
    ):
        assert str(SlotwiseError(str(SlotwiseError(text)))) == cure


def test_the_cure_of_a_dead_task_names_the_projects_command(shop: str) -> None:
    """In the worker's log, and in the task's explanation."""
    from tests.contrib.djangoshop.tasks import fail

    task = fail.enqueue("no").id  # it has one attempt
    with worker(shop) as made:
        (dead,) = [event for event in made.run_due() if isinstance(event, SettledDead)]
    cure = f"python manage.py slotwise tasks retry django:default:default {task}"
    assert dead.cure == cure
    assert cure in str(registry().inspect.explain_task("django:default:default", task))


IN_MEMORY = """
import sys
from contextlib import nullcontext
import django
from django.conf import settings
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import call_command

file = sys.argv[1]
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": file}},
    INSTALLED_APPS=["slotwise.contrib.django"], SLOTWISE={"JOBS": ["jobs"]},
)
django.setup()
from django.db import transaction
from slotwise.contrib.django import schedule
from slotwise.errors import SlotwiseError
call_command("check")
call_command("migrate", verbosity=0)
for context in (transaction.atomic(), nullcontext()):
    with context:
        try:
            print(schedule("work").status)
        except SlotwiseError as error:
            print(error)
"""


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (
            "test.sqlite3",
            [
                "DATABASES['default'] is sqlite: a task cannot join its "
                "transaction.atomic; schedule in "
                "transaction.on_commit",
                "scheduled",
            ],
        ),
        pytest.param(
            ":memory:",
            [
                "DATABASES['default'] is SQLite in memory, which slotwise's own "
                "connections cannot see; use a file (in "
                "tests: TEST = {'NAME': 'test.sqlite3'}), or PostgreSQL"
            ]
            * 2,
            marks=pytest.mark.extended,
        ),
    ],
)
def test_sqlite(tmp_path: Path, file: str, said: list[str]) -> None:
    """A file works outside transactions; in memory, where tests of a project run, only scheduling
    is refused.
    """
    (tmp_path / "jobs.py").write_text(
        "from slotwise import task\n@task(name='work')\ndef work(ctx): ...\n"
    )
    environment = {
        name: text for name, text in os.environ.items() if name != "DATABASE_URL"
    }
    done = subprocess.run(
        [sys.executable, "-c", IN_MEMORY, file],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (0, said), done.stderr
    assert ("slotwise.W001" in done.stderr) == (file == ":memory:")
