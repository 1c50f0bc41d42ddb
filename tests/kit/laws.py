"""The laws that the tables show by themselves, at any moment: for simulated worlds and for real
workers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from slotwise.inspect import RECURRING
from slotwise.model.vocabulary import PLANNED
from slotwise.spi import Tables
from slotwise.testing import accounting
from slotwise.testing.accounting import Gap


@dataclass(frozen=True)
class Ledger:
    """Queue, slots, gaps and attempts of all jobs, read at once."""

    rows: Sequence[Mapping[str, Any]]
    slots: Mapping[tuple[str, datetime], Mapping[str, Any]]
    gaps: Mapping[str, Sequence[Mapping[str, Any]]]
    attempts: Mapping[tuple[str, datetime], Sequence[Mapping[str, Any]]] = field(
        default_factory=dict
    )

    @classmethod
    def read(cls, connection: sa.Connection, tables: Tables) -> Ledger:
        """Jobs have their recurring instance only."""
        rows = list(connection.execute(sa.select(tables.tasks)).mappings())
        slots = list(connection.execute(sa.select(tables.slots)).mappings())
        gaps = list(
            connection.execute(
                sa.select(tables.gaps).order_by(tables.gaps.c.first_slot)
            ).mappings()
        )
        by_job: dict[str, list[Any]] = {}
        for gap in gaps:
            by_job.setdefault(gap["task_name"], []).append(gap)
        attempts: dict[tuple[str, datetime], list[Any]] = {}
        for one in connection.execute(
            sa.select(tables.attempts).order_by(tables.attempts.c.token)
        ).mappings():
            attempts.setdefault((one["task_name"], one["slot"]), []).append(one)
        return cls(
            rows,
            {(slot["task_name"], slot["slot"]): slot for slot in slots},
            by_job,
            attempts,
        )

    def gap_at(self, job: str, slot: datetime) -> bool:
        """Whether a slot is in one of the job's ranges."""
        return any(
            gap["first_slot"] <= slot <= gap["last_slot"]
            for gap in self.gaps.get(job, [])
        )

    def planned(self, job: str) -> list[datetime]:
        """The slots of its schedule that have a ledger row of their own, the oldest first."""
        return self._planned.get(job, [])

    @cached_property
    def _planned(self) -> dict[str, list[datetime]]:
        found: dict[str, list[datetime]] = {}
        for job, slot in sorted(
            key for key, entry in self.slots.items() if entry["origin"] in PLANNED
        ):
            found.setdefault(job, []).append(slot)
        return found

    def is_due(self, now: datetime) -> bool:
        """Whether anything is left to be started."""
        return any(
            not row["picked"] and row["state"] is None and row["execution_time"] <= now
            for row in self.rows
        )

    def plan_row(self, job: str) -> Mapping[str, Any] | None:
        found = [
            row
            for row in self.rows
            if (row["task_name"], row["task_instance"]) == (job, RECURRING)
        ]
        return found[0] if found else None


@dataclass(frozen=True, slots=True)
class Breach:
    """A law that does not hold."""

    law: str
    job: str
    slot: datetime | None
    text: str


# -- rows and ledger beside each other ------------------------------------------------------------


def rows_and_ledger(ledger: Ledger) -> Iterator[Breach]:
    """Each open slot is in one row, each claim in the ledger; what has ended waits nowhere."""
    slots = [row for row in ledger.rows if row["kind"] != "task"]
    slots = [row for row in slots if row["slot"] is not None]
    yield from _one_row(slots)
    for row in slots:
        entry = ledger.slots.get((row["task_name"], row["slot"]))
        yield from (
            _one_claim(row, entry) if row["picked"] else _none_done_waits(row, entry)
        )
    yield from none_forgotten(ledger)
    yield from attempts_add_up(ledger)


def _one_row(slots: list[Any]) -> Iterator[Breach]:
    """A slot stands in one row: its plan row, or one of its own."""
    for (job, slot), count in Counter(
        (row["task_name"], row["slot"]) for row in slots
    ).items():
        if count > 1:
            yield Breach("one row", job, slot, f"in {count} rows")


