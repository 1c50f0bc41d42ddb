"""The backend of Django's TASKS: what its documentation promises, on Django 6 or with the package
django-tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import django
import pytest
from django.core.management import call_command
from django.db import transaction
from django.test.utils import override_settings
from django.utils import timezone

from slotwise import ConfigurationError, SlotwiseError
from slotwise.contrib.django import registry
from slotwise.contrib.django.backend import backend_tasks
from slotwise.testing import ManualClock, ManualWorker

pytestmark = pytest.mark.usefixtures("shop")


@pytest.fixture
def tasks(shop: str) -> Any:
    """The application's module of tasks, which can be imported once Django is set up."""
    from tests.contrib.djangoshop import tasks

    return tasks


@pytest.fixture
def library() -> Any:
    """The library that defines tasks and their errors."""
    if django.VERSION >= (6,):
        from django import tasks
        from django.tasks import exceptions, signals
    else:
        import django_tasks as tasks
        from django_tasks import exceptions, signals
    assert exceptions
    assert signals
    return tasks


@contextmanager
def worker(shop: str) -> Iterator[ManualWorker]:
    with ManualWorker(
        registry(), shop, ManualClock(registry().inspect.now() + timedelta(seconds=1))
    ) as made:
        yield made


def work(shop: str) -> list[str]:
    """Run what is due; return the outcomes."""
    with worker(shop) as made:
        return [
            str(event.outcome) for event in made.run_due() if hasattr(event, "outcome")
        ]


def test_enqueue_and_get_result(shop: str, tasks: Any) -> None:
    """A result is READY, then SUCCESSFUL with its value; refresh brings an older object up to
    date.
    """
    before = timezone.now()
    result = tasks.add.enqueue(1, b=2)
    assert (str(result.status), result.is_finished, result.attempts) == (
        "READY",
        False,
        0,
    )
    assert (result.args, result.kwargs, result.backend, result.task) == (
        [1],
        {"b": 2},
        "default",
        tasks.add,
    )
    assert before <= result.enqueued_at <= timezone.now()
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (
        None,
        None,
        None,
    )
    with pytest.raises(ValueError, match="not finished"):
        result.return_value  # noqa: B018
    assert tasks.add.get_result(result.id) == result
    assert work(shop) == ["succeeded"]
    result.refresh()
    found = tasks.add.get_result(result.id)
    for one in (result, found):
        assert (str(one.status), one.return_value, one.is_finished, one.errors) == (
            "SUCCESSFUL",
            3,
            True,
            [],
        )
        assert one.started_at is not None
        assert one.started_at <= one.finished_at
        assert (one.attempts, len(one.worker_ids), one.last_attempted_at) == (
            1,
            1,
            one.started_at,
        )
    assert (found.args, found.kwargs, found.enqueued_at) == (
        [1],
        {"b": 2},
        result.enqueued_at,
    )


def test_a_failure_has_its_exception(shop: str, tasks: Any) -> None:
    """FAILED, with the class and the traceback; there is no value, and by default no second
    attempt.
    """
    result = tasks.fail.enqueue("ann's")
    assert work(shop) == ["dead"]
    result.refresh()
    assert (str(result.status), result.is_finished, result.attempts) == (
        "FAILED",
        True,
        1,
    )
    (error,) = result.errors
    assert error.exception_class is tasks.Boom
    assert "raise Boom(word)" in error.traceback
    assert error.traceback.endswith("\n")
    assert not error.traceback.endswith("\n\n")
    assert result.finished_at is not None
    with pytest.raises(ValueError, match="failed"):
        result.return_value  # noqa: B018


def test_attempts(shop: str, tasks: Any) -> None:
    """With max_attempts a failed task is READY again, until its last attempt has failed."""
    result = tasks.fail_twice.enqueue()
    with worker(shop) as made:
        made.run_due()
        result.refresh()
        assert (str(result.status), result.attempts, len(result.errors)) == (
            "READY",
            1,
            1,
        )
        assert result.errors[0].exception_class is ValueError
        made.tick("1d")
        made.run_due()
    result.refresh()
    assert (str(result.status), result.attempts, result.backend) == (
        "FAILED",
        2,
        "patient",
    )


def test_a_running_task(shop: str, tasks: Any) -> None:
    """RUNNING, with the worker that runs it."""
    result = tasks.add.enqueue(1)
    with worker(shop) as made:
        (claim,) = made.poll()
        result.refresh()
        assert (str(result.status), result.worker_ids) == ("RUNNING", [made.name])
        assert result.started_at is not None
        assert result.last_attempted_at is not None
        made.run(claim)
        made.settle()


