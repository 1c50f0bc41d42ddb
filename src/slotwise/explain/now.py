"""Explain why a job does not run now, and when it will. Only reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slotwise.explain.explanation import explain, said, when
from slotwise.explain.facts import Facts, facts
from slotwise.jobs.definition import Definition
from slotwise.model.records import RECURRING
from slotwise.model.vocabulary import Outcome, State
from slotwise.schedules.description import short_text
from slotwise.store.reading.reader import Reader
from slotwise.store.reading.views import JobInfo, SlotInfo
from slotwise.store.slots.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExplanation:
    """``state`` as in listings, or unknown; ``sentences`` say why it does not run now, and when it will."""

    job: str
    id: str
    state: str
    sentences: tuple[str, ...]


def explain_now(
    store: Store, name: str, id: str = RECURRING, definition: Definition | None = None
) -> JobExplanation | None:
    """Explain the row of a job, or of an instance. None if neither a row nor the ledger has it as one."""
    reader = Reader(store)
    line = reader.job(name, id)
    last = next(reader.slots(name, id, limit=1, ended=True), None)
    if line is None and (last is None or id != RECURRING):
        return None
    if line is not None and line.state == State.UNREADABLE:
        told: Iterable[str] = [f"Its row cannot be read: {line.reason}."]
    else:
        slot = reader.now() if line is None or line.next_slot is None else line.next_slot
        found = facts(store, name, slot, id)
        told = _gone(found) if line is None else _present(line, found, definition)
    ended = [_last(last)] if last is not None else []
    return JobExplanation(
        job=name, id=id, state=State.UNKNOWN if line is None else line.state, sentences=(*told, *ended)
    )


def _gone(facts: Facts) -> Iterator[str]:
    deleted = [order for order in facts.orders if order.operation == "delete"][:1]
    yield "The job has no row, so it does not run: it was deleted, or its history comes from another database."
    yield from map(said, deleted)
    yield "A worker that registers it plans it when it starts."


def _present(line: JobInfo, facts: Facts, definition: Definition | None) -> Iterator[str]:
    if line.state in (State.DISABLED, State.ENDED):
        why = "Its schedule is disabled" if line.state == State.DISABLED else "Its schedule has no further slot"
        yield f"{why}: {short_text(line.schedule)}."
        yield "It runs again only if a deploy changes the schedule; to run it once: slotwise trigger."
        return
    if line.next_slot is not None:
        verb = "It runs for" if line.state == State.RUNNING else "Its next slot is"
        yield f"{verb} {when(line.next_slot)}; its schedule is {short_text(line.schedule)}."
    yield from explain(facts, definition).sentences


def _last(line: SlotInfo) -> str:
    if line.last is not None:
        return f"Before that, {line.count} slots up to {when(line.last)} were skipped ({line.reason})."
    reason = f" ({line.reason})" if line.reason and line.outcome != Outcome.SUCCEEDED else ""
    return f"The slot before, {when(line.slot)}, ended as {line.outcome}{reason}."
