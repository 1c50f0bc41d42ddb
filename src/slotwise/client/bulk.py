"""Schedules many tasks at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from slotwise.client.arguments import Item, Task, checked_choice, is_soon, payload_for, taken, weight, when
from slotwise.client.chunks import Chunk, chunks
from slotwise.client.connection import Calls
from slotwise.errors import ConfigurationError, InstanceExists
from slotwise.jobs.context import T
from slotwise.model.records import IfExists
from slotwise.store.connect.caller_transaction import whole
from slotwise.store.dialects.task_statements import BulkResult, Taken
from slotwise.store.queue.queue import Queue

#: Rows in one statement; and in one COPY, which takes what a commit takes however many there are.
CHUNK, COPY_CHUNK = 1_000, 10_000
#: After the first chunk, workers hear of others no more often than this.
GATHER = timedelta(milliseconds=50)


class Bulk(Calls):
    """Schedules many tasks at once."""

    def schedule_many(
        self,
        task: Task[T],
        items: Iterable[T | Item[T]],
        *,
        at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
        if_exists: IfExists | None = None,
        chunk_size: int | None = None,
        copy: bool = False,
        progress: Callable[[BulkResult], object] = lambda tally: None,
        connection: Any = None,
    ) -> BulkResult:
        """Schedule a task for each of ``items`` (its data, or an Item), ``chunk_size`` of them per statement.

        ``items`` are consumed as they come, so any number of them needs little memory. A chunk has 1,000 items, with
        ``copy`` 10,000, and fewer if they have more than 4 MiB of data. Without ``connection`` each chunk is committed,
        and ``progress`` is called with the result so far. An invalid item is reported with its index; its chunk is not
        written, earlier chunks are, also in the caller's transaction.

        ``if_exists`` is as for ``schedule``: if items have ids, the default, "keep", makes it safe to repeat the call.
        ``copy`` uses COPY, which is faster, for new ids: one that is taken raises InstanceExists.
        """
        name, known = self._known(task)
        chosen: IfExists = if_exists or ("raise" if copy else "keep")
        checked_choice(chosen, name)
        if copy and chosen != "raise":
            raise ConfigurationError(f"schedule_many({name!r}): copy cannot look at rows that exist; drop if_exists")
        size = (COPY_CHUNK if copy else CHUNK) if chunk_size is None else chunk_size
        if not isinstance(size, int) or not 1 <= size <= 10_000:
            raise ConfigurationError(f"schedule_many({name!r}, chunk_size={chunk_size!r}): expected 1 to 10,000")
        usual, rank = when(at, delay, name), weight(priority, known, f"schedule_many({name!r}")
        joining = partial(self._joining, connection, name)
        tell = partial(self._tell_of, name) if connection is None else _nobody
        load = _Load(name, joining, chosen, is_own=connection is None, copy=copy, tell=tell, progress=progress)
        try:
            for one in chunks(items, name, payload_for(task, name, known), usual, rank, size):
                load.conclude()
                load.put(one)
        finally:
            load.conclude()  # it stands, whatever came after it
        return load.tally

    def _tell_of(self, name: str, chunk: Chunk, told: bool) -> bool:
        """Wake workers, at once for the first rows that are due, then now and then; whether they have been told."""
        self._wake()
        whens = {id(row.when): row.when for row in chunk.rows}.values()
        if not any(is_soon(when, self._horizon) for when in whens):
            return told
        self._make_store().database.wake_ups.tell(name, within=GATHER if told else timedelta(0))
        return True


def _nobody(chunk: Chunk, told: bool) -> bool:
    """In the caller's transaction the statements tell."""
    return told


class _Load:
    """One call. A chunk that COPY takes is under way while the next one is gathered; any other is done at once."""

    def __init__(
        self,
        name: str,
        joining: Callable[..., AbstractContextManager[tuple[Queue, Any]]],
        if_exists: IfExists,
        *,
        is_own: bool,
        copy: bool,
        tell: Callable[[Chunk, bool], bool],
        progress: Callable[[BulkResult], object],
    ) -> None:
        self.tally = BulkResult()
        self._name, self._joining, self._if_exists = name, joining, if_exists
        self._is_own, self._copy, self._tell, self._progress = is_own, copy, tell, progress
        self._told = False
        self._under_way: tuple[Chunk, ExitStack] | None = None

    def put(self, chunk: Chunk) -> None:
        """Write it, or begin to."""
        if self._if_exists == "raise" or (self._if_exists == "keep" and not chunk.named):
            self._put_new(chunk)
            return
        with self._joining() as (queue, own):
            tally = queue.chunks.put_many(own, self._name, chunk.rows, self._if_exists)
        self._account(chunk, tally)

    def _put_new(self, chunk: Chunk) -> None:
        """All of it, or nothing, which leaves the caller's transaction as it was before."""
        with self._naming_what_is_taken(chunk), ExitStack() as stack:
            queue, own = stack.enter_context(self._joining())
            if not self._is_own and chunk.named:
                stack.enter_context(whole(own))
            if not (self._copy and self._is_own):
                queue.chunks.put_new(own, self._name, chunk.rows, copy=self._copy)
            elif (answer := queue.chunks.copy_ahead(own, self._name, chunk.rows)) is not None:
                stack.callback(answer)
                self._under_way = chunk, stack.pop_all()
                return
        self._account(chunk, BulkResult(scheduled=len(chunk.rows)))

    def conclude(self) -> None:
        """Wait for what is under way."""
        if self._under_way is None:
            return
        (chunk, answer), self._under_way = self._under_way, None
        with self._naming_what_is_taken(chunk):
            answer.close()
        self._account(chunk, BulkResult(scheduled=len(chunk.rows)))

    def _account(self, chunk: Chunk, tally: BulkResult) -> None:
        self.tally += tally
        self._told = self._tell(chunk, self._told)
        self._progress(self.tally)

    @contextmanager
    def _naming_what_is_taken(self, chunk: Chunk) -> Iterator[None]:
        """Race: the task that had the id may have ended since."""
        try:
            yield
        except Taken:
            with self._joining() as (queue, own):
                found = chunk.place_of(queue.tasks.taken(own, self._name, [row.instance for row in chunk.rows]))
            if found is None:
                raise taken(self._name, None) from None
            raise InstanceExists(f"items[{found[0]}]: {taken(self._name, found[1])}") from None
