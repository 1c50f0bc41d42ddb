"""Hooks inside the settlement's own transaction: what they write is committed with it, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

import sqlalchemy as sa

from slotwise.errors import ConfigurationError
from slotwise.model.error_text import error_summary
from slotwise.model.events import Settled, about
from slotwise.model.records import Claim
from slotwise.model.vocabulary import Release
from slotwise.store.connect.database_errors import is_transient
from slotwise.store.schema.rows import Change

logger = logging.getLogger(__name__)

#: ``after_settle(rows, tx)`` receives what is being settled, a batch at a time, and the settlement's connection. It
#: writes with that connection, and quickly: rows are locked meanwhile. It neither commits nor rolls back.
AfterSettle: TypeAlias = Callable[[Sequence[Settled], sa.Connection], None]


class SettlementHooks:
    """Calls all of them, each within a savepoint: one that fails is logged and leaves nothing, and slots settle."""

    def __init__(self, hooks: Sequence[AfterSettle] = ()) -> None:
        self._hooks = tuple(hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def write(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        """What these changes settle; what was handed back is settled by nobody."""
        if not self._hooks:
            return
        settled = [_settled(change) for change in changes if change.transition.label != Release.HANDED_BACK]
        for hook in self._hooks if settled else ():
            try:
                with connection.begin_nested(), _kept_open(connection):
                    hook(settled, connection)
            except Exception as error:
                if is_transient(error):
                    raise  # the whole settlement is tried again
                logger.exception("an after_settle hook failed; what it wrote is rolled back, and the slots are settled")


@contextmanager
def _kept_open(connection: sa.Connection) -> Iterator[None]:
    """Without its transaction the settlement would fail as a whole, and again, for ever."""
    ends = ("commit", "rollback", "close", "invalidate")
    for name in ends:
        setattr(connection, name, partial(_refuse, name))
    try:
        yield
    finally:
        for name in ends:
            delattr(connection, name)  # the class's own is seen again


def _refuse(name: str, *_: object, **__: object) -> None:
    raise ConfigurationError(
        f"an after_settle hook has called connection.{name}(); the transaction is the settlement's, and ends with it: "
        "leave that call out, or write with a connection of your own"
    )


def _settled(change: Change) -> Settled:
    row, record = change.held.row, change.transition.record or change.transition.ended
    now = change.held.now
    claim = Claim(row=row, holder=row.picked_by or "", lease=row.lease or now - now, claimed_at=now)
    error = (record.error if record else None) or (change.transition.row or {}).get("last_error")
    return Settled(
        **about(claim), outcome=change.transition.label, reason=record.reason if record else None,
        error=error_summary(error) if error else None,
    )  # fmt: skip
