"""Schedule in Django's transactions."""

from __future__ import annotations

import functools
from typing import (
    TYPE_CHECKING,
    Any,
    Never,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.utils.asyncio import async_unsafe
from sqlalchemy import make_url

from slotwise import ConfigurationError, Receipt
from slotwise.contrib.django.project import (
    alias,
    checked_alias,
    database_address,
    refuse_in_tests,
    registry,
)
from slotwise.spi import TaskOptions, describe_address

T = TypeVar("T")
if TYPE_CHECKING:
    from slotwise import Call, OneTimeTask

    TaskOf: TypeAlias = OneTimeTask[T, Never] | type[OneTimeTask[T, Never]] | str


#: Django's names of the databases whose transactions a task can join.
_JOINED = ("postgresql", "mysql")


def joining(using: str | None = None) -> Any:
    """Return Django's connection if ``transaction.atomic`` is open on it, else None: for
    ``connection=`` of a client.

    ``using`` is another alias of the database that has slotwise's tables. Raises
    ConfigurationError for a name that is no alias, for the alias of another database, and if the
    open transaction is on SQLite: the other connection would wait for it.
    """
    connection = connections[_alias(using)]
    if not connection.in_atomic_block:
        return None
    if connection.vendor not in _JOINED:
        raise ConfigurationError(
            f"DATABASES[{connection.alias!r}] is {connection.vendor}: a task "
            "cannot join its transaction.atomic; "
            "schedule in transaction.on_commit"
        )
    return connection


def reading() -> Any:
    """As ``joining``, for reads: None also where a transaction cannot be joined."""
    connection = connections[alias()]
    return (
        connection
        if connection.in_atomic_block and connection.vendor in _JOINED
        else None
    )


def writing(what: str, using: str | None = None) -> Any:
    """As ``joining``, for a write that would commit at once: refused in a transaction of another
    database alone.
    """
    if (found := joining(using)) is not None:
        return found
    open_ones = [
        one.alias
        for one in connections.all(initialized_only=True)
        if one.in_atomic_block
    ]
    if not open_ones:
        return None
    refuse_in_tests(ours := _alias(using))
    raise ConfigurationError(
        f"{what} in transaction.atomic of {open_ones[0]!r}, but slotwise's tables "
        f"are in {ours!r}: the task would stay "
        "if that transaction rolls back; write transaction.on_commit(lambda: "
        f"{what.partition('(')[0]}(…)), or call "
        "registry().client.schedule(…), which commits at once"
    )


class Options(TaskOptions, total=False):
    """The keywords of ``schedule``."""

    using: str | None


@overload
def schedule(
    task: TaskOf[None] | Call, data: None = None, **options: Unpack[Options]
) -> Receipt: ...
@overload
def schedule(task: TaskOf[T], data: T, **options: Unpack[Options]) -> Receipt: ...
@async_unsafe("schedule() would block the event loop; write: await aschedule(…)")
def schedule(
    task: TaskOf[T] | Call,
    data: T | None = None,
    *,
    using: str | None = None,
    **options: Any,
) -> Receipt:
    """Schedule a one-time task: within ``transaction.atomic`` in its transaction, else at once.

    Also within ``transaction.on_commit``. ``options`` are those of ``Client.schedule`` without
    ``connection``, ``using`` is that of ``joining``. Raises ConfigurationError if
    ``transaction.atomic`` is open on other databases alone, SynchronousOnlyOperation in an event
    loop, and what ``joining`` and ``Client.schedule`` raise.
    """
    if "connection" in options:
        raise ConfigurationError(
            f"schedule(connection={options['connection']!r:.80}): it joins "
            "transaction.atomic by itself; leave "
            "connection= out, or call registry().client.schedule(…, connection=…)"
        )
    client = registry().client
    connection = writing("schedule()", using)
    return client.schedule(
        cast("TaskOf[T]", task), cast("T", data), connection=connection, **options
    )


@overload
async def aschedule(
    task: TaskOf[None] | Call, data: None = None, **options: Unpack[Options]
) -> Receipt: ...
@overload
async def aschedule(
    task: TaskOf[T], data: T, **options: Unpack[Options]
) -> Receipt: ...
async def aschedule(
    task: TaskOf[T] | Call, data: T | None = None, **options: Unpack[Options]
) -> Receipt:
    """As ``schedule``, awaited; on the thread that Django uses for its connections."""
    found: Receipt = await sync_to_async(
        functools.partial(schedule, task, data, **options)
    )()
    return found


def _alias(using: str | None) -> str:
    """Return the alias to use. Raise ConfigurationError for that of another database, in a
    transaction or not.
    """
    ours = alias()
    if using is None or checked_alias(using, "using={!r}") == ours:
        return ours
    addresses = database_address(using), database_address(ours)
    if addresses[0] == addresses[1] or addresses in _seen_alike:
        return using
    leads_here = _leads_here(using)
    if leads_here is False:
        raise ConfigurationError(
            f"using={using!r} leads to {describe_address(make_url(addresses[0]))}, but "
            f"slotwise's tables are in {ours!r}, "
            f"{describe_address(make_url(addresses[1]))}; "
            "name an alias of that database, or leave using= out"
        )
    if leads_here:
        _seen_alike.add(addresses)
    return using


#: Addresses that were seen to lead to the database of slotwise's tables, with the address of the
#: latter.
_seen_alike: set[tuple[str, str]] = set()


def _leads_here(using: str) -> bool | None:
    """Whether this alias, which has another address, leads to slotwise's tables: a pooler's
    address differs.
    """
    connection = connections[using]
    ours = connections[alias()].vendor
    if connection.vendor != ours or ours not in _JOINED:
        return False  # two addresses of SQLite are two files
    with transaction.atomic(using=using):
        return registry().client.leads_here(connection, f"using={using!r}")
