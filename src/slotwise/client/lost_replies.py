"""Tasks whose insert may have been committed although its reply was lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from slotwise.client.transactions import errors_of
from slotwise.errors import CommitUnknown, DatabaseProblem, DatabaseUnreachable
from slotwise.model.records import Key
from slotwise.store.connect.database import ANSWER, SentTransaction, was_committed

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

#: Seconds before each look for the row: the server may still be busy with it.
_PAUSES = (0.0, 0.1, 0.3, 0.6)


class LostReplies:
    """The lost replies of one client; ``exists`` says whether a task has a row."""

    def __init__(
        self, store: Callable[[], Store], exists: Callable[[Key], bool]
    ) -> None:
        self._make_store = store
        self._exists = exists
        #: The transaction; None for a statement by itself: only the row can show that
        #: it was committed.
        self._transactions: dict[Key, SentTransaction | None] = {}

    @contextmanager
    def noted(self, key: Key, *, is_single: bool) -> Iterator[None]:
        """Note a lost reply to the insert of this task, ``is_single`` by one statement, and then
        look for its row. Raise CommitUnknown.
        """
        try:
            yield
        except CommitUnknown as error:
            sent = error.transaction
            self._transactions[key] = (
                None if sent is None else SentTransaction(sent, error.timeline)
            )
            error.id = key.task_instance
            raise
        except DatabaseUnreachable as error:
            is_lost = getattr(error.__cause__, "connection_invalidated", False)
            if not (is_single and is_lost):
                raise
            self._transactions[key] = None
            self._was_committed(key)

    def was_scheduled(self, key: Key) -> bool:
        """Return whether a call whose reply was lost has scheduled the task. Raise
        CommitUnknown.
        """
        return key in self._transactions and self._was_committed(key)

    def _was_committed(self, key: Key) -> bool:
        store = self._make_store()
        transaction = self._transactions[key]
        if transaction is not None:
            with errors_of(store, key.task_name, is_own=True):
                found = was_committed(
                    store.database, store.dialect.committed, transaction, ANSWER
                )
            del self._transactions[key]
            return found
        for pause in _PAUSES:
            time.sleep(pause)
            with suppress(DatabaseProblem):
                if self._exists(key):
                    del self._transactions[key]
                    return True
        unknown = CommitUnknown(
            f"the reply to schedule({key.task_name!r}) was lost: the task "
            f"{key.task_instance!r} was not scheduled, or "
            "it has run already; with an id of yours, the database can tell"
        )
        unknown.id = key.task_instance
        raise unknown
