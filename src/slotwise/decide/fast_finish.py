"""What a plan row waits for after a slot that was on time and succeeded before the next one came: the usual end.

What follows then depends on the schedule's text and on the slot alone. Thousands of jobs share both, and it is decided
once for all of them, before any row is locked. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from slotwise.decide import at_finish
from slotwise.jobs.definition import Definition
from slotwise.model.records import RECURRING, SUCCEEDED, Row, Transition
from slotwise.model.vocabulary import Kind
from slotwise.schedules import parse_schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class FastFinish:
    """The columns that move, while the slot that follows has not come; and the transition, for those who tell of it."""

    due: datetime
    slot: datetime | None
    next_slot: datetime | None
    transition: Transition


def is_usual(definition: Definition) -> bool:
    """Whether nothing that the job declares has a say in how a slot ends that was on time and succeeded."""
    return definition.min_interval is None and definition.record == "none" and definition.result_retention is None


_USUAL = Definition(name="usual", handler=lambda ctx: None, is_async=False)


@lru_cache(maxsize=4096)
def onward(text: str, slot: datetime) -> FastFinish | None:
    """What follows ``slot`` of the schedule of this text, the slot's run being its first.

    None where that depends on more: on the end of the run, or on a text that becomes a simpler one. Raises
    InvalidSchedule.
    """
    schedule = parse_schedule(text)
    if schedule.from_end:
        return None
    row = Row(
        task_name=_USUAL.name, task_instance=RECURRING, execution_time=slot, version=0, slot=slot, watermark=slot,
        schedule=text, kind=Kind.PLAN, attempt=1,
    )  # fmt: skip
    ended = at_finish(row, _USUAL, schedule, SUCCEEDED, slot, None, poll=timedelta(0))
    if ended.row is None or ended.gaps or ended.row["schedule"] != text:
        return None
    return FastFinish(
        due=ended.row["execution_time"],
        slot=ended.row["slot"],
        next_slot=ended.row["next_slot"],
        transition=Transition(label=ended.label, row={}, record=ended.record),
    )
