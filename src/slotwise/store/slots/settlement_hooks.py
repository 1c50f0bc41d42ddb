"""Hooks in the transaction of a settlement."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

import sqlalchemy as sa

from slotwise.errors import ConfigurationError
from slotwise.model.error_text import error_summary
from slotwise.model.events import Settled, about
from slotwise.model.vocabulary import Release
from slotwise.store.connect.database_errors import is_transient
from slotwise.store.schema.rows import Change, claim_of

logger = logging.getLogger(__name__)

#: ``after_settle(rows, tx)`` receives what is being settled of its tasks, and the settlement's
#: connection. It must be quick, for rows are locked, and must neither commit nor roll back.
AfterSettle: TypeAlias = Callable[[Sequence[Settled], sa.Connection], None]


class SettlementHooks:
    """Calls each hook in a savepoint: one that fails is logged and rolled back, and the slots are
    settled.
    """

    def __init__(self, hooks: Mapping[str, AfterSettle] | None = None) -> None:
        """``hooks``: the hook of each job or task that has one."""
        hooks = hooks or {}
        #: The jobs and tasks that have a hook. All others keep the fast path.
        self.names = frozenset(hooks)
        self._names_of = {
            hook: {name for name, its in hooks.items() if its is hook}
            for hook in hooks.values()
        }

    def write(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        """Call the hooks with what these changes settle. A row that was handed back is not
        settled.
        """
        for hook, names in self._names_of.items():
            settled = [
                _settled(change)
                for change in changes
                if change.held.row.task_name in names
                and change.transition.label != Release.HANDED_BACK
            ]
            if settled:
                self._call(hook, settled, connection)

    def _call(
        self, hook: AfterSettle, settled: Sequence[Settled], connection: sa.Connection
    ) -> None:
        try:
            with connection.begin_nested(), _kept_open(connection):
                hook(settled, connection)
        except Exception as error:
            if is_transient(error):
                raise  # the whole settlement is tried again
            logger.exception(
                "an after_settle hook failed; what it wrote is rolled back, "
                "and the slots are settled"
            )


@contextmanager
def _kept_open(connection: sa.Connection) -> Iterator[None]:
    """Keep a hook from ending the settlement's transaction: the settlement would fail again and
    again.
    """
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
        f"an after_settle hook has called connection.{name}(); the transaction is "
        "the settlement's, and ends with it: "
        "leave that call out, or write with a connection of your own"
    )


def _settled(change: Change) -> Settled:
    record = change.transition.record or change.transition.ended
    error = (record.error if record else None) or (change.transition.row or {}).get(
        "last_error"
    )
    return Settled(
        **about(claim_of(change.held.row)),
        outcome=change.transition.label,
        reason=record.reason if record else None,
        error=error_summary(error) if error else None,
    )
