"""How an operation is carried out: its author, its transactions, and its rehearsal."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import tenacity

from slotwise.client.arguments import AnyTask, name_of
from slotwise.store.connect.database_errors import is_transient
from slotwise.store.connect.notifications import OPERATIONS
from slotwise.store.operations.transaction import (
    Author,
    Operation,
    Progress,
    carry_out,
)
from slotwise.store.planning.renames import row_name

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

Result = TypeVar("Result")

#: So often an operation is requested again that met a deadlock, or a row that stayed locked.
TRIES = 4


class How(TypedDict, total=False):
    """The keywords of each operation: why it is requested, and whether it is only rehearsed.

    ``progress`` is called with the number of rows that are done, after each transaction of a long
    one.
    """

    note: str | None
    dry_run: bool
    progress: Callable[[int], object] | None


class Requester:
    """Carries out operations, one transaction after another, and wakes the workers."""

    def __init__(
        self,
        store: Callable[[], Store],
        wake: Callable[[], None] = lambda: None,
        *,
        author: str | None = None,
    ) -> None:
        self._make_store = store
        self._wake = wake
        self._author = author

    def _row_name(self, job: AnyTask) -> str:
        return row_name(self._make_store(), name_of(job))

    def _operate(
        self, operation: Callable[[Operation], Result], **how: Unpack[How]
    ) -> Result:
        result = self._carry_out(operation, **how)
        self._tell(**how)
        return result

    def _chunks(
        self, operation: Callable[..., Progress], **how: Unpack[How]
    ) -> Progress:
        """Carry out an operation on all rows of a job, chunk by chunk. Given again, it continues
        where it ended.
        """
        so_far = Progress(is_rehearsed=how.get("dry_run", False))
        progress = how.get("progress")
        while not so_far.is_done:
            so_far = self._carry_out(partial(operation, so_far=so_far), **how)
            if progress is not None:
                progress(so_far.rows)
        self._tell(**how)
        return so_far

    def _carry_out(
        self, operation: Callable[[Operation], Result], **how: Unpack[How]
    ) -> Result:
        author = Author(self._author or this_user(), how.get("note"))
        store = self._make_store()
        retrying = _retrying()
        with store.database.in_words():
            found: Result = retrying(
                carry_out, store, author, operation, rehearse=how.get("dry_run", False)
            )
        return found

    def _tell(self, **how: Unpack[How]) -> None:
        if not how.get("dry_run"):
            self._wake()
            self._make_store().database.wake_ups.tell(OPERATIONS)


def _retrying() -> tenacity.Retrying:
    wait = tenacity.wait_exponential(multiplier=0.05, max=1)
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_transient),
        stop=tenacity.stop_after_attempt(1 + TRIES),
        wait=wait + tenacity.wait_random(0, 0.05),
        reraise=True,
    )


def this_user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
