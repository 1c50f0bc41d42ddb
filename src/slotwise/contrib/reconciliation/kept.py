"""The newest comparison, in a row of ``scheduled_meta``: all processes show the same one.

Race: two processes may write at once. Each names the value that it has read, and so the second one
writes nothing; both comparisons are of the same minute.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from slotwise import Client
from slotwise.contrib.reconciliation.comparison import Reconciliation, Unexplained
from slotwise.spi import Joinable

#: Grants of ``slotwise db grants`` let a worker and an operator write this row.
KEY: Final = "reconciled"


def kept(client: Client) -> Reconciliation | None:
    """Return the newest comparison of any process; None without one that can be read. Raises
    DatabaseProblem.
    """
    text = client.within(lambda own: _value(client, own))
    return None if text is None else _read(text)


def keep(client: Client, found: Reconciliation) -> None:
    """Write a comparison, unless another process does at this moment, or has a newer one. One from
    the future, before the database's clock was set back, is replaced. Raises DatabaseProblem.
    """
    now = client.inspect.now()
    client.within(lambda own: _write(client, own, found, now))


def _value(client: Client, own: Joinable) -> str | None:
    meta = client.dialect.tables.meta
    row = own.execute(sa.select(meta.c.value).where(meta.c.key == KEY)).fetchone()
    return None if row is None else str(row[0])


def _write(
    client: Client, own: Joinable, found: Reconciliation, now: datetime
) -> None:
    text = _text(found)
    before = _value(client, own)
    meta = client.dialect.tables.meta
    if before is None:
        client.dialect.insert_new(own, meta, {"key": KEY, "value": text})
        return
    last = _read(before)
    if last is not None and found.at <= last.at <= now:
        return
    mine = meta.c.key == KEY, meta.c.value == before
    own.execute(sa.update(meta).where(*mine).values(value=text))


def _text(found: Reconciliation) -> str:
    slots = [[one.job, one.id, one.slot.isoformat()] for one in found.unexplained]
    return json.dumps(
        {
            "since": found.since.isoformat(),
            "at": found.at.isoformat(),
            "jobs": found.jobs,
            "count": found.count,
            "complete": found.complete,
            "unexplained": slots,
        }
    )


def _read(text: str) -> Reconciliation | None:
    """Return None for a text of another release."""
    try:
        row = json.loads(text)
        return Reconciliation(
            since=datetime.fromisoformat(row["since"]),
            at=datetime.fromisoformat(row["at"]),
            jobs=int(row["jobs"]),
            count=int(row["count"]),
            complete=bool(row["complete"]),
            unexplained=[
                Unexplained(job=job, id=id, slot=datetime.fromisoformat(slot))
                for job, id, slot in row["unexplained"]
            ],
        )
    except (ValueError, TypeError, KeyError):
        return None
