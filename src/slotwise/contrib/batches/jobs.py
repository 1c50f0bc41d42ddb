"""Jobs and tasks whose whole handler is a walk in batches."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, cast

import sqlalchemy as sa

from slotwise import (
    ConfigurationError,
    Context,
    DistributedJob,
    Item,
    JobContext,
    OneTimeTask,
    TaskContext,
)
from slotwise.contrib.batches.api import BatchOptions, batches, check_options
from slotwise.contrib.batches.batches import Batch, Batches

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The most tasks that one slot is walked by.
MOST_PARTS = 1_000


class Walking:
    """What BatchJob and BatchTask have in common: ``on``, ``select``, ``process``, ``options``."""

    #: As the argument of ``batches``; a queryset of Django needs none.
    on: object = None
    #: A select, or a method that takes the context and returns one.
    select: object
    #: The keywords of ``batches``.
    options: ClassVar[Mapping[str, object]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_options(cls.options, f"{cls.__name__}.options")

    @abstractmethod
    def process(self, batch: Batch[object, object]) -> object:
        """Process ``batch.rows`` in the transaction of ``batch.connection``."""

    def walk(self, ctx: Context[object]) -> Batches[object, object]:
        """Return the batches of one run. Raises as ``batches``."""
        select = self.select
        if inspect.ismethod(select):
            select = select(ctx)
        found: object = batches(
            ctx,
            cast("sa.Select[object]", select),
            cast("sa.Engine", self.on),
            **cast("BatchOptions", dict(self.options)),
        )
        if not isinstance(found, Batches):
            raise ConfigurationError(
                f"{type(self).__name__}.on is async; write `async def execute` with `async for "
                "batch in batches(…)` instead"
            )
        return found

    def count(self) -> int:
        """Return how many rows there are to do now, outside of any slot. A method ``select`` is
        called with None. Raises ConfigurationError if it needs a slot.
        """
        try:
            walk = self.walk(cast("Context[object]", None))
        except AttributeError as error:
            raise ConfigurationError(
                f"{type(self).__name__}.select needs a slot ({error}); its rows cannot be counted "
                "outside of one"
            ) from error
        return walk.count()

    def run(self, ctx: Context[object]) -> int:
        """Process all batches; return how many rows were processed for this slot."""
        found = self.walk(ctx)
        for batch in found:
            with batch:
                self.process(batch)
        return found.done


class BatchJob(Walking, DistributedJob):
    """A job that processes the rows of a select in batches.

    Declare ``name``, ``schedule``, ``on``, ``select`` and ``process``; ``options`` are the
    keywords of ``batches``.
    """

    def execute(self, ctx: JobContext, /) -> int:
        return self.run(ctx)


class BatchTask(Walking, OneTimeTask[None]):
    """A one-time task that processes the rows of a select in batches; several may run at once."""

    def execute(self, ctx: TaskContext, /) -> int:
        return self.run(ctx)


def in_parallel(ctx: JobContext, task: type[BatchTask], parts: int) -> None:
    """Let this many tasks work on the rows at once, in the whole cluster, for this slot.

    A repeated attempt of the slot schedules none twice. Raises ConfigurationError for a wrong
    number, and for a task with ``cursor=True`` whose ``select`` is the same for all.
    """
    if type(parts) is not int or not 1 <= parts <= MOST_PARTS:
        raise ConfigurationError(
            f"in_parallel({parts!r}): expected a whole number of tasks, 1 to {MOST_PARTS:,}"
        )
    if task.options.get("cursor") and not callable(task.select):
        raise ConfigurationError(
            f"in_parallel({task.__name__}): with cursor=True each task would process all rows; "
            "make `select` a method that returns the rows of one ctx.id"
        )
    slot = f"{ctx.slot:%Y-%m-%dT%H:%M:%SZ}"
    items = [Item(None, id=f"{slot}-{part}") for part in range(1, parts + 1)]
    ctx.client.schedule_many(task, items)
