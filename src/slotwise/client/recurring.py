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
from slotwise.store.dialects.postgresql.queue import queue_of
from slotwise.store.planning.instances import Instance, Instances


class Recurring(Calls):
    """Lets a task recur for an id, by a schedule of its own."""

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
        """Let ``task`` recur for ``id`` by a schedule of its own, with ``data``; its next slot, None if there is none.

        Makes the instance, or changes it to this: a changed schedule follows as after a deploy. Slots, catch-up,
        overlap and ledger are the instance's own; the policies are the task's, as any job or task declares them. An
        ``H`` in the schedule is decided by task and id. ``schedule`` is a Schedule or its text. With ``connection``
        the row joins the caller's transaction; keep that short, for what runs is settled only after it.

        The registry must have the task, whoever runs it: policies such as ``runs_on`` and ``spread`` are the code's.

        Raises UnknownTask; InvalidSchedule, for a calendar that is not in the database, too; InstanceExists if a
        one-time instance has this id; and what ``schedule`` raises for task, id, data and connection.
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
            queue_of(store.dialect, self._horizon).say(own, name)
        return self._done(connection, slot)

    def unschedule_recurring(self, task: AnyTask[Any], id: str, *, connection: Any = None) -> bool:
        """Delete the recurring instance ``id`` of ``task``; False if there is none. A run that goes on may end.

        Its history stays, so that it may come back without starting a slot twice. With ``connection``, in the
        caller's transaction. Raises what ``schedule_recurring`` raises for task, id and connection.
        """
        name, instance = recurring(task, id)
        store = self._make_store()
        with self._beside(connection, store, name) as own:
            return Instances(store).remove(own, name, instance)


def _unknown(name: str, known: Iterable[str]) -> UnknownTask:
    near = get_close_matches(name, known, n=1)
    cure = f"did you mean {near[0]!r}?" if near else "register it here, too: its policies come from the code"
    return UnknownTask(f"schedule_recurring({name!r}): the registry has no job or task of this name; {cure}")
