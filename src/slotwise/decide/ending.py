"""What a held row becomes when its attempt ends, or its claim is lost.

A job is held from an attempt's claim to the end of its handler, or to the last heartbeat of a lost
claim. A retry, a snooze or a queued slot holds it until one poll interval after it is due. Overlap
decides about slots that came due while the job was held, catch-up about later ones.
``unheld_since`` is where the two meet. The release of a row writes it, ahead of time; the end of
the next attempt judges it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from slotwise.decide.claim import is_catching_up
from slotwise.decide.going_back import hand_back, left_alone, without_attempt
from slotwise.decide.row_columns import again, carried, counters, waiting
from slotwise.decide.slot_choice import around, choose_missed, choose_overlapped
from slotwise.decide.tuning import UNREADABLE_PAUSE
from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import pause_after_loss
from slotwise.model import records
from slotwise.model.records import (
    FOREVER,
    TICK,
    Gap,
    LedgerEntry,
    Record,
    Row,
    Transition,
)
from slotwise.model.vocabulary import Origin, Outcome, Reason, Release, RowState
from slotwise.schedules import Disabled, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What the end of an attempt is decided from, besides its row and its outcome."""

    definition: Definition
    schedule: Schedule | None
    ledger: LedgerEntry | None
    now: datetime
    #: The end of the handler, or the last heartbeat of a claim that was lost.
    held_until: datetime
    #: The poll interval of the worker that releases the row.
    poll: timedelta
    #: The attempt has saved a checkpoint, and ``retry`` counts anew after progress.
    counts_anew: bool = False

    @property
    def began(self) -> datetime | None:
        """When the attempt started."""
        return self.ledger.started if self.ledger else None

    def spaced(self, due: datetime) -> datetime:
        """``due``, or as much later as ``min_interval`` asks after the start of this attempt."""
        return self.apart(due, self.definition.min_interval)

    def apart(self, due: datetime, least: timedelta | None) -> datetime:
        """``due``, or ``least`` after the start of this attempt.

        After a clock step back, a start that lies in the future moves nothing. One that never
        began moves nothing, too.
        """
        if least is None or self.began is None or self.began > self.now:
            return due
        return max(due, self.began + least)

    def waiting(
        self, row: Row, due: datetime, since: datetime | None = None
    ) -> dict[str, datetime]:
        """Return the columns of a row that waits for another attempt, or with a queued slot.

        The row holds its job meanwhile; not if its claim was lost, ``since`` its last heartbeat.
        """
        due = self.spaced(due)
        if not row.is_plan or self.schedule is None or self.schedule.from_end:
            return {"execution_time": due}
        return {
            "execution_time": due,
            "unheld_since": row.unheld_since
            or since
            or max(due, self.now) + self.poll,
        }

    def judged(self, row: Row) -> Row:
        """Return the row; it keeps ``unheld_since`` if an undecided slot came due between that and
        this attempt.

        In a catch-up that runs all slots, those slots extend the tail instead.
        """
        since = row.unheld_since
        schedule = self.schedule
        if since is None:
            return row
        is_tail = is_catching_up(row, self.definition)
        decided = (row.slot, row.watermark, row.catch_up_until if is_tail else None)
        base = max((one for one in decided if one is not None), default=None)
        if schedule is None or base is None or not self._came(schedule, base, since):
            return replace(row, unheld_since=None)
        if not is_tail:
            return row
        end = newest_come(schedule, base, self.now)
        return replace(row, unheld_since=None, catch_up_until=end)

    def _came(self, schedule: Schedule, base: datetime, since: datetime) -> bool:
        """Whether a slot after ``base`` came due between ``since`` and the start of this
        attempt.
        """
        if self.began is None:
            return False
        newest = newest_come(schedule, base, self.began - TICK)
        return newest is not None and newest + schedule.wait(newest) > since


def newest_come(
    schedule: Schedule, base: datetime, until: datetime
) -> datetime | None:
    """Return the newest slot after ``base`` that was due by ``until``, or None."""
    if schedule.from_end:
        return None
    return schedule.running.latest_before(
        until - schedule.wait(base) + TICK, floor=base
    )


