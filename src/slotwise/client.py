"""Schedules tasks from anywhere, one-time and recurring ones: a web request, a script, a handler."""

from __future__ import annotations

import uuid
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from slotwise.controls import Controls
from slotwise.definition import USUAL_PRIORITY, Definition, check_catch_up, is_priority
from slotwise.durations import parse_duration
from slotwise.errors import ConfigurationError, InstanceExists, InvalidJob
from slotwise.execution import FOREVER, RECURRING
from slotwise.job import DistributedJob, T, declared
from slotwise.payload import UNTYPED, Payload
from slotwise.payload_reader import payload_of
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.enqueue import Enqueue
from slotwise.store.fence import sqlalchemy_connection
from slotwise.store.instances import Instance, Instances

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa

    from slotwise.definition import Definition
    from slotwise.job import OneTimeTask
    from slotwise.store.store import Store

    AnyTask: TypeAlias = DistributedJob | type[DistributedJob] | OneTimeTask[T] | type[OneTimeTask[T]] | str

ID_LIMIT = 250
LONGEST_DELAY = timedelta(days=36_500)


class Client:
    """Writes tasks into the queue; works without a worker in this process."""

    def __init__(self, store: Callable[[], Store], wake: Callable[[], None] = lambda: None) -> None:
        self._make_store = store
        self._wake = wake
        #: Orders for the whole cluster: pause, trigger, cancel and their kin.
        self.controls = Controls(store, wake)

    def schedule(
        self,
        task: OneTimeTask[T] | type[OneTimeTask[T]] | str,
        data: T | None = None,
        *,
        id: str | None = None,
        at: datetime | None = None,
        in_: timedelta | str | None = None,
        priority: int | None = None,
        if_exists: Literal["raise", "keep"] = "raise",
        connection: Any = None,
    ) -> str:
        """Schedule ``task`` with ``data`` (anything JSON can say) and return its id.

        ``at`` (aware) or ``in_`` (``timedelta`` or ``"10s"``) say when, by the database's clock; without them
        it is due now. ``id`` has at most 250 characters; without one it is a random one. ``priority`` is the
        task's own unless given. With ``connection`` (a SQLAlchemy Connection or Session) the row joins the caller's
        transaction: it exists if and only if that commits. Waits for the database; from ``async def``, call it in
        ``asyncio.to_thread``.

        Raises InstanceExists if the id is taken, unless ``if_exists="keep"``; InvalidJob for what is no task, and
        for data that JSON cannot say or that is larger than 1 MiB; ConfigurationError for everything else that is
        wrong with the call.
        """
        name = _task_name(task)
        instance = _checked_id(id if id is not None else str(uuid.uuid4()), name)
        due, delay = _checked_due(at, in_, name)
        if if_exists not in ("raise", "keep"):
            raise ConfigurationError(f"schedule({name!r}, if_exists={if_exists!r}): write 'raise' or 'keep'")
        store = self._make_store()
        if (known := store.definitions.get(name)) is not None and known.is_job:
            raise InvalidJob(f"{name!r} is a job, its schedule says when it runs; pass a one-time task")
        payload = _payload(task, name, known).encode(data, name)
        weight = _weight(priority, known, f"schedule({name!r}")
        with self._joining(connection, store, name) as joined:
            added = Enqueue(store).task(
                joined, name, instance, data=payload, at=due, delay=delay, priority=weight
            )  # fmt: skip
        if not added and if_exists == "raise":
            raise InstanceExists(
                f"task {name!r} with id {instance!r} is already scheduled; choose another id, or if_exists='keep'"
            )
        if added and connection is None:
            self._wake()  # a worker in this very process need not wait for its next poll
        return instance

    def schedule_recurring(
        self,
        task: AnyTask[T],
        id: str,
        schedule: Schedule | str,
        data: T | None = None,
        *,
        priority: int | None = None,
        connection: Any = None,
    ) -> datetime | None:
        """Let ``task`` recur for ``id`` by a schedule of its own, with ``data``; its next slot, None if there is none.

        Makes the instance, or changes it to this: a changed schedule follows as after a deploy. Slots, catch-up,
        overlap and ledger are the instance's own; the policies are the task's, as any job or task declares them. An
        ``H`` in the schedule is decided by task and id. ``schedule`` is a Schedule or its text. With ``connection``
        the row joins the caller's transaction; keep that short, for what runs is settled only after it.

        Raises InvalidSchedule, for a calendar that is not in the database, too; InstanceExists if a one-time instance
        has this id; and what ``schedule`` raises for task, id, data and connection.
        """
        name, instance = _recurring(task, id)
        wanted = parse_schedule(schedule) if isinstance(schedule, str) else schedule
        if not isinstance(wanted, Schedule):
            raise ConfigurationError(f"schedule_recurring({name!r}): {wanted!r:.60} is no schedule; write Every('5m')")
        store = self._make_store()
        if (known := store.definitions.get(name)) is not None:
            check_catch_up(wanted, known, f"schedule_recurring({name!r}, id={instance!r})")
        payload = _payload(task, name, known).encode(data, name)
        weight = _weight(priority, known, f"schedule_recurring({name!r}")
        with self._joining(connection, store, name) as joined:
            slot = Instances(store).put(
                joined, Instance(task=name, id=instance, schedule=wanted, data=payload, priority=weight)
            )
        if connection is None:
            self._wake()
        return slot

    def unschedule_recurring(self, task: AnyTask[Any], id: str, *, connection: Any = None) -> bool:
        """Delete the recurring instance ``id`` of ``task``; False if there is none. A run that goes on may end.

        Its history stays, so that it may come back without starting a slot twice. With ``connection``, in the
        caller's transaction. Raises what ``schedule_recurring`` raises for task, id and connection.
        """
        name, instance = _recurring(task, id)
        store = self._make_store()
        with self._joining(connection, store, name) as joined:
            return Instances(store).remove(joined, name, instance)

    @contextmanager
    def _joining(self, connection: Any, store: Store, name: str) -> Iterator[sa.Connection]:
        """The caller's transaction if there is one, else one of our own."""
        own = store.transaction() if connection is None else nullcontext(_joined(connection, store, name))
        with own as joined:
            yield joined


