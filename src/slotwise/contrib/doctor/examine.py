"""Ask database and cluster everything that the doctor wants to know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from slotwise import (
    DatabaseUnreachable,
    SchemaMismatch,
    SchemaMissing,
    Settings,
    SlotwiseError,
)
from slotwise.contrib.doctor import cluster, server
from slotwise.contrib.doctor.findings import Finding, Limits, Severity
from slotwise.inspect import DatabaseInfo, Inspection
from slotwise.operations import Schema
from slotwise.spi import Database, tables

_USUAL = Limits()
#: Connections of a worker at a peak, beside those that its pool keeps open: as many as the default
#: pool again, two for claims, the wake-up listener, and one for the heartbeat.
BESIDE_POOL = 8
_ORDER = tuple(Severity)


def examine(settings: Settings, limits: Limits = _USUAL) -> list[Finding]:
    """Return what is wrong, the worst first. Raises DatabaseProblem if the database cannot be
    used.

    A part that cannot be examined, for lack of a right, is a note.
    """
    found = _schema(settings)
    if any(one.severity == Severity.ERROR for one in found):
        return found
    with Inspection.open(settings) as inspect:
        now = inspect.health().now
        about = inspect.database()
        parts: list[Callable[[], Iterator[Finding]]] = [
            lambda: _cluster(inspect, settings, about, now, limits),
            lambda: _server(settings, about, now, limits),
        ]
        for part in parts:
            found += _tried(part)
    return sorted(found, key=lambda one: (_ORDER.index(one.severity), one.check))


def _schema(settings: Settings) -> list[Finding]:
    """Return drift of the tables, missing indexes, and what ``slotwise db check`` warns of."""
    try:
        warnings = Schema(settings).check()
    except (SchemaMissing, SchemaMismatch) as error:
        text, _, cure = str(error).partition("; ")
        return [_finding("schema", Severity.ERROR, text, cure or "slotwise db check")]
    found = []
    for line in warnings:
        text, _, cure = line.rpartition("; ")
        check = "pooler" if "pool" in line else "schema"
        found.append(_finding(check, Severity.WARNING, text or line, cure))
    return found


def _finding(check: str, severity: Severity, evidence: str, cure: str) -> Finding:
    return Finding(check=check, severity=severity, evidence=evidence, cure=cure)


def _tried(part: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(part())
    except DatabaseUnreachable:
        raise
    except SlotwiseError as error:
        why = f"a part could not be examined: {error}"
        return [
            _finding("examination", Severity.NOTE, why, "use a role that may read it")
        ]


def _cluster(
    inspect: Inspection,
    settings: Settings,
    about: DatabaseInfo,
    now: datetime,
    limits: Limits,
) -> Iterator[Finding]:
    jobs = inspect.jobs()
    workers = inspect.workers()
    health = inspect.health()
    yield from cluster.drifting(workers, limits)
    yield from cluster.never_succeeded(jobs, now, limits)
    yield from cluster.forgotten_pauses(inspect.pauses(), now, limits)
    yield from cluster.ending_calendars(health.ended_calendars)
    yield from cluster.unknown_tasks(health)
    per_worker = settings.pool_size + BESIDE_POOL
    yield from cluster.fleet(
        workers, about.connections, about.max_connections, per_worker, limits
    )


def _server(
    settings: Settings, about: DatabaseInfo, now: datetime, limits: Limits
) -> Iterator[Finding]:
    yield from server.starved_vacuum(about, limits)
    yield from server.old_snapshots(about, now, limits)
    database = Database(settings)
    try:
        if database.dialect_name != "postgresql":
            return
        ours = tables(settings.table_prefix, settings.schema, "postgresql")
        with database.in_words(), database.autocommit() as connection:
            yield from server.indexes(connection, ours, limits)
            yield from server.transaction_age(connection, limits)
            yield from server.role_settings(connection)
    finally:
        database.close()
