"""The table of rows that could not be processed.

Each write is one statement in a transaction of its own, between two batches. Two workers may note
the same row: both are counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

import sqlalchemy as sa

from slotwise import Client, ConfigurationError
from slotwise.contrib.batches.keys import Key, key_text, read_key
from slotwise.inspect import Value
from slotwise.spi import storable

#: So many rows of one source may be set aside; more are not an exception any more. When so many
#: are left out, a walk tries the failing ones again before it goes on.
MOST: Final = 1_000
#: More often than any row fails.
NEVER: Final = 2**31 - 1
_LONGEST_ERROR: Final = 2_000


class AsideState(StrEnum):
    """``failing`` rows are tried again, those that are ``set_aside`` only after ``retry``, and
    ``dropped`` ones never.
    """

    FAILING = "failing"
    SET_ASIDE = "set_aside"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class AsideRow(Value):
    """A row that a job or a task could not process, with its last error."""

    job: str
    source: str
    key: str
    state: AsideState
    tries: int
    first_failed: datetime
    last_failed: datetime
    error: str = field(repr=False)

    @property
    def row_key(self) -> Key:
        return read_key(self.key)


class SetAside:
    """Reads and writes the table."""

    def __init__(self, client: Client) -> None:
        self._database = client.database
        self._dialect = client.dialect
        self._table = self._dialect.tables.set_aside

    def now(self) -> datetime:
        """The database's time."""
        with self._database.in_words(), self._database.autocommit() as connection:
            return self._dialect.now(connection)

    def rows(self, job: str, source: str) -> list[AsideRow]:
        """Return all rows of one source. Raises ConfigurationError if more than 1,000 are set
        aside.
        """
        own = self._table.c
        mine = own.task_name == job, own.source == source
        found = self._read(sa.select(self._table).where(*mine))
        count = sum(row.state is AsideState.SET_ASIDE for row in found)
        if count > MOST:
            raise ConfigurationError(
                f"{job}: {count:,} rows are set aside, at most {MOST:,} may be; mend their cause, "
                f"then: slotwise batches retry {job} --all; or give them up: "
                f"slotwise batches drop {job} --all"
            )
        return found

    def listed(self, job: str | None = None, limit: int = 100) -> list[AsideRow]:
        """Return rows that are set aside or failing, those that failed last first."""
        own = self._table.c
        wanted = sa.select(self._table).where(own.state != AsideState.DROPPED)
        if job is not None:
            wanted = wanted.where(own.task_name == job)
        newest = own.last_failed.desc(), own.task_name, own.source, own.row_key
        return self._read(wanted.order_by(*newest).limit(limit))

    def note(
        self, job: str, source: str, key: Key, error: BaseException, tries: int
    ) -> AsideRow:
        """Count a failure of a row, which is set aside when it has failed ``tries`` times, or
        never by ``NEVER``; return what is known of it.
        """
        mine = {"task_name": job, "source": source, "row_key": key_text(key)}
        text = storable(f"{type(error).__name__}: {error}")[:_LONGEST_ERROR]
        try:
            return self._count(mine, text, tries)
        except sa.exc.IntegrityError:
            # Race: another worker has noted the same row between the update and the insert.
            return self._count(mine, text, tries)

    def _count(self, mine: dict[str, str], text: str, tries: int) -> AsideRow:
        own = self._table.c
        count = own.tries + 1
        state = sa.case(
            (own.state == AsideState.DROPPED, own.state),
            (count >= tries, AsideState.SET_ASIDE.value),
            else_=AsideState.FAILING.value,
        )
        change = self._table.update().where(*self._is(mine))
        with self._database.transaction() as connection:
            now = self._dialect.now(connection)
            failed = {"error": text, "last_failed": now}
            changed = connection.execute(
                change.values(tries=count, state=state, **failed)
            )
            if not changed.rowcount:
                first = AsideState.SET_ASIDE if tries <= 1 else AsideState.FAILING
                new = {**mine, "state": first, "tries": 1, "first_failed": now}
                connection.execute(self._table.insert().values(**new, **failed))
            found = connection.execute(sa.select(self._table).where(*self._is(mine)))
            return _row(found.mappings().one())

    def forget(self, job: str, source: str, key: Key) -> None:
        """Delete the entry of a row that was processed, or that is gone."""
        mine = {"task_name": job, "source": source, "row_key": key_text(key)}
        with self._database.in_words(), self._database.transaction() as connection:
            connection.execute(self._table.delete().where(*self._is(mine)))

    def retry(self, job: str, keys: Iterable[str] | None) -> int:
        """Let rows be tried again by the next run, None: all that are set aside; return how
        many.
        """
        own = self._table.c
        is_meant = own.state == AsideState.SET_ASIDE
        if keys is not None:
            is_meant = own.row_key.in_(_forms(keys))
        return self._change(job, is_meant, AsideState.FAILING)

    def drop(self, job: str, keys: Iterable[str] | None) -> int:
        """Never try rows again, None: all that are set aside; return how many."""
        own = self._table.c
        is_meant = own.state == AsideState.SET_ASIDE
        if keys is not None:
            is_meant = own.row_key.in_(_forms(keys))
        return self._change(job, is_meant, AsideState.DROPPED)

    def _change(
        self, job: str, is_meant: sa.ColumnElement[bool], state: AsideState
    ) -> int:
        change = self._table.update().where(self._table.c.task_name == job, is_meant)
        with self._database.in_words(), self._database.transaction() as connection:
            return connection.execute(change.values(state=state, tries=0)).rowcount

    def _is(self, mine: dict[str, str]) -> list[sa.ColumnElement[bool]]:
        return [self._table.c[name] == value for name, value in mine.items()]

    def _read(self, wanted: sa.Select[tuple[object, ...]]) -> list[AsideRow]:
        with self._database.in_words(), self._database.autocommit() as connection:
            return [_row(row) for row in connection.execute(wanted).mappings()]


def _row(row: sa.RowMapping) -> AsideRow:
    return AsideRow(
        job=row["task_name"],
        source=row["source"],
        key=row["row_key"],
        state=AsideState(row["state"]),
        tries=row["tries"],
        first_failed=row["first_failed"],
        last_failed=row["last_failed"],
        error=row["error"],
    )


def _forms(keys: Iterable[str]) -> list[str]:
    """Return what may be meant by keys as people type them: ``ann`` for ``"ann"``."""
    found = []
    for key in keys:
        found += [key, json.dumps(key, ensure_ascii=False)]
        found += [json.dumps({kind: key}) for kind in ("UUID", "date", "Decimal")]
        with suppress(ValueError):  # the same list, written otherwise
            found.append(json.dumps(json.loads(key), ensure_ascii=False))
    return found
