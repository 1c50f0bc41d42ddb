"""The product with one rule broken, for as long as a test looks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tests.kit.breaks import Mutant, always, answering, constant, given
from tests.model import points

LONG_AGO = datetime(1990, 1, 1, tzinfo=UTC)


def _changed(**changes: Any) -> Any:
    """The result, with these attributes."""
    return lambda result, _: replace(result, **changes)


def _record(**changes: Any) -> Any:
    """The transition, with these attributes of its record, if it has any."""
    return lambda result, _: replace(result, record=result.record and replace(result.record, **changes))


def _defined(changes: Any) -> Any:
    """What an end is decided from, with a job that declares something else."""
    return lambda a: replace(a.ending, definition=replace(a.ending.definition, **changes(a.ending.definition)))


def _row(**changes: Any) -> Any:
    """The row that the function gets, with these columns."""
    return lambda a: replace(a.row, **changes)


#: By what the product does not do then.
MUTANTS: dict[str, Mutant] = {
    # losses
    "a claim that is lost was held until its last heartbeat": answering(points.HELD_UNTIL, lambda _, a: a.now),
    "a slot is dead after max_lost": given(points.LOST, ending=_defined(lambda job: {"max_lost": job.max_lost + 1})),
    "a hand-back does not count": given(points.HAND_BACK, row=lambda a: replace(a.row, attempt=a.row.attempt + 1)),
    "a slot with a row of its own is not forgotten": answering(
        points.HAND_BACK,
        lambda result, _: replace(result, record=replace(result.record, forget=result.record.attempts == 0)),
    ),
    "the usual end minds the claim's version and holder": (
        always(points.FOLLOWING_HAS_COME, False)
        + answering(points.AS_CLAIMED, lambda conditions, _: conditions[:2])  # the row's key
        + answering(points.OWN_ENTRY, lambda conditions, _: conditions[:3])  # the slot
    ),
    "complete_in outlives its holder": always(points.HAS_COMPLETED, False),
    # give_up
    "the ledger starts a slot that gives up once": given(points.LEDGER_ENTRY, strict=lambda a: False),
    "a slot that gives up stays as it ended": always(points.KEEP_AS_ENDED, None),
    # retries
    "no retry falls behind the next slot": always(points.IS_FORFEITED, False),
    "a lost attempt is no try": given(points.TRIES, row=_row(lost_count=0)),
    "a snoozed attempt is no try": answering(points.SNOOZED, _record(aborted=0)),
    "what was called off is not tried again": answering(
        points.CALLED_OFF, lambda result, a: (result[0], a.outcome if a.outcome.name == "failed" else result[1])
    ),
    "what was called off does not start": always(points.IS_CALLED_OFF, False),
    # where overlap and catch-up meet
    "what came while nobody held the job is catch-up's": answering(points.JUDGED, _changed(unheld_since=None)),
    "a row that waits holds its job until one poll interval after it is due": answering(
        points.WAITING, lambda columns, _: {**columns, "unheld_since": None}
    ),
    # catch-up
    "a catch-up has a maximum": given(points.CHOOSE_MISSED, catch_up=lambda a: replace(a.catch_up, max=None)),
    "a catch-up has a window": given(points.LATEST_START, catch_up=lambda a: replace(a.catch_up, window=None)),
    "a catch-up has a pace": given(
        points.TAIL, ending=_defined(lambda job: {"catch_up": replace(job.catch_up, pace=None)})
    ),
    "a queue minds start_within": given(points.CHOOSE_MISSED, start_within=lambda a: None),
    "slots are collapsed only once": always(points.WAS_HANDED_BACK, False),
    "two starts are min_interval apart": answering(points.SPACED, lambda _, a: a.due),
    # overlap
    "a queue has a maximum": given(
        points.CHOOSE_OVERLAPPED,
        overlap=lambda a: replace(a.overlap, mode="queue_all") if a.overlap.mode == "queue" else a.overlap,
    ),
    "slots of a run are its overlap's": always(points.FOLLOWING_HAS_COME, False),
    "so many run side by side": given(points.AT_CLAIM, taken=lambda a: a.taken - 1),
    "what waits for its retry is stopped at once": answering(
        points.ASKED_TO_STOP, lambda result, _: {"cancel_requested": result["cancel_requested"]}
    ),
    # orders
    "a pause leaves a retry alone": answering(points.FIRST_UNBEGUN, lambda _, a: a.row.slot),
    "a row that was paused while it was held sleeps": answering(points.PARKED, lambda _, a: a.transition),
    "an order on a held row is read": constant(points.UNASKED, ()),
    "a skipped slot is skipped alone": answering(points.UNDECIDED, lambda _, a: a.schedule),
    "a trigger that minds others is skipped": answering(points.TRIGGERS_RULE, lambda rule, _: rule and "queue"),
    "a backfill has a pace": always(points.BACKFILLS_NEWEST_START, LONG_AGO),
    "a slot that is called off lets the next one go": always(points.HAS_A_PLACE, False),
    # deploys and restores
    "a new row begins after all that was decided": given(points.FIRST_SLOT, row=_row(watermark=None)),
    "gaps count as decided": answering(points.NEWEST_DECIDED, lambda _, a: a.in_ledger),
    "a deploy brings no two starts together": always(points.KEEP_DISTANCE, None),
    "a slot that has ended lets its row move on": answering(points.FINAL, _changed(row=None, gaps=())),
}

MUTANTS = {rule: replace(mutant, caches=points.CACHES) for rule, mutant in MUTANTS.items()}
