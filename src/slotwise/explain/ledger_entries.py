"""Say what the ledger has of a slot: how it runs or has ended, or why it was skipped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from slotwise.explain.circumstances import day_off
from slotwise.explain.sentences import (
    ORIGINS,
    ROUNDING,
    counted,
    how_ended,
    latest,
    running_long,
    sentences_of,
    signs_of_life,
    silence,
    told_attempts,
    when,
)
from slotwise.model.durations import format_duration, short_duration
from slotwise.model.error_text import error_summary
from slotwise.model.records import Row
from slotwise.model.vocabulary import (
    Origin,
    Outcome,
    Reason,
)
from slotwise.store.reading.facts import Facts
from slotwise.store.reading.slots import SlotInfo


def began(facts: Facts, entry: SlotInfo) -> Iterator[str]:
    if entry.outcome == Outcome.CANCELLED and not entry.attempts and entry.finished:
        yield _cancelled_before(entry, entry.finished)
        yield from _instead(facts, entry)
        return
    if entry.origin in ORIGINS and entry.attempts:
        yield ORIGINS[entry.origin]
    if entry.missed_count:
        yield f"It stands for {counted(entry.missed_count, 'slot')} before it, which did not run."
    yield from told_attempts(one for one in facts.attempts if one.token != entry.token)
    if entry.started is not None and entry.attempts:
        yield _started(entry, entry.started)
    yield _ending(facts, entry)
    yield from _signs(facts, entry)
    yield from _instead(facts, entry)
    if entry.error and entry.outcome != Outcome.SUCCEEDED:
        yield f"The last error: {error_summary(entry.error)}"


def _signs(facts: Facts, entry: SlotInfo) -> Iterator[str]:
    """Say how long a handler has run, or since when a lost worker is silent."""
    if entry.outcome == Outcome.RUNNING and entry.started is not None:
        yield from running_long(entry.started, facts)
    if entry.progress is not None:
        yield f"Its handler's checkpoint says: {entry.progress}."
    last = facts.attempts[-1] if facts.attempts else None
    if (
        entry.outcome == Outcome.LOST
        and last is not None
        and last.token == entry.token
    ):
        yield from silence(last)


def _cancelled_before(entry: SlotInfo, finished: datetime) -> str:
    why = sentences_of(entry.reason).waits or "it was cancelled"
    if entry.reason == Reason.DELETED:
        why = "the job was deleted"
    return f"It did not run: {why} at {when(finished)}, before it began."


def _started(entry: SlotInfo, started: datetime) -> str:
    times = "" if entry.attempts <= 1 else f" (attempt {entry.attempts})"
    delay = started - entry.slot
    late = (
        "on time," if delay < ROUNDING else f"{short_duration(delay)} after its time,"
    )
    return f"It started at {when(started)}{times}, {late} on {entry.worker}."


def _instead(facts: Facts, entry: SlotInfo) -> Iterator[str]:
    if (
        entry.reason == Reason.OVERLAP
        and entry.finished is not None
        and facts.after is not None
    ):
        yield f"The newer one that began next is {when(facts.after.slot)}."


def _ending(facts: Facts, entry: SlotInfo) -> str:
    row = facts.beside or facts.plan
    if entry.finished is None and entry.outcome in (Outcome.RUNNING, Outcome.CLAIMED):
        return _under_way(facts, entry, row)
    if entry.finished is None:
        due = ""
        if row is not None and row.slot == facts.slot and not row.picked:
            due = f", which is due at {when(row.due)}"
        ended = f"ended as {entry.outcome}"
        if entry.reason == Reason.SNOOZED:
            ended = "was put off"
        elif entry.outcome == Outcome.CANCELLED:
            ended = "was stopped"
        return f"That attempt {ended}{_because(entry)}; it waits for another one{due}."
    took = "" if entry.took is None else f", after {short_duration(entry.took)}"
    return how_ended(entry.outcome, entry.reason, f"at {when(entry.finished)}{took}")


def _because(entry: SlotInfo) -> str:
    why = sentences_of(entry.reason).waits
    return f" ({why})" if why else ""


def _under_way(facts: Facts, entry: SlotInfo, row: Row | None) -> str:
    if (
        entry.outcome == Outcome.CLAIMED
        and row is not None
        and row.slot == facts.slot
        and not row.picked
    ):
        due = when(row.due)
        claim = (
            "Its next claim" if entry.started is not None and entry.attempts else "It"
        )
        return (
            f"{claim} was handed back before it began{_because(entry)}, and is due "
            f"again at {due}."
        )
    if row is None or not row.picked or row.slot != facts.slot:
        return (
            "The ledger lists it as running, but no row is held for it: the next "
            "worker that starts will end it."
        )
    verb = (
        "runs"
        if entry.outcome == Outcome.RUNNING
        else "is claimed, and has not started"
    )
    return f"It {verb}{signs_of_life(row, facts)}."


def skipped(facts: Facts, line: SlotInfo) -> Iterator[str]:
    if line.last is not None:
        yield (
            f"It did not run: it is one of {counted(line.count, 'slot')} from "
            f"{when(line.slot)} to {when(line.last)} "
            f"that were skipped ({line.reason})."
        )
    else:
        yield f"It did not run: skipped ({line.reason})."
    if (why := _why_skipped(facts, line)) is not None:
        yield why
    if line.reason == Reason.CALENDAR:
        yield from day_off(facts)
    if line.error is not None:  # what a hook has said
        yield line.error
    definition = facts.definition
    if definition is not None and line.reason == Reason.OVERLAP:
        yield f"The job declares overlap={definition.overlap!r}."
    elif definition is not None and line.reason in (Reason.COLLAPSED, Reason.LATE):
        limit = ""
        if definition.start_within:
            limit = f", start_within {format_duration(definition.start_within)}"
        yield f"The job declares catch_up={definition.catch_up!r}{limit}."
    if line.finished is not None:
        yield f"That was decided at {when(line.finished)}."


def _why_skipped(facts: Facts, line: SlotInfo) -> str | None:
    match line.reason:
        case Reason.COLLAPSED:
            return f"{sentences_of(Reason.COLLAPSED).skipped} {_instead_of_all(facts, line)}"
        case Reason.OVERLAP:
            return _overlapped(facts)
        case Reason.PAUSED:
            return (
                latest(facts.operations, "pause", line.finished or facts.now)
                or sentences_of(Reason.PAUSED).skipped
            )
        case reason:
            return sentences_of(reason).skipped


def _instead_of_all(facts: Facts, line: SlotInfo) -> str:
    """Say which slot ran for it: the neighbour with missed slots that had come, or began, by that
    decision.
    """
    before = facts.before
    after = facts.after
    last = line.last or line.slot
    if (
        after is not None
        and after.missed_count
        and (line.finished is None or after.slot <= line.finished)
    ):
        return f"The newest that was missed, {when(after.slot)}, ran for all."
    if (
        before is not None
        and before.missed_count
        and before.started is not None
        and before.started >= last
    ):
        return f"The oldest that was missed, {when(before.slot)}, ran for all."
    return (
        "It was beyond the newest slots that CatchUp.all(max=…) runs, or the slot "
        "that runs for all has not started."
    )


def _overlapped(facts: Facts) -> str | None:
    held = facts.before
    if held is None or held.started is None:
        return sentences_of(Reason.OVERLAP).skipped
    if held.origin == Origin.CATCH_UP and facts.slot < held.started:
        return (
            f"It came while the job was held, before {when(held.slot)} was caught up: "
            "its overlap decided."
        )
    # Of several attempts the last one is known.
    begun = "" if held.attempts > 1 else f" from {when(held.started)}"
    until = f" until {when(held.finished)}" if held.finished else ""
    times = f":{begun}{until}" if begun or until else ""
    return f"It came while {when(held.slot)} was held, or waited for its retry's time{times}."
