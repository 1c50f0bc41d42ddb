"""The product with one rule broken, for as long as a test looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.kit.breaks import Arguments, Mutant, always, answering, given
from tests.kit.records import Died
from tests.kit.store import START
from tests.model import points

from slotwise import Overlap

LONG_AGO = datetime(1990, 1, 1, tzinfo=UTC)
NOTHING = timedelta(0)
A_DAY = timedelta(days=1)


def _changed(**changes: Any) -> Any:
    """The result, with these attributes."""
    return lambda result, _: replace(result, **changes)


def _record(**changes: Any) -> Any:
    """The transition, with these attributes of its record, if it has any."""
    return lambda result, _: replace(
        result, record=result.record and replace(result.record, **changes)
    )


def _defined(changes: Any) -> Any:
    """What an end is decided from, with a job that declares something else."""
    return lambda a: replace(
        a.ending,
        definition=replace(a.ending.definition, **changes(a.ending.definition)),
    )


def _row(**changes: Any) -> Any:
    """The row that the function gets, with these columns."""
    return lambda a: replace(a.row, **changes)


def _since(instant: Callable[[Any], datetime]) -> Any:
    """The columns of a row that waits, and holds its job until this instant."""

    def change(columns: dict[str, Any], a: Any) -> dict[str, Any]:
        is_ahead = (
            columns.get("unheld_since") is not None
            and columns["unheld_since"] > a.self.now
        )
        return {**columns, "unheld_since": instant(a)} if is_ahead else columns

    return change


def _for_queued_ones(changes: Any) -> Any:
    """As ``_defined``, at the end of a slot of a queue that started late: it was queued."""

    def change(a: Any) -> Any:
        is_queued = (
            a.ending.definition.overlap.mode == "queue"
            and a.ending.began - a.row.slot > a.ending.poll
        )
        return _defined(changes)(a) if is_queued else a.ending

    return change


def _ended_after(run: timedelta) -> Any:
    """The end of an attempt whose handler took this long."""
    return lambda a: replace(
        a.ending, held_until=(a.ending.began or a.ending.now) + run
    )


def _without_watermark(owed: tuple[Any, Any], _: Arguments) -> tuple[Any, Any]:
    """What a row owes before a deploy, without the mark up to where its slots are decided."""
    before, closed = owed
    return before, replace(
        closed,
        row={name: value for name, value in closed.row.items() if name != "watermark"},
    )


def _by_key(conditions: list[Any], _: Arguments) -> list[Any]:
    """A row's name and instance: whoever holds it, and under which version."""
    return conditions[:2]


def _all_of_them(_fences: set[Any], a: Arguments) -> set[Any]:
    """The worker goes on with every claim, also with those that it has lost."""
    return {claim.fence for claim in a.claims}


def _of_its_key(fence: dict[str, Any], _: Arguments) -> dict[str, Any]:
    return {name: fence[name] for name in ("task_name", "task_instance")}


def _by_slot(conditions: list[Any], _: Arguments) -> list[Any]:
    """The slot's ledger row, whoever has it."""
    return conditions[:3]


def _lock_whoever_holds_them(_original: Any) -> Any:
    """The rows of these keys, held by whomever or by nobody."""

    def lock(
        self: Any, connection: Any, claims: Any, columns: Any, *_: Any, **_how: Any
    ) -> Any:
        keys = [claim.key._asdict() for claim in claims]
        key = [self.tables.tasks.c[name] for name in keys[0]]
        return connection.execute(self.select_these(keys, key, *columns)).all()

    return lock


def _as_if_own(held: list[Any], a: Arguments) -> list[Any]:
    """The rows that were locked, each as if it were still held under the claim."""
    claims = {claim.key: claim for claim in a.claims}
    return [
        replace(
            one,
            row=replace(
                one.row,
                version=claims[one.row.key].token,
                picked_by=claims[one.row.key].holder,
            ),
        )
        for one in held
    ]


