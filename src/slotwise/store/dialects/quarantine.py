"""Rows that cannot be read: a job's is due again in a minute, a task's is dead and stays."""

from __future__ import annotations

import sqlalchemy as sa

from slotwise.decide.ending import UNREADABLE, UNREADABLE_PAUSE
from slotwise.model import records
from slotwise.model.records import EARLIEST, FOREVER, Claim, Key
from slotwise.model.vocabulary import Kind, Reason, Release, RowState
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import Dialect
from slotwise.store.dialects.row_values import RELEASED, Values
from slotwise.store.schema.rows import LAST_VERSION


def quarantine(dialect: Dialect, connection: sa.Connection, key: Key, error: str) -> None:
    """Postpone a waiting row that no claim can take, or end it; its ``last_error`` says why."""
    tasks = dialect.tables.tasks
    mine = [*of_key(tasks, key), *dialect.conditions.waiting()]
    values = _quarantined(dialect, connection, error)
    connection.execute(tasks.update().where(*mine).values(**values))


def quarantine_held(
    dialect: Dialect,
    connection: sa.Connection,
    claim: Claim,
    outcome: records.AttemptOutcome,
    error: str,
) -> str | None:
    """As ``quarantine``, for a held row, under its claim's fence; return its state, None if the
    claim was lost.

    The ledger gets the handler's outcome. Without one, the next claim finds an orphan there.
    """
    tasks = dialect.tables.tasks
    row = claim.row
    mine = dialect.conditions.held(claim)
    if isinstance(outcome, records.Died):
        mine.append(tasks.c.last_heartbeat.is_not_distinct_from(row.last_heartbeat))
    values = _quarantined(dialect, connection, error) | RELEASED
    values["version"] = min(row.version, LAST_VERSION + 1) + 1
    statement = tasks.update().where(*mine).values(**values)
    written = dialect.reading(statement, tasks.c.state)(connection)
    if not written:
        return None
    ends = isinstance(outcome, records.Succeeded | records.Failed | records.Cancelled)
    if ends and row.ledger_key is not None and not getattr(outcome, "promised", False):
        ended = dialect.tables.slots.update().where(*dialect.conditions.open_entry(row))
        now = dialect.now(connection)
        connection.execute(
            ended.values(outcome=outcome.name, reason=Reason.UNREADABLE, finished=now)
        )
    return written[0][0] or Release.POSTPONED


def _quarantined(dialect: Dialect, connection: sa.Connection, error: str) -> Values:
    """An error never ends a job."""
    tasks = dialect.tables.tasks
    due = tasks.c.execution_time
    goes_on = tasks.c.kind != Kind.TASK
    # In a table of db-scheduler's it may be any.
    is_finite = due.between(EARLIEST, FOREVER)
    again = sa.literal(dialect.now(connection) + UNREADABLE_PAUSE, due.type)
    return {
        "state": sa.case((goes_on, tasks.c.state), else_=RowState.DEAD.value),
        "parked_due": sa.case((goes_on | ~is_finite, sa.null()), else_=due),
        "execution_time": sa.case((goes_on, again), else_=sa.literal(FOREVER, due.type)),
        "last_error": f"{UNREADABLE}{error}".replace("\0", "\\0"),
    }