def _payload(task: Any, name: str, known: Definition | None) -> Payload:
    """What the data of this task is; of a name that this process does not know, whatever JSON can say."""
    if isinstance(task, str):
        return known.payload if known else UNTYPED
    return UNTYPED if _is_job(task) else payload_of(task, name)


def _is_job(task: Any) -> bool:
    return isinstance(task, DistributedJob) or (isinstance(task, type) and issubclass(task, DistributedJob))


def _task_name(task: Any) -> str:
    name = task if isinstance(task, str) else declared(task, "name")
    if not isinstance(name, str) or not name.strip():
        raise InvalidJob(f"{task!r} is not a task; pass a OneTimeTask, a function under @task, or a name")
    if _is_job(task):
        raise InvalidJob(f"{name!r} is a job, its schedule says when it runs; pass a one-time task")
    return name


def _recurring(task: Any, id: Any) -> tuple[str, str]:
    """The task's name and the instance, of a job or a task."""
    name = task if isinstance(task, str) else declared(task, "name")
    if not isinstance(name, str) or not name.strip():
        raise InvalidJob(f"{task!r} is neither a job nor a task; pass one, or its name")
    instance = _checked_id(id, name)
    if instance == RECURRING or instance.startswith((f"{RECURRING}@", "trigger:")):
        raise ConfigurationError(
            f"schedule_recurring({name!r}, id={instance!r}): this id is the job's own; take another"
        )
    return name, instance


def _weight(priority: Any, known: Definition | None, where: str) -> int:
    """As given, else as the task says."""
    if priority is None:
        return USUAL_PRIORITY if known is None else known.priority
    if not is_priority(priority):
        raise ConfigurationError(f"{where}, priority={priority!r}): a whole number, for instance 10 to 90")
    return int(priority)


def _checked_id(given: Any, name: str) -> str:
    where = f"schedule({name!r}, id={given!r:.60})"
    if not isinstance(given, str):
        raise ConfigurationError(f"{where}: an id is a text; write id={str(given)!r:.60}")
    if not given.strip():
        raise ConfigurationError(f"{where}: an id cannot be blank")
    if len(given) > ID_LIMIT:
        raise ConfigurationError(f"{where}: an id has at most {ID_LIMIT} characters, this one has {len(given)}")
    if not given.isprintable():
        raise ConfigurationError(f"{where}: control characters are not allowed in an id")
    return given


def _checked_due(at: Any, in_: Any, name: str) -> tuple[datetime | None, timedelta]:
    """The instant, or else how long after now."""
    if at is None:
        delay = parse_duration(in_) if in_ is not None else timedelta(0)
        if delay > LONGEST_DELAY:
            raise ConfigurationError(f"schedule({name!r}, in_={in_!r}): at most {LONGEST_DELAY.days} days")
        return None, delay
    if in_ is not None:
        raise ConfigurationError(f"schedule({name!r}): both at and in_ are given; drop one of them")
    if not isinstance(at, datetime):
        raise ConfigurationError(f"schedule({name!r}, at={at!r}): expected a datetime; e.g. datetime(…, tzinfo=UTC)")
    if at.utcoffset() is None:
        raise ConfigurationError(
            f"schedule({name!r}, at={at.isoformat()}): the instant has no zone; e.g. at=datetime(…, tzinfo=UTC)"
        )
    if at >= FOREVER:
        raise ConfigurationError(f"schedule({name!r}, at={at.isoformat()}): it must lie before the year {FOREVER.year}")
    return at.astimezone(UTC), timedelta(0)


def _joined(connection: Any, store: Store, name: str) -> sa.Connection:
    found = sqlalchemy_connection(connection)
    if found.dialect.name != store.database.dialect_name:
        raise ConfigurationError(
            f"schedule({name!r}): the connection leads to {found.dialect.name}, the tables are in "
            f"{store.database.dialect_name}; pass a connection to that database, or none"
        )
    return found