def at_finish(
    row: Row,
    definition: Definition,
    schedule: Schedule | None,
    outcome: records.AttemptOutcome,
    now: datetime,
    ledger: LedgerEntry | None,
    *,
    poll: timedelta,
    ended_ago: timedelta = timedelta(0),
    is_decided: bool = False,
    counts_anew: bool = False,
) -> Transition:
    """Decide what a held row becomes when its handler has ended, ``ended_ago``, or its claim is
    lost.

    ``is_decided``: the slot has ended or lies in a gap, for the row was restored alone. It has no
    more attempt. ``counts_anew``: the attempt has made progress, so those before it do not count.
    """
    held_until = _held_until(row, outcome, now, ledger, ended_ago)
    ending = Ending(
        definition=definition,
        schedule=schedule,
        ledger=ledger,
        now=now,
        held_until=held_until,
        poll=poll,
        counts_anew=counts_anew,
    )
    row, outcome = _called_off(row, _confirmed(row, outcome, ledger))
    if is_decided and not isinstance(outcome, _FINAL):
        judged = ending.judged(row)
        return final(judged, ending, Outcome.LOST, reason=Reason.ORPHANED, lost=1)
    match outcome:
        case records.Succeeded():
            return final(ending.judged(row), ending, Outcome.SUCCEEDED)
        case records.Failed():
            outcome = replace(outcome, final=outcome.final or is_decided)
            return _failed(ending.judged(row), ending, outcome)
        case records.Cancelled() | records.Skipped():
            return _cancelled(row, ending, outcome)
        case records.Snoozed(duration):
            return _snoozed(ending.judged(row), ending, duration)
        case records.HandedBack():
            return _handed_back(row, outcome, now)
        case records.Aborted(reason):
            return _aborted(ending.judged(row), ending, reason)
        case _:
            return _lost(row, ending)


#: Outcomes after which a slot that is decided needs no other end.
_FINAL = (records.Succeeded, records.Failed, records.Cancelled, records.Skipped)


def _handed_back(row: Row, outcome: records.HandedBack, now: datetime) -> Transition:
    if outcome.error is None:
        return hand_back(row, outcome.reason)
    return left_alone(row, now, outcome.error)


def _confirmed(
    row: Row, outcome: records.AttemptOutcome, ledger: LedgerEntry | None
) -> records.AttemptOutcome:
    """Return the outcome, after ``complete_in`` as the ledger confirms it."""
    if _has_completed(row, ledger):
        return (
            records.Succeeded()
        )  # its transaction has committed, so the slot is done
    if isinstance(outcome, records.Succeeded) and outcome.promised:
        return records.Failed(
            "complete_in was called, but its transaction was not committed"
        )
    return outcome


def _cancelled(
    row: Row, ending: Ending, outcome: records.Cancelled | records.Skipped
) -> Transition:
    if isinstance(outcome, records.Skipped):
        row = without_attempt(row)
    judged = ending.judged(row)
    done = final(
        judged, ending, outcome.name, reason=outcome.reason, error=outcome.error
    )
    # A cancelled one-time task is deleted; it cannot be retried.
    return done if row.has_slot else replace(done, label=outcome.name, row=None)


def _held_until(
    row: Row,
    outcome: records.AttemptOutcome,
    now: datetime,
    ledger: LedgerEntry | None,
    ended_ago: timedelta,
) -> datetime:
    """Return when the hold on the job ended."""
    match outcome:
        case records.Died():
            return min(row.last_heartbeat or now, now)
        case records.HandedBack() | records.Skipped():  # it never began
            return (
                ledger.started
                if ledger is not None and ledger.started is not None
                else now
            )
        case _:
            return now - ended_ago


def _has_completed(row: Row, ledger: LedgerEntry | None) -> bool:
    """Return whether complete_in has ended the slot under this claim."""
    return (
        ledger is not None
        and ledger.outcome == Outcome.SUCCEEDED
        and ledger.token == row.version
    )


