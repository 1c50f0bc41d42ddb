"""Say when a waiting row is due, and what holds it back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from slotwise.explain.sentences import ORIGINS, ROUNDING, counted, when
from slotwise.model.durations import format_duration, short_duration
from slotwise.model.records import Row
from slotwise.model.vocabulary import Origin
from slotwise.store.reading.facts import Facts, TaskFacts
from slotwise.store.reading.routing import NO_WORKER_LIVES


def deferred(facts: Facts, row: Row) -> Iterator[str]:
    """Explain what moved a first attempt beyond the time at which the slot came due, since when
    and until when.
    """
    schedule = facts.schedule
    until = row.due
    if (
        row.attempt
        or schedule is None
        or row.slot is None
        or row.origin in ORIGINS.keys() - {Origin.CATCH_UP}
    ):
        return
    since = row.slot + (timedelta(0) if schedule.from_end else schedule.wait(row.slot))
    if until > since:
        why = _what_defers(facts, until)
        yield (
            f"Its first attempt is deferred from {when(since)} to "
            f"{when(until)}{f': {why}' if why else ''}."
        )


def _what_defers(facts: Facts, until: datetime) -> str | None:
    """Return the rule that a first attempt waits for, by the instant at which it may start."""
    if (rule := _spacing(facts, until) or _no_place(facts)) is not None:
        return rule
    if (rate := facts.load.recovery_rate) is not None:
        return f"recovery_rate lets at most {rate} late slots start per second in the whole cluster"
    return None


def _spacing(facts: Facts, until: datetime) -> str | None:
    """Return the span that is kept from the start before, if it ends at that instant."""
    declared = facts.definition
    before = facts.before
    if declared is None or before is None or before.started is None:
        return None
    spans = {
        "min_interval": declared.min_interval,
        "the pace of catch_up": declared.catch_up.pace,
    }
    for name, span in spans.items():
        if span is not None and abs(before.started + span - until) < ROUNDING:
            return (
                f"{name} is {format_duration(span)}, and {when(before.slot)} "
                f"started at {when(before.started)}"
            )
    return None


def until_due(facts: Facts | TaskFacts, row: Row) -> Iterator[str]:
    """Explain when a waiting row is due; or why it waits: no worker can take it, or a limit holds
    it back.
    """
    due = row.due
    if due > facts.now:
        retry = f" for attempt {row.attempt + 1}" if row.attempt else ""
        yield f"It waits{retry}: it is due at {when(due)}, in {short_duration(due - facts.now)}."
        if facts.obstacle not in (None, NO_WORKER_LIVES):
            yield f"No live worker could take it: {facts.obstacle}."
        return
    yield f"It has been due since {when(due)}, and no worker has taken it."
    if facts.obstacle is not None:
        yield f"No live worker can: {facts.obstacle}."
        return
    limit = _full(facts) or _rate(facts) or _no_place(facts)
    if limit is not None:
        yield f"A limit holds it back: {limit}."
        return
    yield (
        "Live workers can: they may have no capacity, or will look for it within "
        "their poll interval."
    )


def _no_place(facts: Facts | TaskFacts) -> str | None:
    overlap = None if facts.definition is None else facts.definition.overlap
    most = overlap.max if overlap is not None and overlap.detaches else None
    places = facts.load.places
    if most is None or places < most:
        return None
    return (
        f"{counted(places, 'slot')} of the job run or wait for a retry, and overlap={overlap!r} "
        f"permits {most}"
    )


def _full(facts: Facts | TaskFacts) -> str | None:
    most = None if facts.definition is None else facts.definition.concurrency
    running = facts.load.running
    if most is None or running < most:
        return None
    return f"concurrency is {most}, and {running} run"


def _rate(facts: Facts | TaskFacts) -> str | None:
    rate = None if facts.definition is None else facts.definition.rate_limit
    if rate is None:
        return None
    counted = [one for one in facts.load.starts if facts.now - one[0] < rate.window]
    left = sum(count for _, count in counted)
    if left < rate.count:
        return None
    for at, count in counted:
        left -= count
        if left < rate.count:
            return (
                f"rate_limit is {rate.count} in {format_duration(rate.window)}, all of them have "
                f"started, and the next may start at {when(at + rate.window)}"
            )
    return None
