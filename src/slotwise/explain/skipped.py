"""Why a slot was skipped: the tables' facts in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from slotwise.explain import reasons
from slotwise.explain.facts import Facts
from slotwise.explain.sentences import said, slots, when
from slotwise.jobs.definition import Definition
from slotwise.model.durations import format_duration
from slotwise.model.vocabulary import Origin, Reason
from slotwise.store.reading.views import SlotLine


def skipped(facts: Facts, line: SlotLine, definition: Definition | None) -> Iterator[str]:
    if line.last is not None:
        yield (
            f"It did not run: it is one of {slots(line.count)} from {when(line.slot)} to {when(line.last)} "
            f"that were skipped ({line.reason})."
        )
    else:
        yield f"It did not run: skipped ({line.reason})."
    if (why := _why_skipped(facts, line, definition)) is not None:
        yield why
    if definition is not None and line.reason in (Reason.COLLAPSED, Reason.LATE, Reason.OVERLAP):
        yield f"The job declares {_declared(line.reason, definition)}."
    if line.finished is not None:
        yield f"That was decided at {when(line.finished)}."


def _why_skipped(facts: Facts, line: SlotLine, definition: Definition | None) -> str | None:
    match line.reason:
        case Reason.COLLAPSED:
            return f"{reasons.skipped(Reason.COLLAPSED)} {_instead_of_all(facts, line)}"
        case Reason.LATE if definition is not None and definition.catch_up.mode == "none":
            return _too_late(facts, line, definition)
        case Reason.OVERLAP:
            return _overlapped(facts)
        case Reason.PAUSED:
            return _pause(facts, line)
        case reason:
            return reasons.skipped(reason)


def _instead_of_all(facts: Facts, line: SlotLine) -> str:
    """Who stands for it: of neighbours that stand for others, the one that had come, or began, by that decision."""
    before, after, last = facts.before, facts.after, line.last or line.slot
    if after is not None and after.collapsed and (line.finished is None or after.slot <= line.finished):
        return f"The newest that was missed, {when(after.slot)}, ran for all."
    if before is not None and before.collapsed and before.started is not None and before.started >= last:
        return f"The oldest that was missed, {when(before.slot)}, ran for all."
    if after is not None:
        return "No other ran for it: it was beyond the newest that a catch-up of all runs (its max)."
    return "One runs for all, or it was beyond the newest that a catch-up of all runs (its max)."


def _too_late(facts: Facts, line: SlotLine, definition: Definition) -> str | None:
    """Under ``CatchUp.none``: of those within the grace only the newest runs."""
    wait = facts.schedule.wait(facts.slot) if facts.schedule is not None else timedelta(0)
    limits = filter(None, (definition.catch_up.grace, definition.start_within))
    if line.finished is not None and line.finished - facts.slot - wait <= min(limits, default=timedelta(0)):
        return "It was within its grace, and so was a newer one: of those that are late only the newest runs."
    return reasons.skipped(Reason.LATE)


def _overlapped(facts: Facts) -> str | None:
    held = facts.before
    if held is None or held.started is None:
        return reasons.skipped(Reason.OVERLAP)
    if held.origin == Origin.CATCH_UP and facts.slot < held.started:
        return f"It came while the job was held, before {when(held.slot)} was caught up: its overlap decided."
    begun = "" if held.attempts > 1 else f" from {when(held.started)}"  # of several attempts the last one is known
    until = f" until {when(held.finished)}" if held.finished else ""
    times = f":{begun}{until}" if begun or until else ""
    return f"It came while {when(held.slot)} was held, or waited for its retry's time{times}."


def _pause(facts: Facts, line: SlotLine) -> str | None:
    resumed = line.finished or facts.now
    for order in facts.orders:
        if order.command == "pause" and order.at <= resumed:
            return said(order)
    return reasons.skipped(Reason.PAUSED)


def _declared(reason: str | None, definition: Definition) -> str:
    if reason == Reason.OVERLAP:
        return f"overlap={definition.overlap!r}"
    limit = f", start_within {format_duration(definition.start_within)}" if definition.start_within else ""
    return f"catch_up={definition.catch_up!r}{limit}"
