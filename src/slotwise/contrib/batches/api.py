"""``batches``: which source a select leads to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import (
    TYPE_CHECKING,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    Unpack,
    cast,
    overload,
)

import sqlalchemy as sa
from sqlalchemy import orm

from slotwise import ConfigurationError, Context
from slotwise.contrib.batches.awaited import AsyncBatches
from slotwise.contrib.batches.batches import Batches, HandOver
from slotwise.contrib.batches.django_source import (
    DjangoSource,
    QuerySet,
    django_source,
)
from slotwise.contrib.batches.pacing import pacing
from slotwise.contrib.batches.psycopg_source import (
    AsyncPsycopgSource,
    DictRow,
    PsycopgSource,
    TextSelect,
    text_select,
)
from slotwise.contrib.batches.run import Options
from slotwise.contrib.batches.source import AsyncSource, Source
from slotwise.contrib.batches.sqlalchemy_source import (
    AsyncEngineSource,
    AsyncSessionSource,
    EngineSource,
    SessionSource,
    Statement,
    statement,
)
from slotwise.spi import parse_duration

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncEngine,
        AsyncSession,
        async_sessionmaker,
    )

    from slotwise.contrib.batches.psycopg_source import AsyncConnections, Connections

R = TypeVar("R")
#: The types of the columns of rows.
Rs = TypeVarTuple("Rs")


class BatchOptions(TypedDict, total=False):
    """The keywords of ``batches``."""

    #: Rows in a batch; by default 50.
    size: int
    #: The columns that are unique together; by default the primary key.
    key: object
    #: The columns in whose order rows are taken; by default the select's, then the key.
    order: object
    #: Walk by a cursor in the checkpoint, for rows that do not say whether they are done.
    cursor: bool
    #: False: lock no rows.
    lock: bool
    #: False: the rows are in another database than slotwise's tables.
    guard: bool
    #: Tells several walks of one handler apart.
    name: str
    #: How often a row may fail before it is set aside; 0: the first error ends the attempt.
    tries: int
    #: The pause before rows that failed in this run are tried again.
    retry_pause: timedelta | str
    #: How long a run waits in the end for rows that other transactions have locked.
    wait_for_locked: timedelta | str
    #: How long the run may take, or until when; then it ends after a batch.
    time_budget: timedelta | str | datetime | None
    #: How many batches a run has at most.
    max_batches: int | None
    #: After this pause the same slot goes on when a budget has ended a run.
    resume_after: timedelta | str | None
    #: The pause between two batches.
    pause: timedelta | str | None
    #: How many rows are processed in a period at most: ``"5000/s"``.
    rate: str | None
    #: No batch begins while this returns True; asked once a second then.
    wait_while: Callable[[], bool] | None
    #: How many rows there are, for the progress; True: count them at the begin.
    total: int | bool | None
    #: The values of the placeholders of a select in SQL.
    values: Mapping[str, object]


@overload
def batches(
    ctx: Context[object],
    select: sa.Select[R],
    on: orm.sessionmaker[orm.Session],
    *,
    set_aside: HandOver[orm.Session] | None = None,
    **options: Unpack[BatchOptions],
) -> Batches[orm.Session, R]: ...
@overload
def batches(
    ctx: Context[object],
    select: sa.Select[*Rs],
    on: sa.Engine,
    *,
    set_aside: HandOver[sa.Connection] | None = None,
    **options: Unpack[BatchOptions],
) -> Batches[sa.Connection, sa.Row[*Rs]]: ...
@overload
def batches(
    ctx: Context[object],
    select: sa.Select[R],
    on: async_sessionmaker[AsyncSession],
    *,
    set_aside: HandOver[AsyncSession] | None = None,
    **options: Unpack[BatchOptions],
) -> AsyncBatches[AsyncSession, R]: ...
@overload
def batches(
    ctx: Context[object],
    select: sa.Select[*Rs],
    on: AsyncEngine,
    *,
    set_aside: HandOver[AsyncConnection] | None = None,
    **options: Unpack[BatchOptions],
) -> AsyncBatches[AsyncConnection, sa.Row[*Rs]]: ...
@overload
def batches(
    ctx: Context[object],
    select: str,
    on: Connections,
    *,
    set_aside: HandOver[psycopg.Connection[object]] | None = None,
    **options: Unpack[BatchOptions],
) -> Batches[psycopg.Connection[object], DictRow]: ...
@overload
def batches(
    ctx: Context[object],
    select: str,
    on: AsyncConnections,
    *,
    set_aside: HandOver[psycopg.AsyncConnection[object]] | None = None,
    **options: Unpack[BatchOptions],
) -> AsyncBatches[psycopg.AsyncConnection[object], DictRow]: ...
@overload
def batches(
    ctx: Context[object],
    select: QuerySet[R],
    *,
    set_aside: HandOver[object] | None = None,
    **options: Unpack[BatchOptions],
) -> Batches[object, R]: ...
def batches(
    ctx: Context[object],
    select: object,
    on: object = None,
    *,
    set_aside: object = None,
    **options: Unpack[BatchOptions],
) -> object:
    """Return the rows of ``select`` in batches, each in one transaction of ``on``.

    ``on`` is a sessionmaker or an Engine of SQLAlchemy, one of its async twins (then ``async
    for`` and ``async with``), or for a select in SQL a function that opens a psycopg connection,
    such as ``pool.connection``. A queryset of Django needs none. ``set_aside`` is called with the
    connection, the key and the error of a row that has failed ``tries`` times, in place of the
    table of rows that were set aside. Further keywords are those of ``BatchOptions``.

    Raises InvalidSetting and ConfigurationError for wrong arguments, when iterated
    ConfigurationError for rows that would be lost or processed twice, and what ends an attempt:
    ClaimLost, JobCancelled, Resume while the worker drains, Snooze with ``resume_after``.
    """
    check_options(options, "batches()")
    source = _source(select, on, options)
    hand_over = cast("HandOver[object] | None", set_aside)
    rows = cast(
        "Statement[object] | TextSelect | DjangoSource[object]",
        getattr(source, "statement", source),
    )
    read = _read(options, rows.order_text)
    if isinstance(source, AsyncEngineSource | AsyncSessionSource | AsyncPsycopgSource):
        return AsyncBatches(
            ctx, cast("AsyncSource[object, object]", source), read, hand_over
        )
    return Batches(ctx, cast("Source[object, object]", source), read, hand_over)


def check_options(options: Mapping[str, object], where: str) -> None:
    """Raise ConfigurationError for a keyword that ``batches`` does not know: it would be without
    effect.
    """
    known = BatchOptions.__annotations__
    for name in options:
        if name in known:
            continue
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
        raise ConfigurationError(f"{where} takes no keyword {name!r:.60}; {hint}")


def _read(options: BatchOptions, order: str) -> Options:
    resume_after = options.get("resume_after")
    return Options(
        size=options.get("size", 50),
        cursor=options.get("cursor", False),
        guard=options.get("guard", True),
        name=options.get("name", ""),
        order=order,
        tries=options.get("tries", 3),
        retry_pause=parse_duration(options.get("retry_pause", "1s")),
        wait_for_locked=parse_duration(options.get("wait_for_locked", "1m")),
        resume_after=None if resume_after is None else parse_duration(resume_after),
        total=options.get("total"),
        pacing=pacing(
            time_budget=options.get("time_budget"),
            max_batches=options.get("max_batches"),
            pause=options.get("pause"),
            rate=options.get("rate"),
            wait_while=options.get("wait_while"),
        ),
    )


def _source(select: object, on: object, options: BatchOptions) -> object:
    key = options.get("key")
    order = options.get("order")
    by_cursor = options.get("cursor", False)
    locks = options.get("lock", True)
    if isinstance(select, sa.Select):
        return _of_sqlalchemy(
            statement(
                select,
                key=key,
                order=order,
                by_cursor=by_cursor,
                locks=locks,
                by_session=_is_sessionmaker(on),
            ),
            on,
        )
    if isinstance(select, str):
        text = text_select(
            select,
            options.get("values"),
            key=key,
            order=order,
            by_cursor=by_cursor,
            locks=locks,
        )
        return _of_psycopg(text, on)
    if hasattr(select, "select_for_update"):
        return django_source(
            cast("QuerySet[object]", select),
            key=key,
            order=order,
            by_cursor=by_cursor,
            locks=locks,
        )
    raise ConfigurationError(
        f"batches(select={select!r:.60}): pass a select of SQLAlchemy, a queryset of Django, "
        "or SQL as a string"
    )


def _is_sessionmaker(on: object) -> bool:
    is_async = type(on).__name__ == "async_sessionmaker"
    return is_async or isinstance(on, orm.sessionmaker)


def _of_sqlalchemy(rows: Statement[object], on: object) -> object:
    if isinstance(on, sa.Engine):
        return EngineSource(rows, on)
    if isinstance(on, orm.sessionmaker):
        return SessionSource(rows, on)
    kind = type(on).__name__
    if kind == "AsyncEngine":
        return AsyncEngineSource(rows, cast("AsyncEngine", on))
    if kind == "async_sessionmaker":
        return AsyncSessionSource(rows, cast("async_sessionmaker[AsyncSession]", on))
    raise ConfigurationError(
        f"batches(on={on!r:.60}): pass a sessionmaker, an Engine, or one of their async twins; "
        "each batch begins its own transaction"
    )


def _of_psycopg(rows: TextSelect, on: object) -> object:
    make = getattr(on, "connection", on)
    if not callable(make):
        raise ConfigurationError(
            f"batches(on={on!r:.60}): for a select in SQL pass a pool of psycopg, or a function "
            "that opens a connection: lambda: psycopg.connect(address)"
        )
    if inspect.isasyncgenfunction(inspect.unwrap(make)):
        return AsyncPsycopgSource(rows, cast("AsyncConnections", make))
    return PsycopgSource(rows, cast("Connections", make))
