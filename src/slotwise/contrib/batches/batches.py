"""Batches of rows, each in one transaction of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, cast

from sqlalchemy import orm

from slotwise import ConfigurationError, Context
from slotwise.contrib.batches.keys import Key
from slotwise.contrib.batches.pacing import LOOK_AGAIN
from slotwise.contrib.batches.run import NULLS, Options, Run, with_cure
from slotwise.contrib.batches.source import Source
from slotwise.contrib.batches.walk import Places, Wanted
from slotwise.spi import elapsed

if TYPE_CHECKING:
    from slotwise.contrib.batches.source import SyncConnection

C = TypeVar("C")
R = TypeVar("R")

#: Called with the connection, the key and the error of a row that is set aside.
HandOver: TypeAlias = Callable[[C, Key, BaseException], object]


@dataclass(slots=True)
class Batch(Generic[C, R]):
    """Rows that are locked in one transaction: ``with batch as rows``.

    The end of the block commits; before that, as the last statement, it proves that the claim is
    valid. An error in the block rolls the batch back. If it may be that of one row, the batch is
    taken again in halves, and the error goes no further.
    """

    #: The Connection, Session or psycopg connection of the transaction.
    connection: C
    rows: Sequence[R]
    _places: Places
    _transaction: AbstractContextManager[C]
    _run: Run
    _source: Source[C, R]
    _hand_over: HandOver[C] | None
    _begun: float = field(default_factory=elapsed)
    #: Seconds to wait before the next batch.
    pause: float = 0.0
    is_open: bool = True

    @property
    def session(self) -> C:
        """The same as ``connection``, for who passed a sessionmaker."""
        return self.connection

    def __enter__(self) -> Sequence[R]:
        return self.rows

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            failure = self._commit()
            if failure is None:
                return False
            if not self._is_dealt_with(failure):
                raise failure
            return True
        self.roll_back(error)
        return self._is_dealt_with(error)

    def roll_back(self, error: BaseException) -> None:
        self.is_open = False
        self._transaction.__exit__(type(error), error, error.__traceback__)

    def _commit(self) -> Exception | None:
        """Guard and commit; return what was raised instead, after the rollback."""
        run = self._run
        try:
            saved = run.to_save(self._places)
            if run.options.guard:
                _prove(run.ctx, cast("SyncConnection", self.connection), saved)
        except Exception as error:
            self.roll_back(error)
            return error
        self.is_open = False
        try:
            self._transaction.__exit__(None, None, None)
        except Exception as error:
            if not run.is_in_doubt(error):
                return error
            if not run.has_saved(saved):
                raise
        if saved is not None and not run.options.guard:
            run.ctx.checkpoint(saved)
        run.succeeded(self._places)
        if run.is_noted:
            run.forget(self._places.first.key)
        self.pause = run.pause_after(len(self.rows), elapsed() - self._begun)
        return None

    def _is_dealt_with(self, error: BaseException) -> bool:
        """Whether the walk goes on after this error."""
        run = self._run
        pause = run.is_refused(error)
        if pause is not None:
            self.pause = pause
            return True
        run.survived()
        if not run.may_set_aside(error):
            return False
        hands_over = self._hand_over is not None
        place = run.blame(self._places, error, hands_over=hands_over)
        if place is not None and self._hand_over is not None:
            self._give(self._hand_over, place.key, error)
        return True

    def _give(self, hand_over: HandOver[C], key: Key, error: BaseException) -> None:
        """Let the user's function take a row over, then delete its note."""
        run = self._run
        with self._source.transaction() as connection:
            hand_over(connection, key, error)
            if run.options.guard:
                _prove(run.ctx, cast("SyncConnection", connection), None)
        run.forget(key)


def _prove(ctx: Context[object], connection: SyncConnection, saved: object) -> None:
    """Write what a session holds back, guard the transaction, and save the checkpoint in it if
    there is one.
    """
    if isinstance(connection, orm.Session):
        connection.flush()
    try:
        if saved is None:
            ctx.guard(connection)
        else:
            ctx.checkpoint(saved, connection)
    except ConfigurationError as error:
        raise with_cure(error) from error


class Batches(Generic[C, R]):
    """The batches of one run: iterate once."""

    def __init__(
        self,
        ctx: Context[object],
        source: Source[C, R],
        options: Options,
        hand_over: HandOver[C] | None = None,
    ) -> None:
        self._source = source
        self._hand_over = hand_over
        self._run = Run(ctx, options)
        #: Whether the last look found only rows that others have locked.
        self._is_left = False
        self._is_prepared = False

    @property
    def is_complete(self) -> bool:
        """Whether all rows were processed or set aside; False if a budget ended the run."""
        return self._run.is_complete

    @property
    def done(self) -> int:
        """How many rows were processed for this slot, in all its attempts."""
        return self._run.done

    def count(self) -> int:
        """Return how many rows the select has now."""
        with self._source.transaction() as connection:
            return self._source.count(connection)

    def __iter__(self) -> Iterator[Batch[C, R]]:
        run = self._run
        run.begin()
        pause = 0.0
        while run.may_go_on():
            if not self._rest(pause):
                return
            wanted = run.next()
            try:
                if not self._is_prepared:
                    self._prepare()
                batch = None if wanted is None else self._take(wanted)
            except Exception as error:
                pause = run.pause_if_refused(error, wanted)
                continue
            if batch is None:
                if run.is_at_end(wanted, is_left=self._is_left):
                    return
                pause = run.pause_before_again()
                continue
            try:
                yield batch
            finally:
                if batch.is_open:
                    batch.roll_back(_NotEntered())
            pause = batch.pause

    def _prepare(self) -> None:
        """Check that no row would be lost, and count the rows if that is wanted."""
        run = self._run
        is_new = run.walk.after is None
        with self._source.transaction() as connection:
            if is_new and self._source.count_nulls(connection):
                raise ConfigurationError(NULLS)
            if run.options.total is True:
                run.total = run.total_of(self._source.count(connection))
        self._is_prepared = True

    def _take(self, wanted: Wanted) -> Batch[C, R] | None:
        """Begin a transaction and take rows; None if there are none."""
        run = self._run
        run.look()
        transaction = self._source.transaction()
        connection = transaction.__enter__()
        try:
            rows, places = self._source.take(connection, wanted)
            run.walk.check(places)
            if rows:
                run.beware(places)
        except BaseException as error:
            transaction.__exit__(type(error), error, error.__traceback__)
            raise
        if rows:
            return Batch(
                connection,
                rows,
                places,
                transaction,
                run,
                self._source,
                self._hand_over,
            )
        self._is_left = self._is_locked_elsewhere(connection, wanted)
        transaction.__exit__(None, None, None)
        return None

    def _is_locked_elsewhere(self, connection: C, wanted: Wanted) -> bool:
        is_skipping = not self._run.options.cursor and wanted.only is None
        return is_skipping and self._source.is_left(connection, wanted)

    def _rest(self, seconds: float) -> bool:
        """Wait, and look each second whether the handler is to stop; return whether another batch
        may begin.
        """
        run = self._run
        end = elapsed() + seconds
        condition = run.options.pacing.wait_while
        while True:
            left = end - elapsed()
            if left <= 0 and (condition is None or not condition()):
                return True
            run.ctx.wait(
                timedelta(seconds=min(left, LOOK_AGAIN) if left > 0 else LOOK_AGAIN)
            )
            if not run.may_go_on():
                return False


class _NotEntered(Exception):
    """Rolls a batch back that was not entered."""
