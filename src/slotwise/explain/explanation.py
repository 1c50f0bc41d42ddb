"""Explain why a slot ran, was skipped or still waits, why a task waits, and why a job does not run
now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from slotwise.errors import pasteable
from slotwise.explain.no_slot import why_no_slot
from slotwise.jobs.definition import Definition
from slotwise.model.durations import about, format_duration
from slotwise.model.error_text import error_summary
from slotwise.model.records import EPOCH, RECURRING, TICK, Row, from_micros
from slotwise.model.values import Value
from slotwise.model.vocabulary import (
    REASONS,
    ListedState,
    Origin,
    Outcome,
    Reason,
    RowState,
    Sentences,
    SlotState,
)
from slotwise.schedules import Schedule
from slotwise.schedules.description import describe_schedule
from slotwise.store.operations.transaction import AuditEntry
from slotwise.store.reading.audit import audit
from slotwise.store.reading.facts import Facts, Load, TaskFacts, facts
from slotwise.store.reading.jobs import JobInfo
from slotwise.store.reading.jobs import job as job_of
from slotwise.store.reading.slots import AttemptInfo, SlotInfo
from slotwise.store.reading.slots import attempts as attempts_of
from slotwise.store.reading.slots import slots as slots_of
from slotwise.store.slots.store import Store

# -- what a reason in the ledger means ------------------------------------------------------------

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


# -- parts of sentences ---------------------------------------------------------------------------


def paused_by(facts: Facts | TaskFacts) -> str:
    if (every := facts.all_paused) is not None:
        note = f": {every.note}" if every.note else ""
        return f"Everything has been paused since {when(every.since)}, by {every.author}{note}."
    operations = (
        [operation for operation in facts.operations if operation.job is not None]
        if isinstance(facts, Facts)
        else []
    )
    return _latest(operations, "pause", facts.now) or "The job is paused."


def _latest(operations: Iterable[AuditEntry], name: str, until: datetime) -> str | None:
    """Return the last of these operations, the newest first, that has this name; None if there
    is none.
    """
    return next(
        (
            said(operation)
            for operation in operations
            if operation.operation == name and operation.at <= until
        ),
        None,
    )


def said(operation: AuditEntry) -> str:
    what = (
        operation.operation
        if operation.job is not None
        else f"{operation.operation} of all"
    )
    return (
        f"At {when(operation.at)} {operation.author} requested "
        f"{what}{f': {operation.note}' if operation.note else ''}."
    )


def when(instant: datetime) -> str:
    text = instant.astimezone(UTC).isoformat(
        timespec="milliseconds" if instant.microsecond else "seconds"
    )
    return text.replace("+00:00", "Z")


def slots(count: int) -> str:
    return "one slot" if count == 1 else f"{count} slots"


def skipped(facts: Facts, line: SlotInfo, definition: Definition | None) -> Iterator[str]:
    if line.last is not None:
        yield (
            f"It did not run: it is one of {slots(line.count)} from "
            f"{when(line.slot)} to {when(line.last)} "
            f"that were skipped ({line.reason})."
        )
    else:
        yield f"It did not run: skipped ({line.reason})."
    if (why := _why_skipped(facts, line)) is not None:
        yield why
    if line.error is not None:  # what a hook has said
        yield line.error
    if definition is not None and line.reason == Reason.OVERLAP:
        yield f"The job declares overlap={definition.overlap!r}."
    elif definition is not None and line.reason in (Reason.COLLAPSED, Reason.LATE):
        limit = (
            f", start_within {format_duration(definition.start_within)}"
            if definition.start_within
            else ""
        )
        yield f"The job declares catch_up={definition.catch_up!r}{limit}."
    if line.finished is not None:
        yield f"That was decided at {when(line.finished)}."


def _why_skipped(facts: Facts, line: SlotInfo) -> str | None:
    match line.reason:
        case Reason.COLLAPSED:
            return (
                f"{sentences_of(Reason.COLLAPSED).skipped} {_instead_of_all(facts, line)}"
            )
        case Reason.OVERLAP:
            return _overlapped(facts)
        case Reason.PAUSED:
            return (
                _latest(facts.operations, "pause", line.finished or facts.now)
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
    begun = (
        "" if held.attempts > 1 else f" from {when(held.started)}"
    )  # of several attempts the last one is known
    until = f" until {when(held.finished)}" if held.finished else ""
    times = f":{begun}{until}" if begun or until else ""
    return (
        f"It came while {when(held.slot)} was held, or waited for its retry's time{times}."
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExplanation(Value):
    """``state`` as in listings, the recorded outcome of a task that has ended, or unknown;
    ``sentences`` say why.
    """

    task: str
    id: str
    state: str
    sentences: tuple[str, ...]
    attempts: tuple[AttemptInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExplanation(Value):
    """``state`` as in listings, or unknown; ``sentences`` say why it does not run now, and when it
    will.
    """

    job: str
    id: str
    state: str
    sentences: tuple[str, ...]
    attempts: tuple[AttemptInfo, ...] = ()


#: Start and due time of a slot are compared with this tolerance: a due time may be rounded.
_ROUNDING = timedelta(seconds=1)


def explain(facts: Facts, definition: Definition | None = None) -> Explanation:
    """Explain why this slot ran or did not; ``definition`` tells what the job declares."""
    outcome, reason, sentences = _verdict(facts, definition)
    asked = [said(operation) for operation in facts.asked]
    return Explanation(
        job=facts.job,
        slot=facts.slot,
        outcome=outcome,
        reason=reason,
        sentences=(*sentences, *asked),
        attempts=tuple(facts.attempts),
    )


def _verdict(
    facts: Facts, definition: Definition | None
) -> tuple[str, str | None, Iterable[str]]:
    entry = facts.entry
    if entry is not None:
        told = (
            skipped(facts, entry, definition)
            if entry.outcome == Outcome.SKIPPED
            else _began(facts, entry, definition)
        )
        return entry.outcome, entry.reason, told
    if (
        facts.beside is not None
    ):  # also a slot of a range that did not run: a backfill has it run after all
        return (
            SlotState.WAITING,
            facts.beside.origin,
            _waits(facts, facts.beside, definition),
        )
    if facts.gap is not None and (facts.is_slot or facts.schedule is None):
        return Outcome.SKIPPED, facts.gap.reason, skipped(facts, facts.gap, definition)
    if facts.plan is not None and facts.plan.slot == facts.slot:
        return SlotState.WAITING, None, _waits(facts, facts.plan, definition)
    return _without_trace(facts)


def explain_task(facts: TaskFacts, definition: Definition | None = None) -> TaskExplanation:
    """Explain why a one-time task waits, runs, or is gone; ``definition`` tells its limits."""
    row = facts.row
    end = facts.end
    if row is None:
        state = SlotState.UNKNOWN if end is None else end.outcome
        told = [
            "No row has this id, and no end is recorded: it has ended without a "
            "record, was cancelled while it waited, "
            "or was never scheduled."
        ]
        if end is not None and end.finished is not None:
            earlier = told_attempts(one for one in facts.attempts if one.token != end.token)
            told = [
                how_ended(end.outcome, end.reason, f"at {when(end.finished)}"),
                *earlier,
            ]
    else:
        state = ListedState.RUNNING if row.picked else row.state or SlotState.WAITING
        told = list(_task(facts, row, definition))
    return TaskExplanation(
        task=facts.key.task_name,
        id=facts.key.task_instance,
        state=state,
        sentences=tuple(told),
        attempts=tuple(facts.attempts),
    )


def _task(facts: TaskFacts, row: Row, definition: Definition | None) -> Iterator[str]:
    if row.picked:
        yield (
            f"It is claimed by {row.picked_by}, attempt "
            f"{row.attempt}{_signs_of_life(row, facts)}."
        )
        claimed = from_micros(row.version)
        if claimed.year > EPOCH.year:  # db-scheduler counts versions from one
            yield from _past_timeout(claimed, facts.now, definition)
    elif row.state == RowState.DEAD:
        tries = "one attempt" if row.attempt == 1 else f"{row.attempt} attempts"
        again = f"slotwise tasks retry {row.task_name} {row.task_instance}"
        yield pasteable(f"It is dead after {tries}; to try it again: {again}.")
    elif row.state == RowState.BLOCKED:
        yield "It waits for other tasks to end."
    elif facts.all_paused is not None or row.state == RowState.PAUSED:
        yield paused_by(facts)
    else:
        yield from _until_due(facts, row, definition)
    yield from told_attempts(facts.attempts)
    if facts.error and not row.picked and not facts.attempts:
        yield f"The last error: {facts.error.strip().splitlines()[-1]}"


def _past_timeout(
    started: datetime, now: datetime, definition: Definition | None
) -> Iterator[str]:
    timeout = None if definition is None else definition.timeout
    if timeout is not None and now - started > timeout:
        yield (
            f"Its timeout of {format_duration(timeout)} has passed, and it still runs. "
            'A thread cannot be ended: restart the worker, or declare isolation="process".'
        )


def _signs_of_life(row: Row, facts: Facts | TaskFacts) -> str:
    told = "; it was asked to stop" if row.cancel_requested else ""
    if row.last_heartbeat is None:
        return told
    silent = facts.now - row.last_heartbeat
    if row.lease is not None and silent >= row.lease:
        heir = (
            "a worker takes it over"
            if facts.obstacle is None
            else f"no worker takes it over: {facts.obstacle}"
        )
        told += f"; its lease of {about(row.lease)} has ended, and {heir}"
    return f"; the last heartbeat was {about(silent)} ago{told}"


# -- attempts -------------------------------------------------------------------------------------

#: The number of newest attempts that are described one by one.
MOST_ATTEMPTS = 5


def told_attempts(attempts: Iterable[AttemptInfo]) -> Iterator[str]:
    """Say who had a slot or a task before, how each of those attempts ended, and since when a lost
    one is silent.
    """
    found = list(attempts)
    if (more := len(found) - MOST_ATTEMPTS) > 0:
        yield (
            f"{'One attempt' if more == 1 else f'{more} attempts'} before the last "
            f"{MOST_ATTEMPTS} did not succeed."
        )
    for one in found[-MOST_ATTEMPTS:]:
        claimed = f" at {when(one.claimed)}" if one.claimed else ""
        if one.outcome == Outcome.LOST:
            yield f"Attempt {one.number} was lost: {one.worker} claimed it{claimed}."
            yield from _silence(one)
            continue
        how = "timed out" if one.reason == Reason.TIMEOUT else one.outcome
        how = (
            how
            if how in ("failed", "timed out")
            else f"ended as {how}{f' ({one.reason})' if one.reason else ''}"
        )
        ended = f" at {when(one.ended)}" if one.ended else ""
        error = error_summary(one.error)
        yield f"Attempt {one.number} {how}{ended}, on {one.worker}{f': {error}' if error else ''}."


def _silence(attempt: AttemptInfo) -> Iterator[str]:
    if attempt.ended is not None:
        yield f"{attempt.worker} was last heard of at {when(attempt.ended)}."


# -- it began -------------------------------------------------------------------------------------

_ORIGINS: dict[str, str] = {
    Origin.CATCH_UP: "It had been missed, and ran late, as catch-up.",
    Origin.TRIGGER: "It was triggered by hand, beside the schedule.",
    Origin.BACKFILL: "It ran for a backfill.",
}


def _began(facts: Facts, entry: SlotInfo, definition: Definition | None) -> Iterator[str]:
    is_cancelled = entry.outcome == Outcome.CANCELLED and not entry.attempts
    if is_cancelled and entry.finished is not None:
        yield _cancelled_before(entry, entry.finished)
        yield from _instead(facts, entry)
        return
    if entry.origin in _ORIGINS and entry.attempts:
        yield _ORIGINS[entry.origin]
    if entry.missed_count:
        yield f"It stands for {slots(entry.missed_count)} before it, which did not run."
    yield from told_attempts(one for one in facts.attempts if one.token != entry.token)
    if entry.started is not None and entry.attempts:
        yield _started(entry, entry.started)
    yield _ending(facts, entry)
    if entry.outcome == Outcome.RUNNING and entry.started is not None:
        yield from _past_timeout(entry.started, facts.now, definition)
    last = facts.attempts[-1] if facts.attempts else None
    if entry.outcome == Outcome.LOST and last is not None and last.token == entry.token:
        yield from _silence(last)
    yield from _instead(facts, entry)
    if entry.error and entry.outcome != Outcome.SUCCEEDED:
        yield f"The last error: {entry.error.strip().splitlines()[-1]}"


def _cancelled_before(entry: SlotInfo, finished: datetime) -> str:
    why = sentences_of(entry.reason).waits or "it was cancelled"
    if entry.reason == Reason.DELETED:
        why = "the job was deleted"
    return f"It did not run: {why} at {when(finished)}, before it began."


def _started(entry: SlotInfo, started: datetime) -> str:
    times = "" if entry.attempts <= 1 else f" (attempt {entry.attempts})"
    delay = started - entry.slot
    late = "on time," if delay < _ROUNDING else f"{about(delay)} after its time,"
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
        waits = (
            row if row is not None and row.slot == facts.slot and not row.picked else None
        )
        due = f", which is due at {when(waits.due)}" if waits else ""
        ended = (
            "was stopped"
            if entry.outcome == Outcome.CANCELLED
            else f"ended as {entry.outcome}"
        )
        ended = "was put off" if entry.reason == Reason.SNOOZED else ended
        return f"That attempt {ended}{_because(entry)}; it waits for another one{due}."
    took = "" if entry.took is None else f", after {about(entry.took)}"
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
        claim = "Its next claim" if entry.started is not None and entry.attempts else "It"
        return (
            f"{claim} was handed back before it began{_because(entry)}, and is due "
            f"again at {due}."
        )
    if row is None or not row.picked or row.slot != facts.slot:
        return (
            "The ledger lists it as running, but no row is held for it: the next "
            "worker that starts will end it."
        )
    verb = "runs" if entry.outcome == Outcome.RUNNING else "is claimed, and has not started"
    return f"It {verb}{_signs_of_life(row, facts)}."


# -- it waits, is to come, or never was -----------------------------------------------------------


def _waits(facts: Facts, row: Row, definition: Definition | None) -> Iterator[str]:
    yield from _passed_over(facts)
    if row.picked:
        yield f"It is claimed by {row.picked_by}, which is deciding about it now."
    elif row.state == RowState.QUEUED:
        other = (
            "a run before it"
            if row.origin == Origin.TRIGGER
            else "another slot of its backfill"
        )
        yield f"It waits until {other} has ended."
    elif row.state == RowState.PAUSED or facts.all_paused is not None:
        yield from _sleeps(facts, row)
    else:
        yield from _until_due(facts, row, definition)
        if row.due > facts.now:
            yield from _deferred(facts, row, definition)


def _deferred(facts: Facts, row: Row, definition: Definition | None) -> Iterator[str]:
    """Explain what moved a first attempt beyond the time at which the slot came due, since when
    and until when.
    """
    schedule = facts.schedule
    until = row.due
    if (
        row.attempt
        or schedule is None
        or row.slot is None
        or row.origin in _ORIGINS.keys() - {Origin.CATCH_UP}
    ):
        return
    since = row.slot + (timedelta(0) if schedule.from_end else schedule.wait(row.slot))
    if until > since:
        why = _what_defers(facts, until, definition)
        yield (
            f"Its first attempt is deferred from {when(since)} to "
            f"{when(until)}{f': {why}' if why else ''}."
        )


def _what_defers(
    facts: Facts, until: datetime, definition: Definition | None
) -> str | None:
    """Return the rule that a first attempt waits for, by the instant at which it may start."""
    before = facts.before
    load = facts.load
    if definition is not None and before is not None and before.started is not None:
        spans = {
            "min_interval": definition.min_interval,
            "the pace of catch_up": definition.catch_up.pace,
        }
        for name, span in spans.items():
            if span is not None and abs(before.started + span - until) < _ROUNDING:
                return (
                    f"{name} is {format_duration(span)}, and {when(before.slot)} "
                    f"started at {when(before.started)}"
                )
    if definition is not None and (places := _no_place(load, definition)) is not None:
        return places
    if load.recovery_rate is not None:
        return (
            f"recovery_rate lets at most {load.recovery_rate} late slots start per "
            "second in the whole cluster"
        )
    return None


def _no_place(load: Load, definition: Definition) -> str | None:
    most = definition.overlap.max if definition.overlap.detaches else None
    if most is None or load.places < most:
        return None
    return (
        f"{slots(load.places)} of the job run or wait for a retry, and "
        f"overlap={definition.overlap!r} permits {most}"
    )


def _until_due(
    facts: Facts | TaskFacts, row: Row, definition: Definition | None
) -> Iterator[str]:
    """Explain when a waiting row is due; or why it waits: no worker can take it, or a limit holds
    it back.
    """
    due = row.due
    now = facts.now
    load = facts.load
    if due > now:
        retry = f" for attempt {row.attempt + 1}" if row.attempt else ""
        yield f"It waits{retry}: it is due at {when(due)}, in {about(due - now)}."
        return
    yield f"It has been due since {when(due)}, and no worker has taken it."
    if facts.obstacle is not None:
        yield f"No live worker can: {facts.obstacle}."
    elif (
        definition is not None
        and (limit := _limit(load, now, definition) or _no_place(load, definition))
        is not None
    ):
        yield f"A limit holds it back: {limit}."
    else:
        yield (
            "Live workers can: they may have no capacity, or will look for it within "
            "their poll interval."
        )


def _limit(load: Load, now: datetime, definition: Definition) -> str | None:
    most = definition.concurrency
    rate = definition.rate_limit
    if most is not None and load.running >= most:
        return f"concurrency is {most}, and {load.running} run"
    counted = [
        (at, count)
        for at, count in load.starts
        if now - at < (rate.window if rate else timedelta(0))
    ]
    if rate is None or sum(count for _, count in counted) < rate.count:
        return None
    left = sum(count for _, count in counted)
    for at, count in counted:
        left -= count
        if left < rate.count:
            free = f"the next may start at {when(at + rate.window)}"
            return (
                f"rate_limit is {rate.count} in {format_duration(rate.window)}, all of "
                f"them have started, and {free}"
            )
    return None


def _sleeps(facts: Facts, row: Row) -> Iterator[str]:
    yield paused_by(facts)
    if row.attempt:
        yield "Its retry continues when the job is resumed."
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
            filter(None, (told, _latest(facts.operations, "delete", facts.now))),
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
    before = f"{slots(count)} {verb} before it, the next at {when(next_slot)}"
    yield f"It comes in {about(facts.slot - facts.now)}; {before}."
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


# -- a job, now -----------------------------------------------------------------------------------


def explain_now(
    store: Store, name: str, id: str = RECURRING, definition: Definition | None = None
) -> JobExplanation | None:
    """Explain the row of a job, or of an instance. None if neither a row, the ledger nor a
    deletion has it as one.
    """
    line = job_of(store, name, id)
    last = next(slots_of(store, name, id, limit=1, ended=True), None)
    if line is None and not _was_job(store, name, id, last):
        return None
    told, attempts = _now(store, name, id, line, definition)
    sentences = [*told]
    if last is not None:
        sentences.append(_last(last))
        if not attempts and last.last is None:
            attempts = attempts_of(store, name, id, last.slot)
    return JobExplanation(
        job=name,
        id=id,
        state=SlotState.UNKNOWN if line is None else line.state,
        sentences=tuple(sentences),
        attempts=tuple(attempts),
    )


def _now(
    store: Store, name: str, id: str, line: JobInfo | None, definition: Definition | None
) -> tuple[Iterable[str], Sequence[AttemptInfo]]:
    """Return what is said about the row now, and the attempts of its slot."""
    if line is not None and line.is_newer:
        return [f"It {line.reason}."], ()
    if line is not None and line.state == ListedState.UNREADABLE:
        return [f"Its row cannot be read: {line.reason}."], ()
    next_slot = None if line is None else line.next_slot
    found = facts(store, name, next_slot or store.now(), id)
    told = _gone(found) if line is None else _present(line, found, definition)
    return told, found.attempts


def _was_job(store: Store, name: str, id: str, last: SlotInfo | None) -> bool:
    """Whether a name without a row was a job's: the ledger or a deletion has it."""
    return id == RECURRING and (last is not None or _was_deleted(store, name))


