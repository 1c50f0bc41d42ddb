"""The same batches for ``async def`` handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from slotwise import ConfigurationError, Context
from slotwise.contrib.batches.batches import HandOver
from slotwise.contrib.batches.keys import Key
from slotwise.contrib.batches.pacing import LOOK_AGAIN
from slotwise.contrib.batches.run import NULLS, Options, Run, with_cure
from slotwise.contrib.batches.source import AsyncSource
from slotwise.contrib.batches.walk import Places, Wanted
from slotwise.spi import elapsed

if TYPE_CHECKING:
    from slotwise.contrib.batches.source import AsyncConnection

C = TypeVar("C")
R = TypeVar("R")


@dataclass(slots=True)
class AsyncBatch(Generic[C, R]):
    """Rows that are locked in one transaction: ``async with batch as rows``. As ``Batch``."""

    connection: C
    rows: Sequence[R]
    _places: Places
    _transaction: AbstractAsyncContextManager[C]
    _run: Run
    _source: AsyncSource[C, R]
    _hand_over: HandOver[C] | None
    _begun: float = field(default_factory=elapsed)
    pause: float = 0.0
    is_open: bool = True

    @property
    def session(self) -> C:
        """The same as ``connection``, for who passed an async_sessionmaker."""
        return self.connection

    async def __aenter__(self) -> Sequence[R]:
        return self.rows

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            failure = await self._commit()
            if failure is None:
                return False
            if not await self._is_dealt_with(failure):
                raise failure
            return True
        await self.roll_back(error)
        return await self._is_dealt_with(error)

    async def roll_back(self, error: BaseException) -> None:
        self.is_open = False
        await self._transaction.__aexit__(type(error), error, error.__traceback__)

    async def _commit(self) -> Exception | None:
        run = self._run
        try:
            saved = run.to_save(self._places)
            if run.options.guard:
                await _prove(run.ctx, cast("AsyncConnection", self.connection), saved)
        except Exception as error:
            await self.roll_back(error)
            return error
        self.is_open = False
        try:
            await self._transaction.__aexit__(None, None, None)
        except Exception as error:
            if not run.is_in_doubt(error):
                return error
            if not await asyncio.to_thread(run.has_saved, saved):
                raise
        if saved is not None and not run.options.guard:
            await asyncio.to_thread(run.ctx.checkpoint, saved)
        run.succeeded(self._places)
        if run.is_noted:
            await asyncio.to_thread(run.forget, self._places.first.key)
        self.pause = run.pause_after(len(self.rows), elapsed() - self._begun)
        return None

    async def _is_dealt_with(self, error: BaseException) -> bool:
        run = self._run
        pause = run.is_refused(error)
        if pause is not None:
            self.pause = pause
            return True
        await asyncio.to_thread(run.survived)
        if not run.may_set_aside(error):
            return False
        hands_over = self._hand_over is not None
        place = await asyncio.to_thread(
            run.blame, self._places, error, hands_over=hands_over
        )
        if place is not None and self._hand_over is not None:
            await self._give(self._hand_over, place.key, error)
        return True

    async def _give(
        self, hand_over: HandOver[C], key: Key, error: BaseException
    ) -> None:
        """Let the user's function take a row over, then delete its note."""
        run = self._run
        async with self._source.transaction() as connection:
            given = hand_over(connection, key, error)
            if asyncio.iscoroutine(given):
                await given
            if run.options.guard:
                await _prove(run.ctx, cast("AsyncConnection", connection), None)
        await asyncio.to_thread(run.forget, key)


async def _prove(
    ctx: Context[object], connection: AsyncConnection, saved: object
) -> None:
    # Only sessions flush. To ask for their class would load a module that needs greenlet.
    if hasattr(connection, "flush"):
        await connection.flush()
    try:
        if saved is None:
            await ctx.guard(connection)
        else:
            await ctx.checkpoint(saved, connection)
    except ConfigurationError as error:
        raise with_cure(error) from error


class AsyncBatches(Generic[C, R]):
    """The batches of one run: iterate once, by ``async for``. As ``Batches``."""

    def __init__(
        self,
        ctx: Context[object],
        source: AsyncSource[C, R],
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

    async def __aiter__(self) -> AsyncIterator[AsyncBatch[C, R]]:
        run = self._run
        await asyncio.to_thread(run.begin)
        pause = 0.0
        while run.may_go_on():
            if not await self._rest(pause):
                return
            wanted = run.next()
            try:
                if not self._is_prepared:
                    await self._prepare()
                batch = None if wanted is None else await self._take(wanted)
            except Exception as error:
                pause = run.pause_if_refused(error, wanted)
                continue
            if batch is None:
                if await asyncio.to_thread(
                    run.is_at_end, wanted, is_left=self._is_left
                ):
                    return
                pause = run.pause_before_again()
                continue
            try:
                yield batch
            finally:
                if batch.is_open:
                    await batch.roll_back(asyncio.CancelledError())
            pause = batch.pause

    async def _prepare(self) -> None:
        run = self._run
        is_new = run.walk.after is None
        async with self._source.transaction() as connection:
            if is_new and await self._source.count_nulls(connection):
                raise ConfigurationError(NULLS)
            if run.options.total is True:
                run.total = run.total_of(await self._source.count(connection))
        self._is_prepared = True

    async def _take(self, wanted: Wanted) -> AsyncBatch[C, R] | None:
        run = self._run
        await asyncio.to_thread(run.look)
        transaction = self._source.transaction()
        connection = await transaction.__aenter__()
        try:
            rows, places = await self._source.take(connection, wanted)
            run.walk.check(places)
            if rows:
                await asyncio.to_thread(run.beware, places)
        except BaseException as error:
            await transaction.__aexit__(type(error), error, error.__traceback__)
            raise
        if not rows:
            self._is_left = await self._is_locked_elsewhere(connection, wanted)
            await transaction.__aexit__(None, None, None)
            return None
        return AsyncBatch(
            connection, rows, places, transaction, run, self._source, self._hand_over
        )

    async def _is_locked_elsewhere(self, connection: C, wanted: Wanted) -> bool:
        is_skipping = not self._run.options.cursor and wanted.only is None
        return is_skipping and await self._source.is_left(connection, wanted)

    async def _rest(self, seconds: float) -> bool:
        run = self._run
        end = elapsed() + seconds
        condition = run.options.pacing.wait_while
        while True:
            left = end - elapsed()
            if left <= 0 and (
                condition is None or not await asyncio.to_thread(condition)
            ):
                return True
            await asyncio.sleep(min(left, LOOK_AGAIN) if left > 0 else LOOK_AGAIN)
            if not run.may_go_on():
                return False