def _called_off(
    row: Row, outcome: records.AttemptOutcome
) -> tuple[Row, records.AttemptOutcome]:
    """Return the outcome; if the attempt was asked to stop, its slot ends with it."""
    if row.cancel_requested is None:
        return row, outcome
    by = row.called_off_by or Reason.OPERATOR
    match outcome:
        case records.HandedBack() | records.Skipped():
            return without_attempt(row), records.Cancelled(by)
        case records.Aborted() | records.Died() | records.Snoozed():
            return row, records.Cancelled(by)
        case records.Failed(error):
            return row, replace(
                outcome, final=True
            ) if row.has_slot else records.Cancelled(by, error)
    return row, outcome


def unread(row: Row, transition: Transition, now: datetime, error: str) -> Transition:
    """End the slot, and let the row come up again in a minute, for a worker that can read its
    schedule.

    ``transition`` was decided with a disabled schedule.
    """
    columns = transition.row
    if columns is None or columns["schedule"] == row.schedule:
        return transition  # deleted, or the same slot again: no schedule was needed
    unmoved = {
        name: getattr(row, name)
        for name in ("schedule", "slot", "next_slot", "origin", "collapsed")
    }
    put_off = {"execution_time": now + UNREADABLE_PAUSE, "last_error": error}
    return replace(transition, row=columns | unmoved | put_off)


def _lost(row: Row, ending: Ending) -> Transition:
    ledger = ending.ledger
    definition = ending.definition
    if (
        row.lease is None
    ):  # another program that shares the table has picked it: our claims have a lease
        return Transition(
            label=Release.HANDED_BACK, row=again(row, row.execution_time), record=None
        )
    unmarked_task = definition.gives_up and not row.has_slot and row.marked is None
    if unmarked_task or (ledger is not None and ledger.outcome == Outcome.CLAIMED):
        return hand_back(
            row, Reason.LOST
        )  # without the mark its handler has not started
    # Lost attempts that count no more have not failed either: they count as aborted.
    forgiven = row.lost_count if ending.counts_anew else 0
    row, lost = ending.judged(row), row.lost_count + 1 - forgiven
    if definition.gives_up:
        return final(
            row, ending, Outcome.LOST, reason=Reason.MAY_STILL_BE_RUNNING, lost=1
        )
    if lost >= definition.max_lost:
        error = f"lost {lost} times with its worker; its handler may be what takes workers down"
        return final(
            row, ending, Outcome.DEAD, reason=Reason.MAX_LOST, error=error, lost=1
        )
    due = ending.now + pause_after_loss(lost, row.key)
    row = replace(row, lost_count=lost)
    return _another(
        row,
        ending,
        due,
        Outcome.LOST,
        Reason.RERUN,
        since=ending.held_until,
        lost=1,
        aborted=forgiven,
    )


def _another(
    row: Row,
    ending: Ending,
    due: datetime,
    label: Outcome | Release,
    reason: str,
    *,
    since: datetime | None = None,
    error: str | None = None,
    lost: int = 0,
    aborted: int = 0,
) -> Transition:
    """The row waits for the next attempt of its slot; see ``Ending.waiting``."""
    columns = {
        **again(row, due),
        **ending.waiting(row, row.wanted_due or due, since),
        "last_error": error,
    }
    record = Record(
        outcome=label if isinstance(label, Outcome) else Outcome.CANCELLED,
        reason=reason,
        error=error,
        lost=lost,
        aborted=aborted,
        attempts=row.attempt,
        final=False,
    )
    return Transition(label=label, row=columns, record=record)


def _failed(row: Row, ending: Ending, outcome: records.Failed) -> Transition:
    forgiven = 0
    if ending.counts_anew:
        forgiven = max(_tries(row, ending.ledger) - 1, 0) if row.has_slot else 0
        row = replace(row, consecutive_failures=0, trying_since=ending.now)
    due = None if outcome.final else _retry_due(row, ending)
    if due is None or _is_forfeited(row, ending, due):
        return final(
            row,
            ending,
            Outcome.FAILED,
            reason=None if due is None else Reason.NEXT_SLOT,
            error=outcome.error,
        )
    row = replace(
        row, consecutive_failures=row.consecutive_failures + 1, last_failure=ending.now
    )
    another = partial(_another, row, ending, due, error=outcome.error)
    return another(Outcome.FAILED, Reason.RETRY, aborted=forgiven)


