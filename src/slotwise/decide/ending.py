"""What a held row becomes when its holder lets it go, or falls silent."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from slotwise.decide.columns import again, carried
from slotwise.decide.final import final
from slotwise.decide.handback import UNREADABLE_PAUSE, hand_back
from slotwise.decide.hold import Ending
from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import pause_after_loss
from slotwise.model.records import (
    Aborted,
    AttemptOutcome,
    Cancelled,
    Died,
    Failed,
    HandedBack,
    LedgerEntry,
    Record,
    Row,
    Skipped,
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
    *,
    poll: timedelta,
    ended_ago: timedelta = timedelta(0),
) -> Transition:
    """What a held row becomes when its holder lets it go with ``outcome``, ``ended_ago`` after its handler's end, or
    when the holder fell silent. ``poll``: the poll interval of the worker that writes this.
    """
    held_until = _held_until(row, outcome, now, ledger, ended_ago)
    ending = Ending(
        definition=definition, schedule=schedule, ledger=ledger, now=now, held_until=held_until, poll=poll
    )  # fmt: skip
    if _has_completed(row, ledger):
        outcome = Succeeded()  # complete_in has committed: whatever came after it, the slot is done
    elif isinstance(outcome, Succeeded) and outcome.promised:
        outcome = Failed("complete_in was called, but its transaction was not committed")
    if row.cancel_requested is not None:
        row, outcome = _called_off(row, outcome)
    match outcome:
        case Succeeded():
            return final(ending.judged(row), ending, Outcome.SUCCEEDED)
        case Failed():
            return _failed(ending.judged(row), ending, outcome)
        case Snoozed(duration):
            return _snoozed(ending.judged(row), ending, duration)
        case Cancelled(reason, error):
            done = final(ending.judged(row), ending, Outcome.CANCELLED, reason=reason, error=error)
            # A one-time task that was called off goes: nobody is to drive it again.
            return done if row.has_slot else replace(done, label=Outcome.CANCELLED, row=None)
        case Skipped(reason):
            done = final(ending.judged(_never_began(row)), ending, Outcome.SKIPPED, reason=reason)
            return done if row.has_slot else replace(done, label=Outcome.SKIPPED, row=None)
        case HandedBack(reason):
            return hand_back(row, reason)
        case Aborted(reason):
            return _aborted(ending.judged(row), ending, reason)
        case Died():
            return _lost(row, ending)


def _held_until(
    row: Row, outcome: AttemptOutcome, now: datetime, ledger: LedgerEntry | None, ended_ago: timedelta
) -> datetime:
    """Return when the hold on the job ended: rule 1 of the policies."""
    match outcome:
        case Died():
            return min(row.last_heartbeat or now, now)
        case HandedBack() | Skipped():  # called off, or refused, before it began
            return ledger.started if ledger is not None and ledger.started is not None else now
        case _:
            return now - ended_ago


def _has_completed(row: Row, ledger: LedgerEntry | None) -> bool:
    """Whether complete_in has ended the slot under this very claim."""
    return ledger is not None and ledger.outcome == Outcome.SUCCEEDED and ledger.token == row.version


def _called_off(row: Row, outcome: AttemptOutcome) -> tuple[Row, AttemptOutcome]:
    """An operator, or a newer slot, has called the slot off: it ends with this attempt, however that ended."""
    by = row.called_off_by or Reason.OPERATOR
    match outcome:
        case HandedBack() | Skipped():
            return _never_began(row), Cancelled(by)
        case Aborted() | Died() | Snoozed():
            return row, Cancelled(by)
        case Failed(error):
            return row, replace(outcome, final=True) if row.has_slot else Cancelled(by, error)
    return row, outcome


def _never_began(row: Row) -> Row:
    """Return the row without this claim's attempt, which is not counted."""
    return replace(row, attempt=max(row.attempt - 1, 0))


def at_finish_unread(
    row: Row,
    definition: Definition,
    outcome: AttemptOutcome,
    now: datetime,
    ledger: LedgerEntry | None,
    error: str,
    *,
    poll: timedelta,
) -> Transition:
    """As ``at_finish``, where this worker cannot read the row's schedule: a newer release wrote it, or a zone lacks.

    The slot ends as it would; which one is next is left to a worker that can read it: the row comes up again in a
    minute, and whoever takes it finds in the ledger that this slot has run.
    """
    ended = at_finish(row, definition, Disabled(), outcome, now, ledger, poll=poll)
    if ended.row is None or ended.row["schedule"] == row.schedule:
        return ended  # gone, or once more the same slot: no schedule was asked
    unmoved = {name: carried(row)[name] for name in ("schedule", "slot", "next_slot", "origin", "collapsed")}
    return replace(
        ended,
        row={**ended.row, **unmoved, "execution_time": now + UNREADABLE_PAUSE, "last_error": error},
    )


