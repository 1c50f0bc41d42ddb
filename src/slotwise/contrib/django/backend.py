"""What the backends for Django's ``TASKS`` and for the package django-tasks have in common.

A task of Django becomes a one-time task of slotwise with the name ``django:<backend>:<queue>``.
Its payload names the function; the function is imported where it runs, and must be a task of
Django.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, Final, TypedDict, cast
from uuid import uuid4

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.utils import timezone
from django.utils.module_loading import import_string

from slotwise import (
    Client,
    ConfigurationError,
    Context,
    OneTimeTask,
    Retry,
    SlotwiseError,
)
from slotwise.contrib.django.project import registry
from slotwise.contrib.django.scheduling import reading, writing
from slotwise.inspect import TaskInfo, TaskResult
from slotwise.spi import NAME_LIMIT, ListedState, Outcome, Steering, parse_duration

APP: Final = "slotwise.contrib.django"
#: slotwise's priority of a task whose priority in Django is 0.
USUAL: Final = 50
#: Keys of OPTIONS, with their defaults.
OPTIONS: Final[Mapping[str, object]] = {"max_attempts": 1, "result_retention": "7d"}
#: The largest number of attempts.
MOST_ATTEMPTS: Final = 1000
#: What a stored result may have besides the value, in bytes; arguments above it are not kept.
_ROOM: Final = 60_000


class _Data(TypedDict):
    task: str
    args: list[object]
    kwargs: dict[str, object]
    enqueued_at: str
    priority: int
    queue: str
    run_after: str | None


class _Stored(_Data):
    started_at: str
    worker_ids: list[str]
    value: object


class SlotwiseTasks:
    """Mixin of a backend; subclasses name the package whose classes they use."""

    #: ``django.tasks`` or ``django_tasks``.
    package: ClassVar[str]
    #: Its function that normalizes JSON.
    normalize: ClassVar[str]

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    alias: str
    queues: set[str]
    options: Mapping[str, object]

    def __init__(self, alias: str, params: Mapping[str, object]) -> None:
        """Mistakes are raised where the registry is built, which the system check reports in
        one line.
        """
        self._given = params
        valid = {
            key: value
            for key, value in params.items()
            if key not in ("QUEUES", "OPTIONS")
        }
        if "QUEUES" in params:
            valid["QUEUES"] = params["QUEUES"] if _are_names(params["QUEUES"]) else []
        if isinstance(params.get("OPTIONS"), Mapping):
            valid["OPTIONS"] = params["OPTIONS"]
        super().__init__(alias, valid)  # type: ignore[call-arg]

    def check(self, **options: object) -> list[checks.CheckMessage]:
        """Report a missing app; the app's own check reports the rest."""
        if apps.is_installed(APP):
            return []
        text = (
            f"settings.TASKS[{self.alias!r}] uses slotwise, which is not installed; "
            f"add {APP!r} to INSTALLED_APPS"
        )
        return [checks.Error(text, id="slotwise.E002")]

    def enqueue(
        self, task: Any, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Any:
        """Schedule a task: within ``transaction.atomic`` in its transaction, else at once."""
        self.validate_task(task)  # type: ignore[attr-defined]
        due = task.run_after
        data: _Data = {
            "task": task.module_path,
            "args": list(args),
            "kwargs": dict(kwargs),
            "enqueued_at": timezone.now().isoformat(),
            "priority": task.priority,
            "queue": task.queue_name,
            "run_after": None if due is None else due.isoformat(),
        }
        result = self._result(task, uuid4().hex, "READY", data)
        registry().client.schedule(
            self._name(task.queue_name),
            {**data, "args": result.args, "kwargs": result.kwargs},
            id=result.id,
            at=timezone.make_aware(due)
            if due is not None and timezone.is_naive(due)
            else due,
            priority=USUAL + task.priority,
            connection=writing("enqueue()"),
        )
        self._signal("task_enqueued", result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result with this id. Raises TaskResultDoesNotExist for one that never
        existed, or was removed.

        While a task runs, ``started_at`` is the time at which it was due.
        """
        client = registry().client
        connection = reading()
        names = self.names() if Client.wrong_id(result_id) is None else []
        for name in names:
            ends = client.history(name, result_id, connection=connection)
            info = client.get(name, result_id, connection=connection)
            last = ends[0] if ends else None
            if info is not None:
                return self._unfinished(info, last)
            if last and last.outcome == Outcome.SUCCEEDED and last.result is not None:
                return self._finished(last)
        raise self._missing(
            f"there is no result {result_id!r:.80} in settings.TASKS[{self.alias!r}]"
        )

    # -- the worker's side ------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of slotwise's tasks: one for each queue, or one for all if any queue is
        allowed.
        """
        return [self._name(queue) for queue in sorted(self.queues)] or [
            f"django:{self.alias}"
        ]

    def tasks(self) -> Iterator[DjangoTask]:
        """Yield slotwise's tasks that run those of Django."""
        self._check_given()
        for name in self.names():
            yield DjangoTask(self, name)

    def _check_given(self) -> None:
        """Raise ConfigurationError for a mistake in ``settings.TASKS``: one line with its
        place.
        """
        self._check_queues(f"{self._place}['QUEUES']", self._given.get("QUEUES", []))
        self._check_options(
            f"{self._place}['OPTIONS']", self._given.get("OPTIONS", {})
        )

    @property
    def _place(self) -> str:
        return f"settings.TASKS[{self.alias!r}]"

    def _check_queues(self, here: str, queues: object) -> None:
        if isinstance(queues, str | bytes) or not isinstance(queues, Iterable):
            raise ConfigurationError(
                f"{here} is {queues!r:.80}; write a list of names, or [] for any"
            )
        longest = NAME_LIMIT - len(f"django:{self.alias}:")
        for queue in queues:
            is_name = isinstance(queue, str) and queue.strip() and queue.isprintable()
            if not is_name or len(queue) > longest:
                raise ConfigurationError(
                    f"{here} has {queue!r:.80}; write a name of at most {longest} characters"
                )

    def _check_options(self, here: str, options: object) -> None:
        if not isinstance(options, Mapping):
            raise ConfigurationError(
                f"{here} is {options!r:.80}; write a dictionary, e.g. {{'max_attempts': 3}}"
            )
        for key in options:
            if key not in OPTIONS:
                near = get_close_matches(str(key), OPTIONS, n=1)
                known = f"known: {', '.join(OPTIONS)}"
                cure = f"did you mean {near[0]!r}?" if near else known
                raise ConfigurationError(f"{here} has {key!r:.80}; {cure}")
        self._check_values(here)

    def _check_values(self, here: str) -> None:
        attempts = self.option("max_attempts")
        retention = self.option("result_retention")
        if (
            not isinstance(attempts, int)
            or isinstance(attempts, bool)
            or not 1 <= attempts <= MOST_ATTEMPTS
        ):
            raise ConfigurationError(
                f"{here}['max_attempts'] is {attempts!r:.80}; write a "
                f"whole number from 1 to {MOST_ATTEMPTS}"
            )
        if not isinstance(retention, str | timedelta):
            raise ConfigurationError(
                f"{here}['result_retention'] is {retention!r:.80}; "
                "write a duration, e.g. '7d'"
            )
        try:
            if not parse_duration(retention):
                raise ConfigurationError(
                    f"{retention!r} keeps no result; write a longer one, e.g. '7d'"
                )
        except (SlotwiseError, ValueError) as error:
            raise ConfigurationError(f"{here}['result_retention']: {error}") from error

    def option(self, name: str) -> Any:
        """Return an option, or its default."""
        return self.options.get(name, OPTIONS[name])

    def run(self, ctx: Context) -> _Stored:
        """Run a task of Django, and return what its stored result consists of."""
        data = cast("_Data", ctx.data)
        task = self._task(data)
        now = timezone.now()
        workers = [ctx.worker] * ctx.attempt
        result = self._result(
            task, ctx.id, "RUNNING", data, started=now, attempted=now, workers=workers
        )
        self._signal("task_started", result)
        context = (
            [self._part("base").TaskContext(task_result=result)]
            if task.takes_context
            else []
        )
        try:
            value = import_string(self.normalize)(
                task.call(*context, *data["args"], **data["kwargs"])
            )
        except Steering:
            raise
        except BaseException as error:
            if ctx.attempt >= self.option("max_attempts"):
                self._end(result, "FAILED", [self._error(_path(type(error)), "")])
            raise
        object.__setattr__(result, "_return_value", value)
        self._end(result, "SUCCESSFUL", [])
        kept: _Stored = {
            **data,
            "started_at": now.isoformat(),
            "worker_ids": workers,
            "value": value,
        }
        if len(json.dumps(kept)) > _ROOM:
            kept["args"], kept["kwargs"] = [], {}
        return kept

    # -- results ----------------------------------------------------------------------------------

    def _unfinished(self, info: TaskInfo, end: TaskResult | None) -> object:
        dead = info.state == ListedState.DEAD
        started = attempted = info.last_failure
        status = "READY"
        if dead:
            status = "FAILED"
            started = attempted = end.started if end else info.last_failure
        elif info.state == ListedState.RUNNING:
            status = "RUNNING"
            started = attempted = info.due
        worker = info.worker or (end.worker if end else None) or "unknown"
        return self._result(
            self._task(info.data),
            info.id,
            status,
            info.data,
            started=started,
            attempted=attempted,
            finished=info.last_failure if dead else None,
            workers=[worker] * info.attempt,
            errors=[_error_of(info.last_error)] if info.last_error else [],
        )

    def _finished(self, end: TaskResult) -> object:
        stored: _Stored = end.result
        started = datetime.fromisoformat(stored["started_at"])
        result = self._result(
            self._task(stored),
            end.id,
            "SUCCESSFUL",
            stored,
            started=started,
            attempted=started,
            finished=end.finished and max(end.finished, started),  # by two clocks
            workers=stored["worker_ids"],
        )
        object.__setattr__(result, "_return_value", stored["value"])
        return result

    def _result(
        self,
        task: object,
        id: str,
        status: str,
        data: _Data,
        *,
        started: datetime | None = None,
        attempted: datetime | None = None,
        finished: datetime | None = None,
        workers: Sequence[str] = (),
        errors: Sequence[tuple[str, str]] = (),
    ) -> Any:
        base = self._part("base")
        return base.TaskResult(
            task=task,
            id=id,
            status=base.TaskResultStatus[status],
            enqueued_at=datetime.fromisoformat(data["enqueued_at"]),
            started_at=started,
            last_attempted_at=attempted,
            finished_at=finished,
            args=data["args"],
            kwargs=data["kwargs"],
            backend=self.alias,
            errors=[self._error(*one) for one in errors],
            worker_ids=list(workers),
        )

    def _task(self, data: _Data) -> Any:
        """Return Django's task that the payload names. Raises TaskResultDoesNotExist if the code
        has none.
        """
        try:
            found = import_string(data["task"])
        except ImportError as error:
            raise self._missing(
                f"{data['task']} cannot be imported: {error}; was it renamed or removed?"
            ) from error
        if not isinstance(found, self._part("base").Task):
            raise self._missing(
                f"{data['task']} is no task of {self.package}; put @task above it"
            )
        due = data["run_after"]
        return found.using(
            backend=self.alias,
            priority=data["priority"],
            queue_name=data["queue"],
            run_after=None if due is None else datetime.fromisoformat(due),
        )

    def _end(self, result: Any, status: str, errors: list[object]) -> None:
        object.__setattr__(
            result, "status", self._part("base").TaskResultStatus[status]
        )
        object.__setattr__(result, "finished_at", timezone.now())
        result.errors.extend(errors)
        self._signal("task_finished", result)

    def _error(self, path: str, trace: str) -> object:
        return self._part("base").TaskError(
            exception_class_path=path, traceback=f"{trace}\n"
        )

    def _missing(self, text: str) -> Exception:
        found: Exception = self._part("exceptions").TaskResultDoesNotExist(text)
        return found

    def _signal(self, name: str, result: object) -> None:
        getattr(self._part("signals"), name).send(
            sender=type(self), task_result=result
        )

    def _part(self, name: str) -> ModuleType:
        return import_module(f"{self.package}.{name}")

    def _name(self, queue: str) -> str:
        return (
            f"django:{self.alias}:{queue}" if self.queues else f"django:{self.alias}"
        )


class DjangoTask(OneTimeTask[Any]):
    """One queue of a backend, as a one-time task of slotwise."""

    record = "all"

    def __init__(self, backend: SlotwiseTasks, name: str) -> None:
        self._backend = backend
        self.name = name
        self.result_retention = backend.option("result_retention")
        attempts = backend.option("max_attempts")
        self.retry = (
            None if attempts == 1 else Retry.exponential(max_attempts=attempts)
        )

    def execute(self, ctx: Context) -> object:
        """Run the task that the payload names."""
        return self._backend.run(ctx)


def _are_names(queues: object) -> bool:
    return isinstance(queues, list | tuple | set | frozenset) and all(
        isinstance(queue, str) for queue in queues
    )


def backend_tasks() -> Iterator[DjangoTask]:
    """Yield the tasks of all backends of slotwise in ``settings.TASKS``."""
    found = getattr(settings, "TASKS", None) or {}
    if not isinstance(found, Mapping):
        return  # Django reports what is no mapping, here and below
    for alias, params in found.items():
        path = params.get("BACKEND") if isinstance(params, Mapping) else None
        if not isinstance(path, str):
            continue
        try:
            backend = import_string(path)
        except ImportError as error:
            raise ConfigurationError(
                f"settings.TASKS[{alias!r}]['BACKEND'] is {path!r}: {error}"
            ) from error
        if isinstance(backend, type) and issubclass(backend, SlotwiseTasks):
            yield from backend(alias, params).tasks()


def _path(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _error_of(text: str) -> tuple[str, str]:
    """Return the path of the exception class that a stored traceback names, and the traceback."""
    named = [line for line in text.splitlines() if line and not line.startswith(" ")]
    path = (named[-1] if named else "").partition(":")[0].strip()
    if not path.replace(".", "").isidentifier():
        return (
            "slotwise.errors.ClaimLost",
            text,
        )  # its worker died: there is no traceback
    return path if "." in path else f"builtins.{path}", text