def _one_claim(row: Any, entry: Any) -> Iterator[Breach]:
    """At most one claim holds a slot; the ledger's open row carries its token."""
    found = entry and (entry["outcome"], entry["token"], entry["worker"])
    if entry is None or found[1:] != (row["version"], row["picked_by"]):
        yield Breach(
            "one claim",
            row["task_name"],
            row["slot"],
            f"held, and the ledger says {found}",
        )


def _none_done_waits(row: Any, entry: Any) -> Iterator[Breach]:
    """No row waits for a slot that is final: who ended it has moved its row on, or taken it
    away.
    """
    if entry is not None and entry["finished"] is not None:
        text = f"{row['task_instance']} waits, and the ledger says {entry['outcome']}"
        yield Breach("none done waits", row["task_name"], row["slot"], text)


def none_forgotten(ledger: Ledger) -> Iterator[Breach]:
    """What is open in the ledger stands in a row, from which it goes on."""
    standing = {(row["task_name"], row["slot"]) for row in ledger.rows}
    for key, entry in ledger.slots.items():
        if (
            entry["finished"] is None
            and entry["origin"] != "task"
            and key not in standing
        ):
            yield Breach("none forgotten", *key, f"{entry['outcome']}, and in no row")


def attempts_add_up(ledger: Ledger) -> Iterator[Breach]:
    """Each attempt that the ledger counts is a row of its own, or the ledger row itself, under its
    token.
    """
    for key, entry in ledger.slots.items():
        found = ledger.attempts.get(key, [])
        is_itself = entry["token"] not in {one["token"] for one in found}
        if (
            entry["origin"] != "task"
            and not len(found) <= entry["attempts"] <= len(found) + is_itself
        ):
            yield Breach(
                "attempts add up",
                *key,
                f"{entry['attempts']} attempts, and {len(found)} rows",
            )
        numbers = sorted(
            one["number"] for one in found
        )  # a token falls if a stepped clock meets a retry by hand
        if numbers != sorted(set(numbers)):
            yield Breach(
                "attempts add up", *key, f"the rows have the numbers {numbers}"
            )


def nothing_left(ledger: Ledger, now: datetime) -> Iterator[Breach]:
    """When all has been done: nothing is held, nothing is due, nothing is left open."""
    for row in ledger.rows:
        if row["picked"]:
            yield Breach(
                "nothing stays held",
                row["task_name"],
                row["slot"],
                f"held by {row['picked_by']}",
            )
        elif row["state"] is None and row["execution_time"] <= now:
            yield Breach(
                "nothing stays due",
                row["task_name"],
                row["slot"],
                f"due since {row['execution_time']}",
            )
    yield from none_forgotten(ledger)


# -- every slot in exactly one place --------------------------------------------------------------


def none_missing(
    job: str, due: Iterable[datetime], ledger: Ledger
) -> Iterator[Breach]:
    """Each of these slots is in the ledger, as one of the schedule, or in a gap."""
    known = set(ledger.planned(job))
    yield from _told(job, accounting.missing(due, known, _gaps(job, ledger)))


def none_invented(
    job: str, due: Iterable[datetime], ledger: Ledger
) -> Iterator[Breach]:
    """The schedule has each slot that the ledger has."""
    yield from _told(job, accounting.phantoms(due, ledger.planned(job)))


def none_double(job: str, due: Sequence[datetime], ledger: Ledger) -> Iterator[Breach]:
    """Gaps cover what they count, and neither each other nor the ledger's own rows. ``due``: all
    slots, in order.
    """

    def count(gap: Gap) -> int:
        return bisect_right(due, gap.last) - bisect_left(due, gap.first)

    yield from none_in_two_places(job, ledger)
    yield from _told(job, accounting.miscounted(_gaps(job, ledger), count))


def none_in_two_places(job: str, ledger: Ledger) -> Iterator[Breach]:
    """Gaps overlap neither each other nor the ledger's own rows. A backfill may add one of another
    origin.
    """
    found = accounting.in_two_places(ledger.planned(job), _gaps(job, ledger))
    yield from _told(job, found)


def _gaps(job: str, ledger: Ledger) -> list[Gap]:
    return [
        Gap(gap["first_slot"], gap["last_slot"], gap["count"])
        for gap in ledger.gaps.get(job, [])
    ]


def _told(job: str, found: Iterable[tuple[datetime, str]]) -> Iterator[Breach]:
    return (Breach("every slot", job, slot, text) for slot, text in found)
