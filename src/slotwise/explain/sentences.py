"""Parts of explanations: instants, counts, reasons, who requested what, and attempts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from slotwise.errors import pasteable
from slotwise.model.durations import format_duration, short_duration
from slotwise.model.error_text import error_summary
from slotwise.model.records import Row
from slotwise.model.vocabulary import (
    REASONS,
    Missed,
    Origin,
    Outcome,
    PauseScope,
    Reason,
    Sentences,
)
from slotwise.store.operations.pauses import Pause
from slotwise.store.operations.transaction import AuditEntry
from slotwise.store.reading.facts import Facts, TaskFacts
from slotwise.store.reading.slots import AttemptInfo

#: Start and due time of a slot are compared with this tolerance: a due time may be rounded.
ROUNDING = timedelta(seconds=1)


ORIGINS: dict[str, str] = {
    Origin.CATCH_UP: "It had been missed, and ran late, as catch-up.",
    Origin.TRIGGER: "It was triggered by hand, beside the schedule.",
    Origin.BACKFILL: "It ran for a backfill.",
}


#: A slot that was begun and then lost by a restore of the queue alone, until the job went past it.
_PASSED = (
    "It was begun, and a restore of the queue alone lost sight of it ({reason}): it "
    "ended as {outcome} {ended}."
)
#: A reason without a sentence: a handler's own, or that of a feature that is not installed here.
_UNSAID = "It ended as {outcome} ({reason}) {ended}."


def sentences_of(reason: str | None) -> Sentences:
    return REASONS.get(reason or "", Sentences())


def how_ended(outcome: str, reason: str | None, when: str) -> str:
    """Return the sentence for a slot that has ended; ``when`` is its time, and after how long."""
    if outcome == Outcome.SUCCEEDED:
        return f"It succeeded {when}."
    if reason is None:
        return f"It ended as {outcome} {when}, for good."
    is_passed = outcome == Outcome.LOST and sentences_of(reason).skipped is not None
    sentence = _PASSED if is_passed else sentences_of(reason).ended or _UNSAID
    return sentence.format(outcome=outcome, reason=reason, ended=when)


def paused_by(facts: Facts | TaskFacts) -> str:
    ends = _until(facts.pause)
    if (every := facts.all_paused) is not None:
        note = f": {every.note}" if every.note else ""
        return (
            f"Everything has been paused since {when(every.since)}, by "
            f"{every.author}{note}.{ends}"
        )
    operations = facts.operations if isinstance(facts, Facts) else ()
    own = [operation for operation in operations if operation.job is not None]
    return (latest(own, "pause", facts.now) or _paused_by_name(facts.pause)) + ends


def _paused_by_name(pause: Pause | None) -> str:
    if pause is None:
        return "The job is paused."
    is_name = pause.scope == PauseScope.TASKS
    what = "The name of these tasks" if is_name else "The job"
    note = f": {pause.note}" if pause.note else ""
    return (
        f"{what} has been paused since {when(pause.since)}, by {pause.author}{note}."
    )


def _until(pause: Pause | None) -> str:
    """Return how a pause ends, as a further sentence; nothing if an operator ends it."""
    if pause is None or pause.until is None:
        return ""
    ends = f" The pause ends by itself {when(pause.until)}"
    if pause.scope == PauseScope.TASKS:
        return f"{ends}."
    slots = "are skipped" if pause.missed == Missed.SKIP else "are left to catch-up"
    return f"{ends}; slots that come due meanwhile {slots}."


def latest(operations: Iterable[AuditEntry], name: str, until: datetime) -> str | None:
    """Return the last of these operations, the newest first, that has this name; None if there
    is none.
    """
    for operation in operations:
        if operation.operation == name and operation.at <= until:
            return said(operation)
    return None


def said(operation: AuditEntry) -> str:
    of_all = "" if operation.job is not None else " of all"
    note = f": {operation.note}" if operation.note else ""
    return (
        f"At {when(operation.at)} {operation.author} requested "
        f"{operation.operation}{of_all}{note}."
    )


def when(instant: datetime) -> str:
    text = instant.astimezone(UTC).isoformat(
        timespec="milliseconds" if instant.microsecond else "seconds"
    )
    return text.replace("+00:00", "Z")


def counted(count: int, noun: str) -> str:
    return f"one {noun}" if count == 1 else f"{count:,} {noun}s"


#: The number of newest attempts that are described one by one.
MOST_ATTEMPTS = 5


def told_attempts(attempts: Iterable[AttemptInfo]) -> Iterator[str]:
    """Say who had a slot or a task before, how each of those attempts ended, and since when a lost
    one is silent.
    """
    found = list(attempts)
    if (more := len(found) - MOST_ATTEMPTS) > 0:
        yield (
            f"{counted(more, 'attempt').capitalize()} before the last {MOST_ATTEMPTS} did not "
            "succeed."
        )
    for one in found[-MOST_ATTEMPTS:]:
        yield from _attempt(one)


def _attempt(one: AttemptInfo) -> Iterator[str]:
    if one.outcome == Outcome.LOST:
        claimed = f" at {when(one.claimed)}" if one.claimed else ""
        yield f"Attempt {one.number} was lost: {one.worker} claimed it{claimed}."
        yield from silence(one)
        return
    how = f"ended as {one.outcome}{f' ({one.reason})' if one.reason else ''}"
    if one.reason == Reason.TIMEOUT:
        how = "timed out"
    elif one.outcome == Outcome.FAILED:
        how = "failed"
    ended = f" at {when(one.ended)}" if one.ended else ""
    error = error_summary(one.error)
    yield f"Attempt {one.number} {how}{ended}, on {one.worker}{f': {error}' if error else ''}."


def silence(attempt: AttemptInfo) -> Iterator[str]:
    if attempt.ended is not None:
        yield f"{attempt.worker} was last heard of at {when(attempt.ended)}."


def running_long(started: datetime, facts: Facts | TaskFacts) -> Iterator[str]:
    """Say how long a handler has run, and whether that is longer than it should."""
    elapsed = facts.now - started
    yield f"It has run for {short_duration(elapsed)}."
    declared = facts.definition
    if declared is None:
        return
    if declared.timeout is not None and elapsed > declared.timeout:
        yield (
            f"Its timeout of {format_duration(declared.timeout)} has passed, and it still runs. "
            'A thread cannot be ended: restart the worker, or declare isolation="process".'
        )
    elif declared.warn_after is not None and elapsed > declared.warn_after:
        yield (
            f"That is longer than its warn_after of {format_duration(declared.warn_after)}. "
            f"{see_stack(declared.name)}"
        )


def see_stack(name: str) -> str:
    return pasteable(f"To see where it is: slotwise workers stack {name}.")


def signs_of_life(row: Row, facts: Facts | TaskFacts) -> str:
    told = "; it was asked to stop" if row.cancel_requested else ""
    if row.last_heartbeat is None:
        return told
    silent = facts.now - row.last_heartbeat
    if row.lease is not None and silent >= row.lease:
        heir = "a worker takes it over"
        if facts.obstacle is not None:
            heir = f"no worker takes it over: {facts.obstacle}"
        told += f"; its lease of {short_duration(row.lease)} has ended, and {heir}"
    return f"; the last heartbeat was {short_duration(silent)} ago{told}"
