"""Publishing: one INSERT in the caller's transaction, which locks no other row and reads none."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Final, TypeAlias
from uuid import UUID

import sqlalchemy as sa

from slotwise import ConfigurationError, OneTimeTask, TaskContext, task
from slotwise.spi import Definition, Dialect, Joinable, define

LONGEST_NAME: Final = 100
LONGEST_KEY: Final = 200
#: What a notification says: an event is waiting. No task has such a name.
WORD: Final = "events "
#: How similar a name must be to a known one to be taken for a typing mistake.
_SIMILAR: Final = 0.85
#: What a key may be.
Key: TypeAlias = str | int | UUID

_NUMBER: Final = sa.select(sa.func.last_insert_id())
_KINDS: dict[object, Definition] = {}


def checked_event(name: object, where: str) -> str:
    """Return the name of an event. Raise ConfigurationError for one that cannot be stored."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise ConfigurationError(
            f"{where}: the event {name!r:.120} is no name; expected 1 to {LONGEST_NAME} "
            "characters, such as 'order.paid'"
        )
    if not name.isprintable() or name != name.strip():
        raise ConfigurationError(
            f"{where}: the event {name!r} has blanks around it, or characters that cannot be "
            "printed; write a name such as 'order.paid'"
        )
    return name


def checked_key(key: object, where: str) -> str | None:
    """Return a key as a string. Raise ConfigurationError for one that cannot be stored."""
    if key is None:
        return None
    if isinstance(key, bool) or not isinstance(key, Key):
        raise ConfigurationError(
            f"{where}: key={key!r:.80} is a {type(key).__name__}; expected a string, an int or a "
            "UUID, or None for events without an order"
        )
    text = str(key)
    if not 0 < len(text) <= LONGEST_KEY:
        raise ConfigurationError(
            f"{where}: key={text[:40]!r}… has {len(text)} characters; expected 1 to {LONGEST_KEY}: "
            "publish with a shorter one, such as the id of the order"
        )
    if "\0" in text:
        raise ConfigurationError(
            f"{where}: key={text!r:.80} has a NUL, which no text column can store; remove it"
        )
    return text


def refuse_typos(name: str, known: Collection[str], where: str) -> None:
    """Raise ConfigurationError for a name that is almost a known one."""
    if name in known:
        return
    near = difflib.get_close_matches(name, sorted(known), 1, _SIMILAR)
    if near:
        raise ConfigurationError(
            f"{where}: no handler and no declaration has the event {name!r}; did you mean "
            f"{near[0]!r}? If it is another event, say so: events.declare({name!r})"
        )


def payload_of_type(kind: object) -> Definition:
    """Return a declaration whose payload has this type, to write data with."""
    if (found := _KINDS.get(kind)) is None:
        made: OneTimeTask[object] = task(name="event", payload=kind)(_nothing)
        found = _KINDS[kind] = define(made)
    return found


def _nothing(ctx: TaskContext[object]) -> None:
    """A handler that is never run."""


class Publisher:
    """Inserts events; keeps its statement, which takes longer to build than to run."""

    def __init__(self, dialect: Dialect, channel: str | None) -> None:
        """``channel``: where workers are notified; None: nobody is."""
        self._dialect = dialect
        self._channel = channel if dialect.name == "postgresql" else None
        #: MySQL has no INSERT … RETURNING, and no other statement comes between these two.
        self._returns = dialect.name != "mysql"
        self._kept: sa.Executable | None = None

    def insert(
        self, own: Joinable, name: str, key: str | None, data: bytes | None
    ) -> int:
        """Insert an event; return its number. Workers are notified at the commit."""
        statement = self._kept
        if statement is None:
            statement = self._statement(own)
            if self._dialect.name == "postgresql" and self._has_own_time:
                self._kept = statement
        values = {"event": name, "order": key, "body": data}
        result = own.execute(statement, values)
        if not self._returns:
            result = own.execute(_NUMBER)
        row = result.fetchone()
        assert row is not None
        return int(row[0])

    @property
    def _has_own_time(self) -> bool:
        """Whether the statement takes the database's time, not that of a test."""
        return self._dialect.clock.override() is None

    def _statement(self, own: Joinable) -> sa.Executable:
        events = self._dialect.tables.events
        new = events.insert().values(
            name=sa.bindparam("event", type_=sa.Text),
            key=sa.bindparam("order", type_=sa.Text),
            data=sa.bindparam("body", type_=sa.LargeBinary),
            published=self._dialect.ago(own),
        )
        if not self._returns:
            return new.inline()
        if self._channel is None:
            return new.returning(events.c.id)
        notified = sa.func.pg_catalog.pg_notify(self._channel, WORD)
        return new.returning(events.c.id, notified)