#: By what the product does not do then.
MUTANTS: dict[str, Mutant] = {
    # losses
    "a slot is dead after max_lost": given(
        points.LOST, ending=_defined(lambda job: {"max_lost": job.max_lost + 1})
    ),
    "a hand-back does not count": given(
        points.HAND_BACK, row=lambda a: replace(a.row, attempt=a.row.attempt + 1)
    ),
    "a slot with a row of its own is not forgotten": answering(
        points.HAND_BACK,
        lambda result, _: replace(
            result, record=replace(result.record, forget=result.record.attempts == 0)
        ),
    ),
    "a settlement minds the claim's version and holder": (
        answering(points.HELD, _by_key)
        + answering(points.HELD_FENCE, _of_its_key)
        + answering(points.BEAT, _all_of_them)
        + answering(points.STILL_HELD, _all_of_them)
        + Mutant(((points.LOCK_HELD, _lock_whoever_holds_them),))
        + answering(points.HOLD, _as_if_own)
        + answering(points.AS_HELD, _by_key)
        + answering(points.OPEN_ENTRY, _by_slot)
    ),
    "complete_in outlives its holder": always(points.HAS_COMPLETED, False)
    + always(points.HAS_ENDED, False),
    # give_up
    "the ledger starts a slot that gives up once": given(
        points.MAY_START, gives_up=lambda a: False
    ),
    "a slot that gives up stays as it ended": always(points.KEEP_AS_ENDED, None),
    # retries
    "a lost attempt is no try": given(points.TRIES, row=_row(lost_count=0)),
    "a snoozed attempt is no try": answering(points.SNOOZED, _record(aborted=0)),
    "what was called off is not tried again": answering(
        points.CALLED_OFF,
        lambda result, a: (
            result[0],
            a.outcome if a.outcome.name == "failed" else result[1],
        ),
    ),
    "what was called off does not start": answering(
        points.REFUSAL,
        lambda result, a: None if a.holding.claim.row.cancel_requested else result,
    ),
    # where policies meet, rule 1: how long a job is held
    "a claim that is lost held the job to its last heartbeat": answering(
        points.HELD_UNTIL,
        lambda held_until, a: a.now if isinstance(a.outcome, Died) else held_until,
    ),
    "a handler held the job to its end, and not to its settlement": given(
        points.HELD_UNTIL, ended_ago=lambda a: NOTHING
    ),
    "a row that waits holds its job until it is due": answering(
        points.WAITING, _since(lambda a: a.self.held_until)
    ),
    "a row that waits holds its job for a poll interval more": answering(
        points.WAITING, _since(lambda a: a.self.spaced(a.due))
    ),
    # rule 2: unheld_since is judged by the next ending
    "what came while nobody held the job is catch-up's": answering(
        points.JUDGED, _changed(unheld_since=None)
    ),
    "without such a slot, unheld_since is cleared": answering(
        points.JUDGED, lambda _, a: a.row
    ),
    # rule 3: overlap
    "overlap decides up to unheld_since": given(
        points.OVERLAPPED, row=_row(unheld_since=None)
    ),
    "a queue keeps its newest slots anew at each settlement": given(
        points.OVERLAPPED,
        ending=_for_queued_ones(lambda job: {"overlap": Overlap.queue_all()}),
    ),
    "a queue has a maximum": given(
        points.CHOOSE_OVERLAPPED,
        overlap=lambda a: (
            replace(a.overlap, mode="queue_all")
            if a.overlap.mode == "queue"
            else a.overlap
        ),
    ),
    "a queue does not lift start_within": given(
        points.CHOOSE_MISSED, start_within=lambda a: None
    ),
    # rule 4: catch-up
    "a catch-up has a maximum": given(
        points.CHOOSE_MISSED, catch_up=lambda a: replace(a.catch_up, max=None)
    ),
    "a catch-up has a window": given(
        points.LATEST_START, catch_up=lambda a: replace(a.catch_up, window=None)
    ),
    "slots are collapsed only once": always(points.HAS_DECIDED_AHEAD, False),
    # rule 5: the tail of all
    "a tail ends with what has come by its first start": always(
        points.END_OF_TAIL, None
    ),
    "an absence extends a tail": answering(
        points.END_OF_TAIL, lambda until, a: until and a.row.catch_up_until
    ),
    "what came during the tail of a fast job is a new tail": given(
        points.TAIL, ending=_ended_after(A_DAY)
    ),
    "what came during the tail of a slow job is overlap's": given(
        points.TAIL, ending=_ended_after(NOTHING)
    ),
    "a catch-up has a pace": given(
        points.TAIL,
        ending=_defined(lambda job: {"catch_up": replace(job.catch_up, pace=None)}),
    ),
    "a catch-up side by side has a pace": given(
        points.START_BESIDE,
        definition=lambda a: replace(
            a.definition, catch_up=replace(a.definition.catch_up, pace=None)
        ),
    ),
    "two starts are min_interval apart": answering(points.SPACED, lambda _, a: a.due),
    "a slot starts min_interval after what an operator requested": answering(
        points.KEEPS_APART, lambda answers, _: [START] * len(answers)
    ),
    # rule 6: allow and cancel_previous
    "so many run side by side": given(points.AT_CLAIM, is_full=lambda a: False),
    "a slot that is looked at in time, and finds no place, is overlap's": given(
        points.CONCURRENT_SLOTS, basis=lambda a: replace(a.basis, poll=-A_DAY)
    ),
    "a slot that is looked at late waits for a place": given(
        points.CONCURRENT_SLOTS, basis=lambda a: replace(a.basis, poll=A_DAY)
    ),
    "what waits for its retry is stopped at once": answering(
        points.ASKED_TO_STOP,
        lambda result, _: {
            name: result[name] for name in ("cancel_requested", "control", "pending")
        },
    ),
    # rule 7: retries and moved due times
    "no retry falls behind the next slot": always(points.IS_FORFEITED, False),
    "slots that have come are in no retry's way": given(
        points.FOLLOWING, ending=lambda a: replace(a.ending, now=LONG_AGO)
    ),
    "who moves a due time moves unheld_since along": answering(
        points.MOVED_DUE,
        lambda columns, a: {**columns, "unheld_since": a.row.unheld_since},
    ),
    # operations
    "a pause leaves a retry alone": answering(
        points.FIRST_UNBEGUN, lambda _, a: a.row.slot
    ),
    "a row that was paused while it was held sleeps": answering(
        points.PARKED, lambda _, a: a.transition
    ),
    "a skipped slot is skipped alone": answering(
        points.UNDECIDED, lambda _, a: a.schedule
    ),
    "a trigger that minds others is skipped": always(points.IS_BUSY, False),
    "a backfill has a pace": always(points.BACKFILLS_NEWEST_START, LONG_AGO),
    "a slot that is called off lets the next one go": always(points.FREED, None),
    # deploys and restores
    "a new row begins after all that was decided": given(
        points.FIRST_SLOT, row=_row(watermark=None)
    ),
    "gaps count as decided": answering(
        points.NEWEST_DECIDED, lambda _, a: a.in_ledger
    ),
    "what the text before the last still owes is skipped": answering(
        points.REPLANNED, _changed(gaps=())
    ),
    "changes without a slot between them count as one": always(points.HAS_SLOT, True),
    "after a slot that has begun, a text owes nothing from before it": answering(
        points.OWED, _without_watermark
    ),
    "a deploy brings no two starts together": always(points.KEEP_DISTANCE, None),
    "a slot that has ended lets its row move on": answering(
        points.FINAL, _changed(row=None, gaps=())
    ),
}

MUTANTS = {
    rule: replace(mutant, caches=points.CACHES) for rule, mutant in MUTANTS.items()
}
