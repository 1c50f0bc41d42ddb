"""Explain why a slot ran, was skipped, or still waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from slotwise.explain.circumstances import changed, day_off, nobody_there
from slotwise.explain.due_times import deferred, until_due
from slotwise.explain.ledger_entries import began, skipped
from slotwise.explain.no_slot import why_no_slot
from slotwise.explain.sentences import (
    counted,
    latest,
    paused_by,
    said,
    sentences_of,
    when,
)
from slotwise.model.durations import short_duration
from slotwise.model.records import TICK, Row, from_micros
from slotwise.model.values import Value
from slotwise.model.vocabulary import (
    Origin,
    Outcome,
    Reason,
    RowState,
    SlotState,
)
from slotwise.schedules import Schedule
from slotwise.schedules.description import describe_schedule
from slotwise.store.reading.facts import Facts
from slotwise.store.reading.slots import AttemptInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Value):
    """``outcome`` as in the ledger, or waiting, undecided, upcoming, no_slot or unknown;
    ``sentences`` say why.
    """

    job: str
    slot: datetime
    outcome: str
    reason: str | None
    sentences: tuple[str, ...]
    attempts: tuple[AttemptInfo, ...] = ()


def explain(facts: Facts) -> Explanation:
    """Explain why this slot ran or did not."""
    outcome, reason, sentences = _verdict(facts)
    asked = [said(operation) for operation in facts.asked]
    is_foreign = outcome in (SlotState.NO_SLOT, SlotState.UNKNOWN)
    deployed = changed(facts) if is_foreign or reason == Reason.SUPERSEDED else ()
    return Explanation(
        job=facts.job,
        slot=facts.slot,
        outcome=outcome,
        reason=reason,
        sentences=(
            *sentences,
            *deployed,
            *nobody_there(facts, outcome, reason),
            *asked,
            *_finish(facts),
        ),
        attempts=tuple(facts.attempts),
    )


def _finish(facts: Facts) -> Iterator[str]:
    """Say whether a due slot will end in time."""
    found = facts.finish
    if found is None:
        return
    if facts.now > found.finish_by:
        yield f"It should have ended by {when(found.finish_by)}."
        return
    verb = "will probably miss" if found.will_miss else "should meet"
    yield (
        f"It {verb} its finish_by of {when(found.finish_by)}: {found.share:.0%} of "
        f"{found.runs} earlier runs that lasted as long would have ended later."
    )


def _verdict(facts: Facts) -> tuple[str, str | None, Iterable[str]]:
    entry = facts.entry
    if entry is not None:
        tell = skipped if entry.outcome == Outcome.SKIPPED else began
        return entry.outcome, entry.reason, tell(facts, entry)
    row = facts.beside
    if (
        row is not None
    ):  # also of a range that did not run: a backfill has it run after all
        return SlotState.WAITING, row.origin, _waits(facts, row)
    if facts.gap is not None and (facts.is_slot or facts.schedule is None):
        return Outcome.SKIPPED, facts.gap.reason, skipped(facts, facts.gap)
    if facts.plan is not None and facts.plan.slot == facts.slot:
        return SlotState.WAITING, None, _waits(facts, facts.plan)
    return _without_trace(facts)


def _waits(facts: Facts, row: Row) -> Iterator[str]:
    yield from _passed_over(facts)
    if row.picked:
        yield f"It is claimed by {row.picked_by}, which is deciding about it now."
    elif row.state == RowState.QUEUED:
        other = "another slot of its backfill"
        if row.origin == Origin.TRIGGER:
            other = "a run before it"
        yield f"It waits until {other} has ended."
    elif row.state == RowState.PAUSED or facts.all_paused is not None:
        yield from _sleeps(facts, row)
    else:
        yield from until_due(facts, row)
        if row.due > facts.now:
            yield from deferred(facts, row)


def _sleeps(facts: Facts, row: Row) -> Iterator[str]:
    yield paused_by(facts)
    if row.attempt:
        yield "Its retry continues when the job is resumed."
    elif facts.pause is not None and facts.pause.until is not None:
        return
    elif row.is_plan and facts.slot <= facts.now:
        yield (
            "It will be skipped when the job is resumed, unless slots of the pause "
            "are to be replayed."
        )


def _without_trace(facts: Facts) -> tuple[str, None, Iterable[str]]:
    schedule = facts.schedule
    plan = facts.plan
    if plan is None:
        told = "The job has no row, and neither ledger nor gaps know this slot."
        return (
            SlotState.UNKNOWN,
            None,
            filter(None, (told, latest(facts.operations, "delete", facts.now))),
        )
    if schedule is None:
        return (
            SlotState.UNKNOWN,
            None,
            [f"This release cannot read the schedule {plan.schedule!r}."],
        )
    if schedule.from_end:
        return (
            SlotState.NO_SLOT,
            None,
            [f"It runs {describe_schedule(schedule)}: no run ended at this instant."],
        )
    if not facts.is_slot:
        return SlotState.NO_SLOT, None, _no_slot(facts, schedule)
    if plan.slot is not None and facts.slot > plan.slot:
        if facts.slot <= facts.now:
            return SlotState.UNDECIDED, None, _undecided(facts, plan, plan.slot)
        return SlotState.UPCOMING, None, _upcoming(facts, schedule, plan, plan.slot)
    return SlotState.UNKNOWN, None, _unknown(facts, plan)


def _passed_over(facts: Facts) -> Iterator[str]:
    """Say that a calendar excludes a slot that is not decided yet."""
    if facts.schedule is not None and not facts.schedule.runs(facts.slot):
        yield from filter(None, [sentences_of(Reason.CALENDAR).skipped])
        yield from day_off(facts)


def _no_slot(facts: Facts, schedule: Schedule) -> Iterator[str]:
    before = schedule.latest_before(facts.slot)
    after = schedule.next_after(facts.slot)
    near = [when(slot) for slot in (before, after) if slot is not None]
    if not near:
        is_disabled = str(schedule) == "-"
        yield (
            "Its schedule is disabled, and has no slots."
            if is_disabled
            else f"{describe_schedule(schedule)} has none."
        )
        return
    yield f"The schedule, {describe_schedule(schedule)}, has no slot at {when(facts.slot)}."
    yield from why_no_slot(schedule, facts.slot)
    yield from day_off(facts)
    yield f"The nearest {'is' if len(near) == 1 else 'are'} {' and '.join(near)}."


def _undecided(facts: Facts, plan: Row, next_slot: datetime) -> Iterator[str]:
    """Say what will decide about a slot that has come, and that the plan row has not reached."""
    yield from _passed_over(facts)
    if plan.attempt:
        state = "is held" if plan.picked else "waits for its retry"
        yield (
            f"It came while {when(next_slot)} {state}; the job's overlap decides about "
            "it when that slot ends."
        )
    elif plan.state == RowState.PAUSED or facts.all_paused is not None:
        yield from _sleeps(facts, plan)
    else:
        yield (
            f"It came after {when(next_slot)}, which waits; the job's catch-up decides "
            "with the next claim."
        )
        if (obstacle := facts.obstacle) is not None:
            yield f"No live worker can claim it: {obstacle}."


def _upcoming(
    facts: Facts, schedule: Schedule, plan: Row, next_slot: datetime
) -> Iterator[str]:
    count = schedule.count_between(next_slot - TICK, facts.slot - TICK)
    verb = "comes" if count == 1 else "come"
    yield from _passed_over(facts)
    before = (
        f"{counted(count, 'slot')} {verb} before it, the next at {when(next_slot)}"
    )
    yield f"It comes in {short_duration(facts.slot - facts.now)}; {before}."
    if plan.state == RowState.PAUSED or facts.all_paused is not None:
        yield paused_by(facts)
        yield (
            "It starts only if the pause ends before then. Otherwise it is skipped, "
            "unless slots are to be replayed."
        )


def _unknown(facts: Facts, plan: Row) -> Iterator[str]:
    born = from_micros(plan.created_version) if plan.created_version else None
    if facts.pruned_until is not None and facts.slot <= facts.pruned_until:
        yield (
            f"History up to {when(facts.pruned_until)} was pruned, so it is unknown "
            "whether it ran."
        )
        yield (
            "Neither ledger nor gaps have it; to run it nevertheless: slotwise "
            "backfill --forgotten."
        )
        return
    if born is not None and facts.slot <= born:
        yield (
            f"The job's row was created at {when(born)}, after this slot, so the slot "
            "was not due to run."
        )
    elif facts.before is not None and facts.after is not None:
        yield (
            "Slots before and after it ran: at that time the job had another "
            "schedule, without this slot."
        )
    yield "Neither ledger nor gaps have it; to run it nevertheless: slotwise backfill."
