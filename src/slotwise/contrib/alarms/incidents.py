"""The tables of incidents and silences. Every write names the version that was read and checks how
many rows it changed, so that several watchers agree on one incident and one message.

Races:

- Two watchers find the same. Both insert the next number of the same kind and name; the key admits
  one, and the other watcher continues without an incident.
- Two watchers have the same message to send. Both raise the version of the row from the one that
  they read. One of them changes it, and the other one leaves the message to it.
- A watcher is killed after the delivery and before it is marked. The claim on the message ends
  after ``CLAIM``; it is then delivered again, with the same idempotency key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import sqlalchemy as sa

from slotwise.contrib.alarms.findings import Finding
from slotwise.inspect import Value
from slotwise.spi import Database, Tables, storable, tables

#: How long a watcher may take to deliver a message before another one does.
CLAIM: Final = timedelta(minutes=2)
#: The first pause after a message that could not be delivered, and the longest one.
FIRST_PAUSE: Final = timedelta(seconds=10)
LONGEST_PAUSE: Final = timedelta(minutes=10)
#: How long after the end of an incident its messages are still tried.
GIVE_UP: Final = timedelta(days=7)
#: How long an incident is kept after its end.
KEEP: Final = timedelta(days=90)
#: Messages of one round.
AT_ONCE: Final = 100
OPENED: Final = "opened"
CLOSED: Final = "closed"
#: How often a mark is repeated that other watchers come before.
TRIES: Final = 5
_SUMMARY: Final = 2_000
#: By target and event, when a message was delivered.
Delivered: TypeAlias = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident(Value):
    """One incident. ``delivered``: by target, when it received the message about the begin
    (``opened``) and the end (``closed``). ``error``: why a message could not be delivered.
    """

    kind: str
    name: str
    number: int
    opened: datetime
    seen: datetime
    closed: datetime | None
    summary: str
    delivered: Delivered = field(default_factory=dict)
    next_attempt: datetime | None = None
    attempts: int = 0
    error: str | None = None
    version: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name

    @property
    def is_open(self) -> bool:
        return self.closed is None

    def due_events(self, target: str) -> list[str]:
        """Return which messages this target has not received, in order."""
        events = [OPENED] if self.is_open else [OPENED, CLOSED]
        return [one for one in events if one not in self.delivered.get(target, {})]


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence(Value):
    """Alarms that send no message until then; an empty ``kind`` or ``name`` means all."""

    kind: str
    name: str
    created: datetime
    until: datetime
    author: str
    note: str | None = None

    def covers(self, incident: Incident) -> bool:
        return self.kind in ("", incident.kind) and self.name in ("", incident.name)


class Incidents:
    """Reads and writes both tables. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        settings = database.settings
        self._database = database
        self._tables: Tables = tables(
            settings.table_prefix, settings.schema, database.dialect_name
        )
        self._incidents = self._tables.incidents
        self._silences = self._tables.silences

    # -- what is there ----------------------------------------------------------------------------

    def latest(self) -> dict[tuple[str, str], Incident]:
        """Return the newest incident of each kind and name."""
        rows = self._incidents.c
        newest = sa.select(
            rows.kind, rows.name, sa.func.max(rows.number).label("number")
        ).group_by(rows.kind, rows.name)
        last = newest.subquery()
        is_last = sa.and_(
            rows.kind == last.c.kind,
            rows.name == last.c.name,
            rows.number == last.c.number,
        )
        found = self._read(sa.select(self._incidents).join(last, is_last))
        return {one.key: one for one in found}

    def listed(self, limit: int) -> list[Incident]:
        """Return the newest incidents: those that are open, then the others."""
        rows = self._incidents.c
        is_over = sa.case((rows.closed.is_(None), 0), else_=1)
        order = is_over, rows.opened.desc(), rows.kind, rows.name
        return self._read(sa.select(self._incidents).order_by(*order).limit(limit))

    def silences(self, now: datetime) -> list[Silence]:
        """Return the silences that last."""
        rows = self._silences
        wanted = sa.select(rows).where(rows.c.until > now).order_by(rows.c.until)
        with self._transaction() as connection:
            found = connection.execute(wanted).mappings().all()
        return [Silence(**row) for row in found]

    def _read(self, statement: sa.Select[tuple[object, ...]]) -> list[Incident]:
        with self._transaction() as connection:
            found = connection.execute(statement).mappings().all()
        return [_incident(row) for row in found]

    # -- begin and end ----------------------------------------------------------------------------

    def open(self, finding: Finding, last: Incident | None, now: datetime) -> bool:
        """Write a new incident; False if another watcher was first."""
        row = {
            "kind": str(finding.kind),
            "name": finding.name,
            "number": 1 if last is None else last.number + 1,
            "version": 1,
            "opened": now,
            "seen": finding.at,
            "summary": _text(finding.summary),
            "delivered": "{}",
            "next_attempt": now,
            "attempts": 0,
        }
        with self._transaction() as connection:
            try:
                with connection.begin_nested():
                    connection.execute(self._incidents.insert().values(**row))
            except sa.exc.IntegrityError:
                return False
        return True

    def renew(self, incident: Incident, finding: Finding) -> bool:
        """Write newer evidence of an open incident; False if another watcher changed the row."""
        return self._change(incident, seen=finding.at, summary=_text(finding.summary))

    def close(self, incident: Incident, now: datetime) -> bool:
        """Write that an incident is over; False if another watcher changed the row."""
        return self._change(incident, closed=now, next_attempt=now, attempts=0)

    # -- messages ---------------------------------------------------------------------------------

    def due(self, now: datetime) -> list[Incident]:
        """Return the incidents with messages that are to be sent now: those that have failed
        last, else the oldest first. Those that have been over for ``GIVE_UP`` are left.
        """
        rows = self._incidents.c
        is_news = rows.closed.is_(None) | (rows.closed >= now - GIVE_UP)
        wanted = sa.select(self._incidents).where(rows.next_attempt <= now, is_news)
        return self._read(
            wanted.order_by(rows.attempts, rows.next_attempt, rows.opened).limit(
                AT_ONCE
            )
        )

    def claim(self, incident: Incident, now: datetime) -> Incident | None:
        """Take the messages of an incident for ``CLAIM``; None if another watcher has them."""
        until = now + CLAIM
        if not self._change(incident, next_attempt=until):
            return None
        return replace(incident, version=incident.version + 1, next_attempt=until)

    def put_off(self, incident: Incident, until: datetime | None) -> bool:
        """Send the messages of an incident later, or, with None, never."""
        return self._change(incident, next_attempt=until)

    def mark(
        self,
        incident: Incident,
        delivered: Delivered,
        error: str | None,
        now: datetime,
    ) -> None:
        """Write what was delivered of a claimed incident, and when the rest is tried again.

        Race: another watcher has closed the incident meanwhile, or has newer evidence. The
        deliveries are then added to what it wrote, and its time for the next message stays.
        """
        attempts = incident.attempts + 1 if error else 0
        is_mine = self._change(
            incident,
            delivered=_together(incident, delivered),
            error=None if error is None else _text(error),
            attempts=attempts,
            next_attempt=_next_attempt(incident, attempts, now),
        )
        for _ in range(0 if is_mine else TRIES):
            current = self._current(incident)
            if current is None or self._change(
                current, delivered=_together(current, delivered)
            ):
                return

    def _current(self, incident: Incident) -> Incident | None:
        rows = self._incidents.c
        mine = rows.kind == incident.kind, rows.name == incident.name
        wanted = sa.select(self._incidents).where(
            *mine, rows.number == incident.number
        )
        return next(iter(self._read(wanted)), None)

    # -- silence ----------------------------------------------------------------------------------

    def silence(self, silence: Silence) -> None:
        """Send no messages of these alarms until then; a silence of the same ones is replaced."""
        mine = (
            self._silences.c.kind == silence.kind,
            self._silences.c.name == silence.name,
        )
        with self._transaction() as connection:
            connection.execute(self._silences.delete().where(*mine))
            connection.execute(self._silences.insert().values(**_columns(silence)))

    def end_silence(self, kind: str, name: str) -> bool:
        """End a silence; False if there is none."""
        mine = self._silences.c.kind == kind, self._silences.c.name == name
        with self._transaction() as connection:
            removed = connection.execute(self._silences.delete().where(*mine))
        return bool(removed.rowcount)

    def forget(self, now: datetime) -> int:
        """Delete incidents that have been over for ``KEEP``, and silences that have ended."""
        old = self._incidents.c.closed < now - KEEP
        with self._transaction() as connection:
            connection.execute(
                self._silences.delete().where(self._silences.c.until <= now)
            )
            return connection.execute(self._incidents.delete().where(old)).rowcount

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with self._database.in_words(), self._database.transaction() as connection:
            yield connection

    def _change(self, incident: Incident, **values: object) -> bool:
        rows = self._incidents.c
        mine = (
            rows.kind == incident.kind,
            rows.name == incident.name,
            rows.number == incident.number,
            rows.version == incident.version,
        )
        change = self._incidents.update().where(*mine)
        with self._transaction() as connection:
            changed = connection.execute(
                change.values(version=incident.version + 1, **values)
            )
        return changed.rowcount == 1


