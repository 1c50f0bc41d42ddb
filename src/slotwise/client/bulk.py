"""Many tasks at once: items become rows, a chunk at a time, and each chunk is one statement or one
COPY.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from slotwise.client.arguments import Item, fresh_ids, taken, wanted
from slotwise.client.transactions import repeated
from slotwise.errors import ConfigurationError, InstanceExists, SlotwiseError
from slotwise.model.records import IfExists, Wanted, When, is_whole
from slotwise.payload.payload import Payload
from slotwise.store.connect.caller_transaction import Joinable, whole
from slotwise.store.dialects.task_statements import Taken
from slotwise.store.queue.queue import BulkResult, Queue

#: Rows in one statement; and in one COPY, where larger chunks save commits.
CHUNK = 1_000
COPY_CHUNK = 10_000
#: Bytes of data in one statement; the data of its last task may exceed this.
BYTES = 4 * 1_048_576
#: After the first chunk, workers are notified no more often than this.
GATHER = timedelta(milliseconds=50)


class Chunk(NamedTuple):
    """Rows with different ids, the place of the first among all items, and whether some have given
    ids (``named``).
    """

    first: int
    rows: list[Wanted]
    named: bool


def size_of_chunks(given: object, copy: bool, name: str) -> int:
    """Return how many items a chunk has at most. Raise ConfigurationError."""
    if given is None:
        return COPY_CHUNK if copy else CHUNK
    if not is_whole(given, 1, COPY_CHUNK):
        raise ConfigurationError(
            f"schedule_many({name!r}, chunk_size={given!r}): expected 1 to {COPY_CHUNK:,}"
        )
    return given


def chunks(
    items: Iterable[object],
    name: str,
    payload: Payload,
    usual: When,
    priority: int,
    size: int,
) -> Iterator[Chunk]:
    """Yield the items as chunks of validated rows with different ids; no later item is consumed.

    Raises what ``schedule`` raises, with the place of the item.
    """
    ids = fresh_ids()
    begun = _Open(0)
    for place, item in enumerate(taken_one_by_one(items, f"schedule_many({name!r}")):
        with naming_item(place, item):
            row = wanted(item, name, payload, ids, usual, priority)
        if row.instance in begun.seen:
            yield begun.chunk
            begun = _Open(place)
        begun.add(row, named=isinstance(item, Item) and item.id is not None)
        if len(begun.rows) >= size or begun.held >= BYTES:
            yield begun.chunk
            begun = _Open(place + 1)
    if begun.rows:
        yield begun.chunk


class _Open:
    """A chunk that takes further rows."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.rows = list[Wanted]()
        self.seen = set[str]()
        self.held = 0
        self.named = False

    def add(self, row: Wanted, *, named: bool) -> None:
        self.rows.append(row)
        self.seen.add(row.instance)
        self.held += 0 if row.data is None else len(row.data)
        self.named = self.named or named

    @property
    def chunk(self) -> Chunk:
        return Chunk(self.first, self.rows, self.named)


@contextmanager
def naming_item(place: int, item: object) -> Iterator[None]:
    """Say in an error which item it is about."""
    try:
        yield
    except SlotwiseError as error:
        id = getattr(item, "id", None)
        own = f" (id {id!r:.60})" if isinstance(id, str) else ""
        raise type(error)(f"items[{place}]{own}: {error}") from error


def taken_one_by_one(items: object, call: str) -> Iterator[object]:
    where = f"{call}, items={items!r:.60})"
    if hasattr(items, "__aiter__"):
        raise ConfigurationError(
            f"{where}: cannot be awaited here; collect first: [one async for one in items]"
        )
    if isinstance(items, str | bytes | Mapping) or not hasattr(items, "__iter__"):
        raise ConfigurationError(
            f"{where}: expected a list or another iterable of data or Items"
        )
    return iter(items)


@dataclass(slots=True)
class Load:
    """One call of ``schedule_many``; ``thread`` writes a chunk while the next one is gathered.

    ``tell`` notifies workers of a chunk; None: the rows join the caller's transaction, and the
    statements notify.
    """

    name: str
    joining: Callable[[], AbstractContextManager[tuple[Queue, Joinable]]]
    if_exists: IfExists
    copy: bool
    thread: ThreadPoolExecutor | None
    tell: Callable[[Chunk, bool], bool] | None
    progress: Callable[[BulkResult], object]
    _tally: BulkResult = field(default_factory=BulkResult)
    _told: bool = False
    _under_way: tuple[Chunk, Future[None]] | None = None

    def put_all(self, chunks: Iterable[Chunk]) -> BulkResult:
        """Write all chunks; what was written before an error stays."""
        try:
            for chunk in chunks:
                self._conclude()
                self._put(chunk)
        finally:
            try:
                self._conclude()
            finally:
                if self.thread is not None:
                    self.thread.shutdown(wait=False)
        return self._tally

    @repeated
    def _put(self, chunk: Chunk) -> None:
        if self.if_exists in ("replace", "reschedule") or (
            self.if_exists == "keep" and chunk.named
        ):
            with self.joining() as (queue, own):
                tally = queue.put_many(own, self.name, chunk.rows, self.if_exists)
            self._account(chunk, tally)
        elif self.thread is not None:
            self._under_way = chunk, self.thread.submit(self._write_new, chunk)
        else:
            with self._naming_what_is_taken(chunk):
                self._write_new(chunk)
            self._account(chunk, BulkResult(scheduled=len(chunk.rows)))

    def _write_new(self, chunk: Chunk) -> None:
        """Write the whole chunk, or nothing; then the caller's transaction is as it was before."""
        is_joined = self.tell is None and chunk.named
        with (
            self.joining() as (queue, own),
            whole(own) if is_joined else nullcontext(),
        ):
            queue.put_new(own, self.name, chunk.rows, copy=self.copy)

    def _conclude(self) -> None:
        if self._under_way is None:
            return
        (chunk, written), self._under_way = self._under_way, None
        with self._naming_what_is_taken(chunk):
            written.result()
        self._account(chunk, BulkResult(scheduled=len(chunk.rows)))

    def _account(self, chunk: Chunk, tally: BulkResult) -> None:
        self._tally += tally
        self._told = self._told if self.tell is None else self.tell(chunk, self._told)
        self.progress(self._tally)

    @contextmanager
    def _naming_what_is_taken(self, chunk: Chunk) -> Iterator[None]:
        """Name the item whose id is taken. Race: the task that had the id may have ended since."""
        try:
            yield
        except Taken:
            with self.joining() as (queue, own):
                ids = set(
                    queue.tasks.taken(
                        own, self.name, [row.instance for row in chunk.rows]
                    )
                )
            for place, row in enumerate(chunk.rows, chunk.first):
                if row.instance in ids:
                    raise InstanceExists(
                        f"items[{place}]: {taken(self.name, row.instance)}"
                    ) from None
            raise taken(self.name, None) from None
