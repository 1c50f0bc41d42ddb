"""The nodes of a Galera cluster that workers use, as commands show them: nothing elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise import Settings
from slotwise.inspect import WorkerInfo
from slotwise.spi import database_url

if TYPE_CHECKING:
    from slotwise.contrib.mysql.writer_nodes import WorkerNode


class WorkerNodes:
    """What live workers have noted."""

    def __init__(self, settings: Settings) -> None:
        self._nodes: dict[str, WorkerNode] = {}
        if database_url(settings.database_url).get_backend_name() != "mysql":
            return
        # Loads the engine, for which a probe of other databases has no use.
        from slotwise.contrib.mysql.writer_nodes import worker_nodes

        self._nodes = {one.worker: one for one in worker_nodes(settings)}

    @property
    def title(self) -> list[str]:
        return ["NODE"] if self._nodes else []

    def cells(self, line: WorkerInfo) -> list[str]:
        """Return what stands below the title."""
        if not self._nodes:
            return []
        found = self._nodes.get(line.worker)
        return [found.node if found else "–"]

    def told(self, line: WorkerInfo) -> dict[str, str | None]:
        """Return what JSON has beside a worker's row."""
        found = self._nodes.get(line.worker)
        return {"node": found.node, "refusal": found.refusal} if found else {}

    @property
    def refusals(self) -> list[str]:
        """Why some of them claim nothing."""
        return [one.refusal for one in self._nodes.values() if one.refusal]