def test_results_that_do_not_exist(tasks: Any, library: Any) -> None:
    """An unknown id, and the id of another task, have errors of their own."""
    with pytest.raises(
        library.exceptions.TaskResultDoesNotExist,
        match=r"no result 'none' in settings.TASKS\['default'\]",
    ):
        tasks.add.get_result("none")
    result = tasks.shout.enqueue("a")
    with pytest.raises(library.exceptions.TaskResultMismatch):
        tasks.add.get_result(result.id)
    assert library.default_task_backend.get_result(result.id).task == tasks.shout


def test_async(shop: str, tasks: Any) -> None:
    """Coroutines can be enqueued, awaited or not, and their results read so."""

    async def call() -> Any:
        result = await tasks.shout.aenqueue("ann")
        return await tasks.shout.aget_result(result.id)

    result = asyncio.run(call())
    assert str(result.status) == "READY"
    assert work(shop) == ["succeeded"]
    asyncio.run(result.arefresh())
    assert result.return_value == "ANN"


@pytest.mark.parametrize(
    ("priority", "ours"), [(-100, -50), (-1, 49), (0, 50), (1, 51), (100, 150)]
)
def test_priorities(tasks: Any, priority: int, ours: int) -> None:
    """Each priority of Django's range has one of its own in slotwise, in the same order."""
    result = tasks.add.using(priority=priority).enqueue(1)
    (found,) = registry().inspect.tasks("django:default:default")
    assert (found.priority, tasks.add.get_result(result.id).task.priority) == (
        ours,
        priority,
    )


def test_higher_priorities_run_first(shop: str, tasks: Any, library: Any) -> None:
    """Of tasks that are due, the highest priority is claimed first."""
    for priority in (0, 100, -100, 50):
        tasks.add.using(priority=priority).enqueue(priority)
    with worker(shop) as made:
        ran = []
        for _ in range(4):
            (claim,) = made.poll(1)
            found = library.default_task_backend.get_result(claim.row.task_instance)
            ran.append(found.task.priority)
            made.run(claim)
            made.settle()
    assert ran == [100, 50, 0, -100]


@pytest.mark.parametrize("priority", [-101, 101, 1.5])
def test_wrong_priorities_are_refused(tasks: Any, priority: float) -> None:
    """As Django documents: when the task is made."""
    with pytest.raises(
        Exception, match="priority must be a whole number between -100 and 100"
    ):
        tasks.add.using(priority=priority)


def test_run_after(shop: str, tasks: Any) -> None:
    """A task does not start before its time; with USE_TZ off, naive times are those of
    TIME_ZONE.
    """
    due = timezone.now() + timedelta(hours=1)
    result = tasks.add.using(run_after=due).enqueue(1)
    assert work(shop) == []
    assert tasks.add.get_result(result.id).task.run_after == due
    with worker(shop) as made:
        made.tick("2h")
        ran = [
            event.id for event in made.run_due()
        ]  # the project's daily job may be due, too
        assert ran.count(result.id) == 1
    with pytest.raises(Exception, match="run_after must be an aware datetime"):
        tasks.add.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001
    with override_settings(USE_TZ=False):
        tasks.add.using(run_after=datetime(2030, 1, 1)).enqueue(1)  # noqa: DTZ001
    (found,) = registry().inspect.tasks("django:default:default")
    assert found.due is not None
    assert found.due.isoformat() == "2029-12-31T23:00:00+00:00"


def test_queues(tasks: Any) -> None:
    """A queue is a task of slotwise, so that a worker may run one; unknown queues are refused
    unless any is allowed.
    """
    tasks.shout.enqueue("a")
    assert len(registry().inspect.tasks("django:default:mail")) == 1
    with pytest.raises(Exception, match="Queue 'other' is not valid for backend"):
        tasks.add.using(queue_name="other")
    tasks.fail_twice.using(queue_name="other").enqueue()
    assert len(registry().inspect.tasks("django:patient")) == 1


def test_the_context(shop: str, tasks: Any) -> None:
    """A task that takes its context gets it first: its result so far, and the attempt."""
    result = tasks.describe.enqueue(1, a=2)
    work(shop)
    result.refresh()
    (worker_id,) = result.worker_ids
    assert result.return_value == {
        "attempt": 1,
        "id": result.id,
        "status": "RUNNING",
        "workers": [worker_id],
    }


