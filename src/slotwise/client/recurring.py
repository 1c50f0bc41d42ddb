"""Commands on recurring instances of a job or a task."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from slotwise.client.arguments import AnyTask, payload_for, recurring, weight
from slotwise.client.connection import Calls
from slotwise.errors import ConfigurationError, UnknownTask
from slotwise.jobs.context import T
from slotwise.jobs.definition import check_schedule
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.planning.instances import Instance, Instances
from slotwise.store.queue.queue import queue_of


class Recurring(Calls):
    """Commands on a task's recurring instances, each with a schedule of its own."""

    def schedule_recurring(
        self,
        task: AnyTask[T],
        id: str,
        schedule: Schedule | str,
        data: T | None = None,
        *,
        priority: int | None = None,
        connection: Any = None,
    ) -> datetime | None:
        """Create or change the recurring instance ``id`` of ``task``; return its next slot, None if there is none.

        Slots, catch-up, overlap and ledger belong to the instance; the policies are the task's. A changed schedule
        applies as after a deploy. ``schedule`` is a Schedule or its text form; an ``H`` in it is derived from task and
        id. With ``connection`` the row joins the caller's transaction; keep that short, because settlements of the
        instance wait for it.

        The registry must have the task, because policies such as ``runs_on`` and ``spread`` come from the code.

        Raises UnknownTask; InvalidSchedule, also for a calendar that is not in the database; InstanceExists if a
        one-time task has this id; and what ``schedule`` raises for task, id, data and connection.
        """
        name, instance = recurring(task, id)
        timing = parse_schedule(schedule) if isinstance(schedule, str) else schedule
        if not isinstance(timing, Schedule):
            raise ConfigurationError(f"schedule_recurring({name!r}): {timing!r:.60} is no schedule; write Every('5m')")
        store = self._make_store()
        known = store.definitions.get(name)
        if known is None:
            raise _unknown(name, store.definitions)
        check_schedule(timing, known, f"schedule_recurring({name!r}, id={instance!r})")
        payload = payload_for(task, name, known).encode(data, name)
        rank = weight(priority, known, f"schedule_recurring({name!r}")
        new = Instance(task=name, id=instance, schedule=timing, data=payload, priority=rank)
        with self._beside(connection, store, name) as own:
            slot = Instances(store).put(own, new)
            queue_of(store.dialect, self._horizon).tasks.say(own, name)
        return self._done(connection, slot)

    def unschedule_recurring(self, task: AnyTask[Any], id: str, *, connection: Any = None) -> bool:
        """Delete the recurring instance ``id`` of ``task``; False if there is none. A running handler finishes.

        Its history stays, so an instance that comes back starts no slot twice. With ``connection``, in the caller's
        transaction. Raises what ``schedule_recurring`` raises for task, id and connection.
        """
        name, instance = recurring(task, id)
        store = self._make_store()
        with self._beside(connection, store, name) as own:
            return Instances(store).remove(own, name, instance)


def _unknown(name: str, known: Iterable[str]) -> UnknownTask:
    near = get_close_matches(name, known, n=1)
    cure = f"did you mean {near[0]!r}?" if near else "register it here, too: its policies come from the code"
    return UnknownTask(f"schedule_recurring({name!r}): the registry has no job or task of this name; {cure}")