def _was_deleted(store: Store, name: str) -> bool:
    return any(
        operation.operation == "delete" and operation.job == name
        for operation in audit(store, name, limit=100)
    )


def _gone(facts: Facts) -> Iterator[str]:
    yield (
        "The job has no row, so it does not run: it was deleted, or its history comes "
        "from another database."
    )
    yield from filter(None, [_latest(facts.operations, "delete", facts.now)])
    yield "A worker that registers it plans it when it starts."


def _present(line: JobInfo, facts: Facts, definition: Definition | None) -> Iterator[str]:
    if line.state == ListedState.INSTANCES:
        yield (
            "Its own schedule is disabled; its recurring instances run by theirs, see: "
            f"slotwise jobs instances {line.job}."
        )
        return
    if line.state in (ListedState.DISABLED, ListedState.ENDED):
        why = (
            "Its schedule is disabled"
            if line.state == ListedState.DISABLED
            else "Its schedule has no further slot"
        )
        yield f"{why}: {describe_schedule(line.schedule)}."
        yield (
            "It runs again only if a deploy changes the schedule; to run it once: "
            "slotwise trigger."
        )
        return
    if line.next_slot is not None:
        verb = "It runs for" if line.state == ListedState.RUNNING else "Its next slot is"
        yield f"{verb} {when(line.next_slot)}; its schedule is {describe_schedule(line.schedule)}."
    if (
        line.state == RowState.PAUSED and facts.is_over
    ):  # as after a restore of the queue alone
        yield paused_by(facts)
    yield from explain(facts, definition).sentences


def _last(line: SlotInfo) -> str:
    if line.last is not None:
        return (
            f"Before that, {line.count} slots up to {when(line.last)} were skipped "
            f"({line.reason})."
        )
    reason = (
        f" ({line.reason})" if line.reason and line.outcome != Outcome.SUCCEEDED else ""
    )
    return f"The slot before, {when(line.slot)}, ended as {line.outcome}{reason}."
