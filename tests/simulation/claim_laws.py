"""The laws of claims: who may take what, when, and what first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.kit.records import PLANNED
from tests.simulation.trace import Trace

from slotwise.spi import Claim, Definition


@dataclass
class ClaimLaws:
    """Told of every claim, whoever learns of it."""

    trace: Trace
    definitions: Mapping[str, Definition]
    after_restores: bool = False
    #: The claims of each task with ``rate_limit``, since the clock was last stepped.
    counted: defaultdict[str, list[datetime]] = field(
        default_factory=lambda: defaultdict(list)
    )
    #: The last claim of each job's schedule.
    before: dict[str, Claim] = field(default_factory=dict)

    def claimed(self, claim: Claim, tags: Collection[str]) -> None:
        definition, row = self.definitions[claim.row.task_name], claim.row
        if set(definition.runs_on) - set(tags):
            raise self._broken(
                "runs_on",
                f"claimed by a worker that carries {set(tags) or 'nothing'}",
                claim,
            )
        if definition.rate_limit is not None:
            self._keeps_its_rate(claim, definition)
        if row.is_plan or row.origin in PLANNED:
            self._in_time(claim, definition)
            self._in_its_pace(claim, definition)
            self.before[row.task_name] = claim

    def handed_back(self, job: str, token: int) -> None:
        """This claim has not begun: another slot, if the newest are too many by now, may follow
        at once.
        """
        if job in self.before and self.before[job].token == token:
            del self.before[job]

    def clock_stepped(self, now: datetime) -> None:
        """Starts of before count for a longer or a shorter time; after a step back, future ones do
        not count.
        """
        self.counted.clear()
        self.before = {
            job: claim for job, claim in self.before.items() if claim.claimed_at <= now
        }

    def _keeps_its_rate(self, claim: Claim, definition: Definition) -> None:
        """rate_limit: so many within any window, whatever became of them."""
        rate, claimed = definition.rate_limit, self.counted[definition.name]
        assert rate is not None
        claimed.append(claim.claimed_at)
        within = sum(claim.claimed_at - at < rate.window for at in claimed)
        if within > rate.count:
            raise self._broken("rate_limit", f"{within} within {rate.window}", claim)

    def _in_time(self, claim: Claim, definition: Definition) -> None:
        """start_within: a slot's first attempt is not claimed later than that after its time."""
        limit, slot = definition.start_within, claim.slot
        if (
            limit is not None
            and slot is not None
            and claim.row.attempt == 1
            and claim.claimed_at - slot > limit
        ):
            raise self._broken(
                "start_within",
                f"claimed {claim.claimed_at - slot} after its time",
                claim,
            )

    def _in_its_pace(self, claim: Claim, definition: Definition) -> None:
        """CatchUp.all: each slot starts at least its pace after the one before; a queue has no
        pace.
        """
        before, pace = self.before.get(definition.name), definition.catch_up.pace
        if (
            pace is None
            or before is None
            or self.after_restores
            or claim.row.attempt != 1
        ):
            return
        if {before.row.origin, claim.row.origin} != {"catch_up"}:
            return
        if before.slot is None or claim.slot is None or not before.slot < claim.slot:
            return
        if claim.claimed_at - before.claimed_at < pace:
            raise self._broken(
                "pace",
                f"claimed {claim.claimed_at - before.claimed_at} after {before.slot}",
                claim,
            )

    def polled(self, claims: Sequence[Claim], left: Sequence[Any]) -> None:
        """priority: of what was due, nothing was left that goes before what was taken.

        ``left``: due rows that nobody has touched meanwhile. What was lost before goes first, one
        at a time (a row that was restored alone may have been, though its next slot begins anew);
        a task with a limit is claimed by itself.
        """
        if self.after_restores:
            return
        for has_slot in (True, False):
            taken = [
                claim
                for claim in claims
                if claim.row.has_slot is has_slot and self._is_in_line(claim.row)
            ]
            waits = [
                row
                for row in left
                if _has_slot(row) is has_slot and self._is_in_line(row)
            ]
            if taken and waits:
                last = min(taken, key=lambda claim: claim.row.priority or 50)
                first = max(waits, key=lambda row: row.priority or 50)
                if (first.priority or 50) > (last.row.priority or 50):
                    text = (
                        f"priority {last.row.priority} before {first.task_name}, which "
                        f"has {first.priority}"
                    )
                    raise self._broken("priority", text, last)

    def _is_in_line(self, row: Any) -> bool:
        return not row.lost_count and not self.definitions[row.task_name].is_limited

    def _broken(self, law: str, text: str, claim: Claim) -> Exception:
        return self.trace.fail(law, text, claim.row.task_name, claim.slot)


def _has_slot(row: Any) -> bool:
    return row.kind != "task"