def _retry_due(row: Row, ending: Ending) -> datetime | None:
    if (retry := ending.definition.retry) is None:
        return None
    tries = 1 if ending.counts_anew else max(_tries(row, ending.ledger), 1)
    since = row.trying_since or ending.now
    delay = retry.delay_after(tries, max(ending.now - since, timedelta(0)))
    return None if delay is None else ending.spaced(ending.now + delay)


def _is_forfeited(row: Row, ending: Ending, due: datetime) -> bool:
    """Return whether the next slot comes due before the retry, and replaces it."""
    if ending.definition.retry is None or ending.definition.retry.past_next_slot:
        return False
    following = _following(row, ending)
    return following is not None and due >= following


def _following(row: Row, ending: Ending) -> datetime | None:
    """Return when the next undecided slot comes due, by the text: a deploy changes no more of a
    held row.
    """
    schedule = ending.schedule
    if isinstance(schedule, Disabled):
        return None
    if schedule is None or row.slot is None or schedule.from_end:
        return row.next_slot
    base = max(row.slot, row.watermark or row.slot)
    slot = schedule.running.next_after(max(base, ending.now - schedule.wait(base)))
    return None if slot is None else slot + schedule.wait(slot)


def _tries(row: Row, ledger: LedgerEntry | None) -> int:
    """Count the failed attempts, this one included. Lost, stopped and snoozed ones do not
    count.
    """
    if not row.has_slot:
        return row.consecutive_failures + 1
    return row.attempt - row.lost_count - (ledger.aborted if ledger else 0)


def _aborted(row: Row, ending: Ending, reason: str) -> Transition:
    """End a slot that was stopped by an operator, or whose job gives up; any other starts
    again.
    """
    if ending.definition.gives_up or reason == Reason.OPERATOR:
        outcome = Outcome.LOST if reason == Reason.LOST else Outcome.CANCELLED
        return final(row, ending, outcome, reason=reason)
    return _another(row, ending, ending.now, Release.ABORTED, reason, aborted=1)


def _snoozed(row: Row, ending: Ending, duration: timedelta) -> Transition:
    """Start the same slot again later."""
    if ending.definition.gives_up:
        error = 'Snooze asks for a second start, and on_lost="give_up" allows one'
        return final(row, ending, Outcome.FAILED, error=error)
    return _another(
        row, ending, ending.now + duration, Release.SNOOZED, Reason.SNOOZED, aborted=1
    )


# -- the end of a slot ----------------------------------------------------------------------------

_Waiting = tuple[dict[str, Any], tuple[Gap, ...]]


def final(
    row: Row,
    ending: Ending,
    outcome: Outcome,
    *,
    reason: str | None = None,
    error: str | None = None,
    lost: int = 0,
) -> Transition:
    """End the slot: a plan row moves on, a detached row is deleted, a task is deleted or stays as
    dead.
    """
    record = Record(
        outcome=outcome, reason=reason, error=error, attempts=row.attempt, lost=lost
    )
    if row.is_detached:
        return Transition(label=outcome, row=None, record=record)
    if not row.is_plan or ending.schedule is None:
        return _end_task(row, ending.now, outcome, error, record)
    base = max(
        row.slot or ending.held_until, row.watermark or row.slot or ending.held_until
    )
    schedule = ending.schedule
    gaps = tuple[Gap, ...]()
    if schedule.from_end:
        columns = waiting(
            row,
            schedule,
            base,
            schedule.settled(base).next_after(max(ending.now, base)),
        )
    else:
        columns, gaps = (
            _tail if is_catching_up(row, ending.definition) else _overlapped
        )(row, ending, schedule, base)
    columns |= counters(row, outcome, ending.now)
    columns |= {
        "execution_time": ending.spaced(columns["execution_time"]),
        "last_error": error,
    }
    return Transition(label=outcome, row=columns, record=record, gaps=gaps)


