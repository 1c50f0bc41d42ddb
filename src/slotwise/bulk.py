"""Schedules many tasks at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any

from slotwise.asked import Item, Task, checked_choice, is_soon, payload_for, taken, weight, when
from slotwise.calls import Calls
from slotwise.chunks import Chunk, chunks
from slotwise.context import T
from slotwise.errors import ConfigurationError, InstanceExists
from slotwise.sequel import IfExists
from slotwise.store.joining import whole
from slotwise.store.puts import Taken, Tally

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
        in_: timedelta | str | None = None,
        priority: int | None = None,
        if_exists: IfExists = "raise",
        chunk: int | None = None,
        copy: bool = False,
        progress: Callable[[Tally], object] = lambda tally: None,
        connection: Any = None,
    ) -> Tally:
        """Schedule a task for each of ``items`` (its data, or an Item), ``chunk`` of them in a statement.

        ``items`` are taken as they come, so that any number of them needs little memory: a chunk is 1,000 of them, with
        ``copy`` 10,000, and less where they have more than 4 MiB of data. Without ``connection`` each chunk is
        committed, and ``progress`` called with the tally so far. What is wrong with an item is said with its place; its
        chunk is not written, what went before stays, also in the caller's transaction. An id that stands twice finds
        its first row, as in two calls.

        Where items have ids, ``if_exists="keep"`` makes it safe to do it all again. ``copy`` uses COPY, twice as fast,
        for ids that are new: one that is taken raises InstanceExists.
        """
        name, known = self._known(task)
        checked_choice(if_exists, name)
        if copy and if_exists != "raise":
            raise ConfigurationError(f"schedule_many({name!r}): copy cannot look at rows that exist; drop if_exists")
        size = (COPY_CHUNK if copy else CHUNK) if chunk is None else chunk
        if not isinstance(size, int) or not 1 <= size <= 10_000:
            raise ConfigurationError(f"schedule_many({name!r}, chunk={chunk!r}): expected 1 to 10,000")
        usual, rank = when(at, in_, name), weight(priority, known, f"schedule_many({name!r}")
        tally, told = Tally(), False
        for one in chunks(items, name, payload_for(task, name, known), usual, rank, size):
            if if_exists == "raise":
                self._put_new(connection, name, one, copy=copy)
                tally += Tally(scheduled=len(one.rows))
            else:
                with self._joining(connection, name) as (queue, own):
                    tally += queue.put_many(own, name, one.rows, if_exists)
            if connection is None:
                told = self._tell_of(name, one, told=told)
            progress(tally)
        return tally

    def _put_new(self, connection: Any, name: str, chunk: Chunk, *, copy: bool) -> None:
        """All of it, or nothing, which leaves the caller's transaction as it was before."""
        try:
            with (
                self._joining(connection, name, once=copy or not chunk.named) as (queue, own),
                whole(own) if connection is not None and chunk.named else nullcontext(),
            ):
                queue.put_new(own, name, chunk.rows, copy=copy)
        except Taken:
            raise self._taken(connection, name, chunk) from None

    def _taken(self, connection: Any, name: str, chunk: Chunk) -> InstanceExists:
        """Race: the task that had the id may have ended since."""
        with self._joining(connection, name) as (queue, own):
            found = chunk.place_of(queue.taken(own, name, [row.instance for row in chunk.rows]))
        if found is None:
            return taken(name, None)
        place, instance = found
        return InstanceExists(f"items[{place}]: {taken(name, instance)}")

    def _tell_of(self, name: str, chunk: Chunk, *, told: bool) -> bool:
        """Wake workers, at once for the first rows that are due, then now and then; whether they have been told."""
        self._wake()
        whens = {id(row.when): row.when for row in chunk.rows}.values()
        if not any(is_soon(when, self._horizon) for when in whens):
            return told
        self._make_store().database.wake_ups.tell(name, within=GATHER if told else timedelta(0))
        return True
