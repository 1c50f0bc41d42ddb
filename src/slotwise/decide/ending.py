"""What a held row becomes when its holder lets it go, or falls silent."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from slotwise.decide.absence import absent_from, with_absence
from slotwise.decide.columns import again, carried
from slotwise.decide.final import final
from slotwise.decide.handback import UNREADABLE_PAUSE, hand_back
from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import pause_after_loss
from slotwise.model.records import (
    TICK,
    Aborted,
    AttemptOutcome,
    Cancelled,
    Died,
    Failed,
    HandedBack,
    LedgerEntry,
    Record,
    Row,
    Snoozed,
    Succeeded,
    Transition,
)
from slotwise.model.vocabulary import Outcome, Reason, Release
from slotwise.schedules import Disabled, Schedule


def at_finish(
    row: Row,
    definition: Definition,
    schedule: Schedule | None,
    outcome: AttemptOutcome,
    now: datetime,
    ledger: LedgerEntry | None,
) -> Transition:
    """What a held row becomes when its holder lets it go with ``outcome``."""
    return _apart(_at_finish(row, definition, schedule, outcome, now, ledger), definition, ledger)


def _apart(transition: Transition, definition: Definition, ledger: LedgerEntry | None) -> Transition:
    """Whatever starts next from this row starts at least ``min_interval`` after the attempt that has ended."""
    row = transition.row
    if row is None or transition.label == Release.HANDED_BACK:
        return transition
    return replace(transition, row={**row, "execution_time": _spaced(row["execution_time"], definition, ledger)})


def _spaced(due: datetime, definition: Definition, ledger: LedgerEntry | None) -> datetime:
    if definition.min_interval is None or ledger is None or ledger.started is None:
        return due
    return max(due, ledger.started + definition.min_interval)


def _at_finish(
    row: Row,
    definition: Definition,
    schedule: Schedule | None,
    outcome: AttemptOutcome,
    now: datetime,
    ledger: LedgerEntry | None,
) -> Transition:
    if _has_completed(row, ledger):
        outcome = Succeeded()  # complete_in has committed: whatever came after it, the slot is done
    elif isinstance(outcome, Succeeded) and outcome.promised:
        outcome = Failed("complete_in was called, but its transaction was not committed")
    if row.cancel_requested is not None:
        row, outcome = _called_off(with_absence(row, schedule, ledger), outcome)
    if not isinstance(outcome, HandedBack | Died):
        row = with_absence(row, schedule, ledger)
    match outcome:
        case Succeeded():
            return final(row, definition, schedule, now, now, Outcome.SUCCEEDED, ledger=ledger)
        case Failed():
            return _failed(row, definition, schedule, outcome, now, ledger)
        case Snoozed(duration):
            return _snoozed(row, definition, schedule, duration, now, ledger)
        case Cancelled(reason, error):
            done = final(
                row, definition, schedule, now, now, Outcome.CANCELLED, reason=reason, error=error, ledger=ledger
            )
            # A one-time task that was called off goes: nobody is to drive it again.
            return done if row.has_slot else replace(done, label=Outcome.CANCELLED, row=None)
        case HandedBack(reason):
            return hand_back(row, reason)
        case Aborted(reason):
            return _aborted(row, definition, schedule, reason, now, ledger)
        case Died(lease_end):
            return at_loss(row, definition, schedule, lease_end, now, ledger)


def _has_completed(row: Row, ledger: LedgerEntry | None) -> bool:
    """Whether complete_in has ended the slot under this very claim."""
    return ledger is not None and ledger.outcome == Outcome.SUCCEEDED and ledger.token == row.version


def _called_off(row: Row, outcome: AttemptOutcome) -> tuple[Row, AttemptOutcome]:
    """An operator, or a newer slot, has called the slot off: it ends with this attempt, however that ended."""
    by = row.called_off_by or Reason.OPERATOR
    match outcome:
        case HandedBack():
            return replace(row, attempt=max(row.attempt - 1, 0)), Cancelled(by)
        case Aborted() | Died() | Snoozed():
            return row, Cancelled(by)
        case Failed(error):
            return row, replace(outcome, final=True) if row.has_slot else Cancelled(by, error)
    return row, outcome


def at_finish_unread(
    row: Row, definition: Definition, outcome: AttemptOutcome, now: datetime, ledger: LedgerEntry | None, error: str
) -> Transition:
    """As ``at_finish``, where this worker cannot read the row's schedule: a newer release wrote it, or a zone lacks.

    The slot ends as it would; which one is next is left to a worker that can read it: the row comes up again in a
    minute, and whoever takes it finds in the ledger that this slot has run.
    """
    ended = at_finish(row, definition, Disabled(), outcome, now, ledger)
    if ended.row is None or ended.row["schedule"] == row.schedule:
        return ended  # gone, or once more the same slot: no schedule was asked
    unmoved = {name: carried(row)[name] for name in ("schedule", "slot", "next_slot", "origin", "collapsed")}
    return replace(
        ended,
        row={**ended.row, **unmoved, "execution_time": now + UNREADABLE_PAUSE, "last_error": error},
    )


def at_loss(
    row: Row,
    definition: Definition,
    schedule: Schedule | None,
    lease_end: datetime,
    now: datetime,
    ledger: LedgerEntry | None,
) -> Transition:
    """What becomes of a row whose holder fell silent."""
    if _has_completed(row, ledger):
        row = with_absence(row, schedule, ledger)
        return final(row, definition, schedule, now, now, Outcome.SUCCEEDED, ledger=ledger)
    if row.lease is None:  # another program has picked it, in a table that we share: claims of ours say their lease
        return Transition(label=Release.HANDED_BACK, row=again(row, row.execution_time), record=None)
    if ledger is not None and ledger.outcome == Outcome.CLAIMED:
        return hand_back(row, Reason.LOST)  # the mark was never set, so the handler never started
    row = with_absence(row, schedule, ledger)
    end = min(lease_end, now)
    lost = row.lost_count + 1
    if definition.gives_up:
        return final(
            row, definition, schedule, now, end, Outcome.LOST, reason=Reason.MAY_STILL_BE_RUNNING, lost=1, ledger=ledger
        )
    if lost >= definition.max_lost:
        error = f"lost {lost} times with its worker; its handler may be what takes workers down"
        return final(
            row,
            definition,
            schedule,
            now,
            end,
            Outcome.DEAD,
            reason=Reason.MAX_LOST,
            error=error,
            lost=1,
            ledger=ledger,
        )
    return Transition(
        label=Outcome.LOST,
        row={**again(row, now + pause_after_loss(lost, row.key), lost_count=lost), **absent_from(row, end)},
        record=Record(outcome=Outcome.LOST, reason=Reason.RERUN, lost=1, attempts=row.attempt, final=False),
    )


def _failed(
    row: Row,
    definition: Definition,
    schedule: Schedule | None,
    outcome: Failed,
    now: datetime,
    ledger: LedgerEntry | None,
) -> Transition:
    due = None if outcome.final else _retry_due(row, definition, now, ledger)
    if due is None or _is_forfeited(row, definition, schedule, due):
        return final(
            row, definition, schedule, now, now, Outcome.FAILED, reason=None if due is None else Reason.NEXT_SLOT,
            error=outcome.error, ledger=ledger,
        )  # fmt: skip
    counters = {
        "consecutive_failures": row.consecutive_failures + 1,
        "last_failure": now,
        "last_error": outcome.error,
    }
    return Transition(
        label=Outcome.FAILED,
        row={**again(row, due), **counters},
        record=Record(
            outcome=Outcome.FAILED, reason=Reason.RETRY, error=outcome.error, attempts=row.attempt, final=False
        ),
    )


def _retry_due(row: Row, definition: Definition, now: datetime, ledger: LedgerEntry | None) -> datetime | None:
    """When the next attempt of a failed slot is due; None if there is none."""
    if definition.retry is None:
        return None
    delay = definition.retry.delay_after(max(_tries(row, ledger), 1), max(now - (row.trying_since or now), TICK * 0))
    return None if delay is None else _spaced(now + delay, definition, ledger)  # what comes next meets it, too


def _is_forfeited(row: Row, definition: Definition, schedule: Schedule | None, due: datetime) -> bool:
    """Whether the next slot comes before the retry, and is the next try."""
    if definition.retry is None or definition.retry.past_next_slot:
        return False
    following = _following(row, schedule)
    return following is not None and due >= following


def _following(row: Row, schedule: Schedule | None) -> datetime | None:
    """The next slot that is not decided, by the text as it is now: a deploy changes no more of a held row."""
    if schedule is None or row.slot is None or schedule.from_end or isinstance(schedule, Disabled):
        return row.next_slot
    return schedule.running.next_after(max(row.slot, row.watermark or row.slot))


def _tries(row: Row, ledger: LedgerEntry | None) -> int:
    """Attempts that have failed, with this one: those that were lost, stopped from outside or snoozed are none.

    A slot's stand in the ledger; a one-time task has its failures in its own row.
    """
    if not row.has_slot:
        return row.consecutive_failures + 1
    return row.attempt - row.lost_count - (ledger.aborted if ledger else 0)


def _aborted(
    row: Row,
    definition: Definition,
    schedule: Schedule | None,
    reason: str,
    now: datetime,
    ledger: LedgerEntry | None,
) -> Transition:
    """Stopped while it ran: by an operator, or a job that gives up, it ends here; any other starts again elsewhere."""
    if definition.gives_up or reason == Reason.OPERATOR:
        outcome = Outcome.LOST if reason == Reason.LOST else Outcome.CANCELLED
        return final(row, definition, schedule, now, now, outcome, reason=reason, ledger=ledger)
    return Transition(
        label=Release.ABORTED,
        row=again(row, now),
        record=Record(outcome=Outcome.CANCELLED, reason=reason, aborted=1, attempts=row.attempt, final=False),
    )


def _snoozed(
    row: Row,
    definition: Definition,
    schedule: Schedule | None,
    duration: timedelta,
    now: datetime,
    ledger: LedgerEntry | None,
) -> Transition:
    """The same slot later; an attempt that counts as none for the retries."""
    if definition.gives_up:
        error = 'Snooze asks for a second start, and on_lost="give_up" allows one'
        return final(row, definition, schedule, now, now, Outcome.FAILED, error=error, ledger=ledger)
    return Transition(
        label=Release.SNOOZED,
        row=again(row, now + duration),
        record=Record(outcome=Outcome.CANCELLED, reason=Reason.SNOOZED, aborted=1, attempts=row.attempt, final=False),
    )