def _lost(row: Row, ending: Ending) -> Transition:
    """What becomes of a row whose holder fell silent."""
    ledger, definition = ending.ledger, ending.definition
    if row.lease is None:  # another program has picked it, in a table that we share: claims of ours say their lease
        return Transition(label=Release.HANDED_BACK, row=again(row, row.execution_time), record=None)
    if ledger is not None and ledger.outcome == Outcome.CLAIMED:
        return hand_back(row, Reason.LOST)  # the mark was never set, so the handler never started
    row, lost = ending.judged(row), row.lost_count + 1
    if definition.gives_up:
        return final(row, ending, Outcome.LOST, reason=Reason.MAY_STILL_BE_RUNNING, lost=1)
    if lost >= definition.max_lost:
        error = f"lost {lost} times with its worker; its handler may be what takes workers down"
        return final(row, ending, Outcome.DEAD, reason=Reason.MAX_LOST, error=error, lost=1)
    due = ending.now + pause_after_loss(lost, row.key)
    return Transition(
        label=Outcome.LOST,
        row=_another(replace(row, lost_count=lost), ending, due, ending.held_until),
        record=Record(outcome=Outcome.LOST, reason=Reason.RERUN, lost=1, attempts=row.attempt, final=False),
    )


def _another(row: Row, ending: Ending, due: datetime, since: datetime | None = None) -> dict[str, Any]:
    """The columns of a row that waits for the next attempt of its slot; nobody holds its job ``since``, or it does."""
    return {**again(row, due), **ending.waiting(row, row.wanted_due or due, since)}


def _failed(row: Row, ending: Ending, outcome: Failed) -> Transition:
    due = None if outcome.final else _retry_due(row, ending)
    if due is None or _is_forfeited(row, ending, due):
        return final(row, ending, Outcome.FAILED, reason=None if due is None else Reason.NEXT_SLOT, error=outcome.error)
    counters = {
        "consecutive_failures": row.consecutive_failures + 1,
        "last_failure": ending.now,
        "last_error": outcome.error,
    }
    return Transition(
        label=Outcome.FAILED,
        row={**_another(row, ending, due), **counters},
        record=Record(
            outcome=Outcome.FAILED, reason=Reason.RETRY, error=outcome.error, attempts=row.attempt, final=False
        ),
    )


def _retry_due(row: Row, ending: Ending) -> datetime | None:
    """When the next attempt of a failed slot is due; None if there is none."""
    if (retry := ending.definition.retry) is None:
        return None
    tries, since = max(_tries(row, ending.ledger), 1), row.trying_since or ending.now
    delay = retry.delay_after(tries, max(ending.now - since, timedelta(0)))
    return None if delay is None else ending.spaced(ending.now + delay)  # what comes next meets it, too


def _is_forfeited(row: Row, ending: Ending, due: datetime) -> bool:
    """Whether the next slot that has yet to come due does so before the retry, and is the next try."""
    if ending.definition.retry is None or ending.definition.retry.past_next_slot:
        return False
    following = _following(row, ending)
    return following is not None and due >= following


def _following(row: Row, ending: Ending) -> datetime | None:
    """When the next slot comes due that is not decided and has not come, by the text as it is now: a deploy changes no
    more of a held row.
    """
    schedule = ending.schedule
    if schedule is None or row.slot is None or schedule.from_end or isinstance(schedule, Disabled):
        return row.next_slot
    base = max(row.slot, row.watermark or row.slot)
    slot = schedule.running.next_after(max(base, ending.now - schedule.wait(base)))
    return None if slot is None else slot + schedule.wait(slot)


def _tries(row: Row, ledger: LedgerEntry | None) -> int:
    """Attempts that have failed, with this one: those that were lost, stopped from outside or snoozed are none.

    A slot's stand in the ledger; a one-time task has its failures in its own row.
    """
    if not row.has_slot:
        return row.consecutive_failures + 1
    return row.attempt - row.lost_count - (ledger.aborted if ledger else 0)


def _aborted(row: Row, ending: Ending, reason: str) -> Transition:
    """Stopped while it ran: by an operator, or a job that gives up, it ends here; any other starts again elsewhere."""
    if ending.definition.gives_up or reason == Reason.OPERATOR:
        outcome = Outcome.LOST if reason == Reason.LOST else Outcome.CANCELLED
        return final(row, ending, outcome, reason=reason)
    return Transition(
        label=Release.ABORTED,
        row=_another(row, ending, ending.now),
        record=Record(outcome=Outcome.CANCELLED, reason=reason, aborted=1, attempts=row.attempt, final=False),
    )


def _snoozed(row: Row, ending: Ending, duration: timedelta) -> Transition:
    """The same slot later; an attempt that counts as none for the retries."""
    if ending.definition.gives_up:
        error = 'Snooze asks for a second start, and on_lost="give_up" allows one'
        return final(row, ending, Outcome.FAILED, error=error)
    return Transition(
        label=Release.SNOOZED,
        row=_another(row, ending, ending.now + duration),
        record=Record(outcome=Outcome.CANCELLED, reason=Reason.SNOOZED, aborted=1, attempts=row.attempt, final=False),
    )
