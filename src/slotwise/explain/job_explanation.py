"""Explain why a job does not run now, and when it will."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slotwise.explain.circumstances import changed_by, fares, usually
from slotwise.explain.sentences import counted, latest, paused_by, when
from slotwise.explain.slot_explanation import explain
from slotwise.model.records import RECURRING
from slotwise.model.values import Value
from slotwise.model.vocabulary import (
    ListedState,
    Outcome,
    RowState,
    SlotState,
)
from slotwise.schedules.description import describe_schedule
from slotwise.store.reading.audit import audit
from slotwise.store.reading.facts import Facts, facts
from slotwise.store.reading.jobs import JobInfo
from slotwise.store.reading.jobs import job as job_of
from slotwise.store.reading.rates import WEEK, JobRates, rates
from slotwise.store.reading.slots import AttemptInfo, SlotInfo
from slotwise.store.reading.slots import attempts as attempts_of
from slotwise.store.reading.slots import slots as slots_of
from slotwise.store.slots.store import Store


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
    rates: JobRates | None = None


def explain_now(store: Store, name: str, id: str = RECURRING) -> JobExplanation | None:
    """Explain the row of a job, or of an instance. None if neither a row, the ledger nor a
    deletion has it as one.
    """
    line = job_of(store, name, id)
    last = next(slots_of(store, name, id, limit=1, ended=True), None)
    if line is None and not _was_job(store, name, id, last):
        return None
    told, attempts = _now(store, name, id, line)
    found = rates(store, name)
    sentences = [*_beside(store, line), *told, *fares(found)]
    if line is not None and line.running_since is not None:
        sentences += usually(found, store.now() - line.running_since)
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
        rates=found,
    )


def _beside(store: Store, line: JobInfo | None) -> Iterator[str]:
    """Explain a slot that runs in another row than the job's own, as a trigger does."""
    if line is None or line.running_slot in (None, line.next_slot):
        return
    found = facts(store, line.job, line.running_slot, line.id)
    yield f"It runs for {when(line.running_slot)}."
    yield from explain(found).sentences


def _now(
    store: Store, name: str, id: str, line: JobInfo | None
) -> tuple[Iterable[str], Sequence[AttemptInfo]]:
    """Return what is said about the row now, and the attempts of its slot."""
    if line is not None and line.is_newer:
        return [f"It {line.reason}."], ()
    if line is not None and line.state == ListedState.UNREADABLE:
        return [f"Its row cannot be read: {line.reason}."], ()
    next_slot = None if line is None else line.next_slot
    found = facts(store, name, next_slot or store.now(), id)
    told = _gone(found) if line is None else _present(line, found)
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
    yield from filter(None, [latest(facts.operations, "delete", facts.now)])
    yield "A worker that registers it plans it when it starts."


def _present(line: JobInfo, facts: Facts) -> Iterator[str]:
    if line.state == ListedState.INSTANCES:
        yield (
            "Its own schedule is disabled; its recurring instances run by theirs, see: "
            f"slotwise jobs {line.job} --instances."
        )
        return
    if line.state in (ListedState.DISABLED, ListedState.ENDED):
        yield from _without_slots(line, facts)
        return
    if line.next_slot is not None:
        is_held = facts.plan is not None and facts.plan.picked
        verb = "It runs for" if is_held else "Its next slot is"
        yield f"{verb} {when(line.next_slot)}; its schedule is {describe_schedule(line.schedule)}."
    if (
        line.state == RowState.PAUSED and facts.is_over
    ):  # as after a restore of the queue alone
        yield paused_by(facts)
    yield from explain(facts).sentences
    for deploy in facts.deploys[:1]:
        if deploy.former is not None and facts.now - deploy.at < WEEK:
            yield changed_by(deploy)


def _without_slots(line: JobInfo, facts: Facts) -> Iterator[str]:
    why = (
        "Its schedule is disabled"
        if line.state == ListedState.DISABLED
        else "Its schedule has no further slot"
    )
    yield f"{why}: {describe_schedule(line.schedule)}."
    for deploy in facts.deploys[:1]:
        if deploy.former is not None:
            yield changed_by(deploy)
    yield (
        "It runs again only if a deploy changes the schedule; to run it once: "
        "slotwise trigger."
    )


def _last(line: SlotInfo) -> str:
    if line.last is not None:
        return (
            f"Before that, {counted(line.count, 'slot')} up to {when(line.last)} ended as skipped "
            f"({line.reason})."
        )
    reason = (
        f" ({line.reason})"
        if line.reason and line.outcome != Outcome.SUCCEEDED
        else ""
    )
    return f"The slot before, {when(line.slot)}, ended as {line.outcome}{reason}."
