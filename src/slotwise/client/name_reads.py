"""What all reads share, and the reads of names and time zones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from datetime import datetime
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, TypeVar
from zoneinfo import ZoneInfo

from slotwise.client.arguments import AnyTask, name_of
from slotwise.client.calls import call
from slotwise.model.records import RECURRING
from slotwise.schedules import Calendar, Schedule
from slotwise.schedules.description import UTC
from slotwise.store.planning.calendars import calendars_of
from slotwise.store.reading import jobs, names

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

Given = ParamSpec("Given")
Result = TypeVar("Result")
Read = TypeVar("Read", bound="NameReads")

#: Entries of a listing that does not say how many.
PAGE = 100


def read(
    body: Callable[Concatenate[Read, Given], Result],
) -> call[Read, Given, Result]:
    """Declare a read, plain and awaited; driver errors become a DatabaseProblem."""

    @functools.wraps(body)
    def run(self: Read, /, *given: Given.args, **named: Given.kwargs) -> Result:
        with self._store.database.in_words():
            return body(self, *given, **named)

    return call(run)


class NameReads:
    """The reads of names and time zones, with what all reads need."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._make_store = store

    @property
    def _store(self) -> Store:
        return self._make_store()

    def _names(self, job: AnyTask) -> tuple[str, ...]:
        """Return the name of a job, and the former ones that its declaration here lists."""
        return self._store.names_of(name_of(job))

    @read
    def now(self) -> datetime:
        """Return the database's time."""
        return self._store.now()

    # -- names and time zones ---------------------------------------------------------------------

    @read
    def check_name(
        self,
        job: AnyTask,
        *,
        id: str | None = None,
        kind: Literal["job", "task"] = "job",
    ) -> None:
        """Raise UnknownTask, with a near name, unless rows, ledger or a live worker have this job.

        With ``id``, also unless it has this recurring instance. ``kind`` is what the message calls
        it.
        """
        name = name_of(job)
        names.check_name(self._store, name, id or RECURRING, kind=kind)

    @read
    def ledger_names(self) -> list[str]:
        """Return the ledger's names, in order: of jobs, and of tasks that keep a record."""
        return names.ledger_names(self._store)

    @read
    def jobs_among(self, tasks: Collection[str]) -> set[str]:
        """Return those of these names that are jobs which workers have planned."""
        return jobs.jobs_among(self._store, tasks)

    @read
    def zone(self, job: AnyTask, *, id: str | None = None) -> ZoneInfo:
        """Return the time zone of a job's schedule, or of its instance; UTC if it has none."""
        key = (name_of(job), id or RECURRING)
        return self.zones([key]).get(key, UTC)

    @read
    def zones(
        self, keys: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], ZoneInfo]:
        """Return the time zones of these jobs and ids; those without a row are left out."""
        return jobs.zones(self._store, keys)

    @read
    def common_zone(self) -> ZoneInfo:
        """Return the one zone besides UTC of the jobs that are due next, or UTC."""
        return jobs.common_zone(self._store)

    @read
    def calendars(self, schedule: Schedule) -> dict[str, Calendar]:
        """Return the business calendars that a schedule names, as they are now; for
        ``schedule.bind``.

        Raises InvalidSchedule, with a near name, for one that is neither here nor in the schedule.
        """

        with self._store.transaction() as connection:
            return calendars_of(connection, self._store.tables, schedule, lock=False)