def _tail(row: Row, ending: Ending, schedule: Schedule, base: datetime) -> _Waiting:
    """Go on to the next slot of the tail. After the last one, slots that came due meanwhile are a
    new tail, or overlap decides about them.
    """
    catch_up = ending.definition.catch_up
    late = tuple[Gap, ...]()
    due = ending.apart(ending.spaced(ending.now), catch_up.pace)
    slot = schedule.running.next_after(base)
    until = _end_of_tail(row, ending, schedule, base)
    if slot is not None and until is not None and slot <= until:
        then = due + ending.poll - schedule.wait(slot)
        limit = ending.definition.start_within
        choice = choose_missed(catch_up, limit, schedule.running, slot, then, until)
        if choice.slot is not None:
            return _of_tail(row, ending, schedule, base, due, until), ()
        late = around(schedule, choice.gaps, base + TICK, choice.watermark)
        base = choice.watermark
    newest = newest_come(schedule, base, ending.now)
    if newest is not None and _is_short(ending, schedule, base):
        end = newest_come(schedule, base, due) or newest
        return _of_tail(row, ending, schedule, base, due, end), late
    columns, gaps = _overlapped(row, ending, schedule, base)
    return columns, (*late, *gaps)


def _end_of_tail(
    row: Row, ending: Ending, schedule: Schedule, base: datetime
) -> datetime | None:
    """Return the end of the tail, extended by a slot that came due after the handler's end: this
    settlement had to wait.
    """
    until = row.catch_up_until
    newest = newest_come(schedule, until or base, ending.now)
    if newest is None:
        return until
    came = newest + schedule.wait(newest)
    return newest if came > ending.held_until + ending.poll else until


def _is_short(ending: Ending, schedule: Schedule, base: datetime) -> bool:
    """Whether the last run was shorter than the interval to the first slot after ``base``, from the
    slot before it. The instant of a deploy is no slot.
    """
    following = schedule.settled(base).next_after(base)
    if following is None:
        return False
    took = ending.held_until - (ending.began or ending.held_until)
    return took < following - (schedule.latest_before(following) or base)


def _of_tail(
    row: Row,
    ending: Ending,
    schedule: Schedule,
    base: datetime,
    due: datetime,
    until: datetime,
) -> dict[str, object]:
    return {
        **waiting(row, schedule, base),
        "origin": Origin.CATCH_UP,
        "catch_up_until": until,
        **ending.waiting(row, due),
    }


def _overlapped(
    row: Row, ending: Ending, schedule: Schedule, base: datetime
) -> _Waiting:
    """Let overlap decide about the slots that came due while the job was held."""
    until = (row.unheld_since or ending.held_until) - schedule.wait(base)
    choice = choose_overlapped(
        ending.definition.overlap, schedule.running, base, until
    )
    gaps = around(schedule, choice.gaps, base + TICK, choice.slot or choice.watermark)
    base = choice.watermark
    if choice.slot is None:
        return waiting(row, schedule, base), gaps
    columns = waiting(row, schedule, base, choice.slot)
    return {
        **columns,
        **ending.waiting(row, max(columns["execution_time"], ending.now)),
    }, gaps


def _end_task(
    row: Row, now: datetime, outcome: Outcome, error: str | None, record: Record
) -> Transition:
    """Delete a one-time task that succeeded; any other stays as dead, with the reason."""
    if outcome == Outcome.SUCCEEDED:
        return Transition(label=outcome, row=None, ended=record)
    dead = {
        "state": RowState.DEAD,
        "execution_time": FOREVER,
        "parked_due": row.execution_time,
        "last_error": error or record.reason or outcome,
    }
    return Transition(
        label=Outcome.DEAD,
        row=carried(row) | counters(row, outcome, now) | dead,
        ended=record,
    )
