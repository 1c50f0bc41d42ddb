"""The registry and the worker of one shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, TypeAlias

from slotwise import JobRegistry, Settings
from slotwise.contrib.shards.marks import Marks, check_marks, identify, read_marks
from slotwise.contrib.shards.shard import Shard
from slotwise.contrib.shards.shards import Shards
from slotwise.spi import Database, Worker

#: Makes the pool of a shard, from its settings.
OpenDatabase: TypeAlias = Callable[[Settings], Database]


class ShardWorker(Worker):
    """A worker that starts nothing in a database that is another shard, or has another map."""

    identify: Callable[[], object]

    def _check(self) -> None:
        super()._check()
        self.identify()


class ShardRegistry(JobRegistry):
    """The jobs and tasks of one shard, with its database; its worker checks the shard's marks
    before it changes a row.
    """

    worker_class: ClassVar[type[Worker]] = ShardWorker

    def __init__(
        self,
        shard: Shard,
        shards: Shards,
        open_database: OpenDatabase,
        **arguments: object,
    ) -> None:
        self.shard = shard
        self.shards = shards
        self._open = open_database
        super().__init__(**arguments, **shard.settings)  # type: ignore[arg-type]
        self.client.shard = shard

    def open_database(self) -> Database:
        """Return the pool of this shard; schemas of one database share one."""
        return self._open(self.settings)

    def identify(self) -> Marks:
        """Check and complete the marks of the database, for a worker's start.

        Raises ConfigurationError if it is another shard, or has another map.
        """
        marks = identify(self.database, self.shard.name, self.shards)
        self.shards.note(self.shard.name, marks.installation)
        return marks

    def check(self) -> None:
        """Check the marks of the database, and change nothing; raises what ``identify`` does."""
        check_marks(read_marks(self.database), self.shard.name, self.shards)

    def make_worker(
        self,
        *,
        host_loop: asyncio.AbstractEventLoop | None = None,
        born: float | None = None,
    ) -> Worker:
        """As JobRegistry does; the worker checks the marks at its start."""
        made = super().make_worker(host_loop=host_loop, born=born)
        assert isinstance(made, ShardWorker)
        made.identify = self.identify
        return made