def test_signals(shop: str, tasks: Any, library: Any) -> None:
    """task_enqueued, task_started and task_finished are sent, with the result."""
    said: list[tuple[str, str]] = []

    def hear(name: str) -> Any:
        def listen(sender: Any, task_result: Any, **_: Any) -> None:
            said.append((name, str(task_result.status)))

        getattr(library.signals, name).connect(listen, weak=False, dispatch_uid="test")
        return name

    names = [hear(name) for name in ("task_enqueued", "task_started", "task_finished")]
    try:
        tasks.add.enqueue(1)
        work(shop)
        tasks.fail.enqueue("")
        work(shop)
    finally:
        for name in names:
            getattr(library.signals, name).disconnect(dispatch_uid="test")
    begun = [("task_enqueued", "READY"), ("task_started", "RUNNING")]
    assert said == [
        *begun,
        ("task_finished", "SUCCESSFUL"),
        *begun,
        ("task_finished", "FAILED"),
    ]


def test_enqueue_in_a_transaction(tasks: Any) -> None:
    """Within transaction.atomic the task commits with it, and its own transaction sees it
    before.
    """
    with transaction.atomic():
        kept = tasks.add.enqueue(1)
        assert tasks.add.get_result(kept.id) == kept
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.add.enqueue(1 // 0 if tasks.add.enqueue(2) else 0)
    assert [
        found.id for found in registry().inspect.tasks("django:default:default")
    ] == [kept.id]


def test_flags(library: Any) -> None:
    """The backend says what it can do."""
    backend = library.default_task_backend
    names = (
        "supports_defer",
        "supports_async_task",
        "supports_get_result",
        "supports_priority",
    )
    assert [getattr(backend, name) for name in names] == [True] * 4


@pytest.mark.parametrize("wrong", [object(), {1, 2}], ids=["an object", "a set"])
def test_arguments_must_be_json(tasks: Any, wrong: object) -> None:
    """What JSON does not have is refused when the task is enqueued, and nothing is scheduled."""
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.add.enqueue(wrong)
    assert registry().inspect.tasks() == []


def test_results_that_are_too_large(shop: str, tasks: Any, library: Any) -> None:
    """The task has succeeded; a value above the limit is not kept, and large arguments are not."""
    large = tasks.shout.enqueue("x" * 40_000)
    too_large = tasks.big.enqueue()
    assert work(shop) == ["succeeded"] * 2
    found = tasks.shout.get_result(large.id)
    assert (found.args, len(found.return_value)) == ([], 40_000)
    with pytest.raises(library.exceptions.TaskResultDoesNotExist):
        tasks.big.get_result(too_large.id)


@pytest.mark.parametrize(
    "path",
    [
        "tests.contrib.djangoshop.tasks.gone",
        "tests.contrib.djangoshop.tasks.undecorated",
    ],
)
def test_only_tasks_are_run(shop: str, path: str) -> None:
    """A payload that names anything but a task of Django fails: nothing that is stored is
    executed.
    """
    data = {
        "task": path,
        "args": [],
        "kwargs": {},
        "enqueued_at": "2026-01-01T00:00:00+00:00",
        "priority": 0,
        "queue": "default",
        "run_after": None,
    }
    receipt = registry().client.schedule("django:default:default", data)
    assert work(shop) == ["dead"]
    found = registry().client.get("django:default:default", receipt.id)
    assert found is not None
    assert f"{path} " in str(found.last_error)


def test_snooze_is_not_a_failure(shop: str, tasks: Any) -> None:
    """A task may steer as handlers of slotwise do."""
    result = tasks.later.enqueue()
    work(shop)
    result.refresh()
    assert (str(result.status), result.errors) == ("READY", [])


def test_system_checks() -> None:
    """They pass; an option that does not exist, or a missing app, is one line."""
    call_command("check")
    from django.conf import settings

    apps = [app for app in settings.INSTALLED_APPS if app != "slotwise.contrib.django"]
    with (
        override_settings(INSTALLED_APPS=apps),
        pytest.raises(Exception, match=r"add 'slotwise.contrib.django' to INS"),
    ):
        call_command("check")


def test_a_subclass_of_the_backend_has_tasks(shop: str, tasks: Any) -> None:
    """The worker takes them on, whatever module the subclass is in. Other backends have none."""
    import tests.contrib.djangoshop.backends as backends

    base = f"{backends.Backend.__module__}.{backends.Backend.__qualname__}"
    package = type(tasks.add).__module__.partition(".base")[0]
    given = {
        "default": {"BACKEND": "tests.contrib.djangoshop.backends.Mine"},
        "plain": {"BACKEND": base},
        "dummy": {"BACKEND": f"{package}.backends.dummy.DummyBackend"},
    }
    with override_settings(TASKS=given):
        assert [task.name for task in backend_tasks()] == [
            "django:default:default",
            "django:plain:default",
        ]
    missing = {"default": {"BACKEND": "tests.contrib.djangoshop.backends.Other"}}
    with (
        override_settings(TASKS=missing),
        pytest.raises(
            ConfigurationError, match=r"TASKS\['default'\]\['BACKEND'\] is 'tests"
        ),
    ):
        list(backend_tasks())


WRONG_TASKS: dict[str, tuple[dict[str, Any], str]] = {
    "an option": (
        {"OPTIONS": {"attempts": 2}},
        "['OPTIONS'] has 'attempts'; did you mean 'max_attempts'?",
    ),
    "another option": (
        {"OPTIONS": {"foo": 2}},
        "['OPTIONS'] has 'foo'; known: max_attempts, result_retention",
    ),
    "no attempt": (
        {"OPTIONS": {"max_attempts": 0}},
        "['max_attempts'] is 0; write a whole number from 1 to 1000",
    ),
    "a string": (
        {"OPTIONS": {"max_attempts": "2"}},
        "['OPTIONS']['max_attempts'] is '2'; write a whole number",
    ),
    "true": (
        {"OPTIONS": {"max_attempts": True}},
        "['OPTIONS']['max_attempts'] is True; write a whole number from 1",
    ),
    "no duration": (
        {"OPTIONS": {"result_retention": "x"}},
        "['result_retention']: 'x' is not a duration; write a ",
    ),
    "no retention": (
        {"OPTIONS": {"result_retention": None}},
        "['result_retention'] is None; write a duration, e.g. '7d'",
    ),
    "zero": (
        {"OPTIONS": {"result_retention": "0s"}},
        "['OPTIONS']['result_retention']: '0s' keeps no result; write a ",
    ),
    "no options": (
        {"OPTIONS": 7},
        "['OPTIONS'] is 7; write a dictionary, e.g. {'max_attempts': 3}",
    ),
    "no queues": (
        {"QUEUES": 7},
        "['QUEUES'] is 7; write a list of names, or [] for any",
    ),
    "a string of queues": (
        {"QUEUES": "mail"},
        "['QUEUES'] is 'mail'; write a list of names, or [] for any",
    ),
    "a queue of nothing": (
        {"QUEUES": ["mail", 7]},
        "['QUEUES'] has 7; write a name of at most 85 characters",
    ),
    "a blank queue": (
        {"QUEUES": [" "]},
        "['QUEUES'] has ' '; write a name of at most 85 characters",
    ),
    "a long queue": (
        {"QUEUES": ["m" * 100]},
        "mmm; write a name of at most 85 characters",
    ),
}


@pytest.mark.parametrize(("given", "line"), WRONG_TASKS.values(), ids=WRONG_TASKS)
def test_a_mistake_in_tasks_is_one_line(given: dict[str, Any], line: str) -> None:
    """It names the place in the settings; the system check reports it, too."""
    from django.conf import settings

    wrong = {"default": {"BACKEND": settings.TASKS["default"]["BACKEND"], **given}}
    with override_settings(TASKS=wrong):
        with pytest.raises(SlotwiseError) as raised:
            registry()
        message = str(raised.value)
        assert message.startswith("settings.TASKS['default']['")
        assert line in message
        assert "\n" not in message
        with pytest.raises(Exception, match=r"slotwise\.E001") as checked:
            call_command("check")
        assert message in str(checked.value)


@pytest.mark.parametrize("id", [None, 7, "", "x" * 300, "a\0b"])
def test_ids_that_cannot_be(tasks: Any, library: Any, id: Any) -> None:
    """As for an unknown id: Django's own error, with the id."""
    for read in (tasks.add.get_result, library.default_task_backend.get_result):
        with pytest.raises(
            library.exceptions.TaskResultDoesNotExist, match="there is no result "
        ):
            read(id)


def test_the_other_backend_says_what_it_needs() -> None:
    """Before Django 6 the line names the package."""
    if django.VERSION >= (6,):
        return
    with pytest.raises(
        SlotwiseError,
        match=r"django.tasks needs Django 6; before it, install django-tasks and write",
    ):
        import slotwise.contrib.django.tasks  # noqa: F401