def pause_after(attempts: int) -> timedelta:
    """Return how long to wait after this many failed attempts in a row."""
    pause: timedelta = FIRST_PAUSE * 2 ** min(attempts - 1, 20)
    return min(pause, LONGEST_PAUSE)


def covering(silences: Iterable[Silence], incident: Incident) -> Silence | None:
    """Return the silence of an incident that lasts longest; None if there is none."""
    found = [one for one in silences if one.covers(incident)]
    return max(found, key=lambda one: one.until, default=None)


def _next_attempt(incident: Incident, attempts: int, now: datetime) -> datetime | None:
    if not attempts:
        return None
    if incident.closed is not None and now - incident.closed > GIVE_UP:
        return None
    return now + pause_after(attempts)


def _together(incident: Incident, delivered: Delivered) -> str:
    """Return both as JSON."""
    found = {target: {**events} for target, events in incident.delivered.items()}
    for target, events in delivered.items():
        found.setdefault(target, {}).update(events)
    return json.dumps(found, sort_keys=True)


def _incident(row: sa.RowMapping) -> Incident:
    return Incident(**{**row, "delivered": json.loads(row["delivered"])})


def _columns(silence: Silence) -> dict[str, object]:
    return {
        "kind": silence.kind,
        "name": silence.name,
        "created": silence.created,
        "until": silence.until,
        "author": silence.author,
        "note": silence.note,
    }


def _text(text: str) -> str:
    return storable(text)[:_SUMMARY]
