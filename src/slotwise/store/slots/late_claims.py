"""Claimed rows that need a decision: with missed slots, unreadable, or with a slot that the ledger
already has.

Claim, decision, and what is written about slots that do not run are one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from slotwise.decide import claim as decide
from slotwise.decide.going_back import NEWER, defer, hand_back, left_alone
from slotwise.decide.tuning import UNREADABLE_PAUSE
from slotwise.errors import InvalidSchedule
from slotwise.model.records import Gap, Key, Row, Transition
from slotwise.model.vocabulary import Outcome, Reason, Release
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.dialects.port import ClaimRequest, Transaction
from slotwise.store.schema.rows import Change, Held
from slotwise.store.slots import ledger
from slotwise.store.slots.detached import (
    ask_to_stop,
    detach_started,
    release_queued,
    stranger_of,
)
from slotwise.store.slots.gates import Gates, Later, Moment, Refusal
from slotwise.store.slots.tuning import MOST_LEFT

if TYPE_CHECKING:
    from slotwise.store.slots.claims import Claims


@dataclass(slots=True)
class _Plan:
    """A readable plan row with its decision. ``is_behind``: the ledger has already decided the
    row's slot.
    """

    row: Row
    schedule: Schedule
    newest: datetime | None
    is_behind: bool
    decision: decide.Start | decide.Advance = field(init=False)

    @property
    def starting(self) -> Row:
        """The row with the slot that is to start, for gates: a catch-up that was handed back still
        is one.
        """
        assert isinstance(self.decision, decide.Start)
        return replace(
            self.decision.row, origin=self.decision.row.origin or self.row.origin
        )


class LateClaims:
    """Decides within a claim's transaction which slot of each claimed row starts, if any."""

    def __init__(
        self,
        claims: Claims,
        gates: Gates,
        connection: sa.Connection,
        now: datetime,
        request: ClaimRequest,
    ) -> None:
        self._dialect = claims.dialect
        self._definitions = claims.definitions
        self._gates = gates
        self._claims = claims
        self._poll = claims.poll
        self._strict = claims.strict
        self._connection = connection
        self._now = now
        self._request = request
        self._at = Transaction(connection, claims.dialect, now)
        #: The slots that will not run.
        self.skipped: list[tuple[Row, Gap]] = []
        #: How many rows are left to other workers, which may be able to read their schedules.
        self.left = 0
        #: Starts that several rows may share.
        self._starts: dict[object, decide.Start] = {}
        #: The rows that cannot be read or decided, each with its flaw.
        self._bad: list[tuple[Row, str]] = []

    def start(self, late: Sequence[Row]) -> dict[Key, Row | None]:
        """Return for each claimed row the row with the slot that starts; None: the row has
        moved on.
        """
        found = dict[Key, Row | None].fromkeys(row.key for row in late)
        self._bad = [(row, row.flaw) for row in late if row.flaw]
        late = self._without_newer([row for row in late if row.flaw is None])
        # A slot that is too late must free its place before the places are counted.
        beside = [
            row
            for row in late
            if row.is_detached and not (self._is_open(row) and self._has_given_up(row))
        ]
        plans = self._decide([row for row in late if not row.is_detached])
        asked = [*filter(self._is_open, beside), *self._starting(plans)]
        refused = self._gates.admit(asked, self._now, self._connection, Moment.START)
        # Race: a plan asks its detached rows to stop, also those of this claim. They are written
        # first, from what was read: a later write would undo the request.
        for row in beside:
            found[row.key] = self._start_detached(row, refused.get(row.key))
        found |= self._start_plans(plans, refused)
        if self._bad:
            self._claims.refuse(self._connection, self._bad, self._now)
        return found

    def _starting(self, plans: Sequence[_Plan]) -> list[Row]:
        """Return the rows with the slots that are to start, of jobs that a gate may stop."""
        free = self._claims.policies
        gated = [one for one in plans if one.row.task_name not in free]
        return [
            one.starting for one in gated if isinstance(one.decision, decide.Start)
        ]

    def _is_open(self, row: Row) -> bool:
        """Whether the slot of a detached row has not yet been offered to the ledger."""
        return decide.is_weighed(
            row, self._now, self._request.weighed, self._request.late
        )

    def _without_newer(self, late: Sequence[Row]) -> list[Row]:
        """Leave the rows of a newer release to its workers: policies of this one decide nothing
        about their slots. Return the others.
        """
        own = []
        for row in late:
            payload = self._definitions[row.task_name].payload
            why = None if row.task_data is None else payload.newer(row.task_data)
            if why is None:
                own.append(row)
                continue
            self._claims.warnings.newer(row, self._now, why)
            self._let_go(row, left_alone(row, self._now, why))
        return own

    def _decide(self, rows: Sequence[Row]) -> list[_Plan]:
        """Return what becomes of each plan row that can be read and decided."""
        keys = [row.key for row in rows]
        newest = (
            self._dialect.newest_decided(self._connection, keys, self._strict)
            if keys
            else []
        )
        plans = [
            one
            for row, known in zip(rows, newest, strict=True)
            if (one := self._read(row, known)) is not None
        ]
        gated = [one.row for one in plans]
        full = self._gates.admit(gated, self._now, self._connection, Moment.DECISION)
        decided = []
        for one in plans:
            try:
                one.decision = self._decision(one, is_full=one.row.key in full)
            except Exception as error:  # values that no release writes
                self._bad.append((one.row, str(error)))
            else:
                decided.append(one)
        return decided

    def _decision(self, one: _Plan, *, is_full: bool) -> decide.Start | decide.Advance:
        """Return the decision about a row. Rows with the same schedule, slot and policies share a
        start.
        """
        row = one.row
        policies = self._claims.policies.get(row.task_name)
        alike = None
        if policies is not None and not one.is_behind and _is_simple(row):
            alike = (row.schedule, row.slot, policies)
            if (start := self._starts.get(alike)) is not None:
                # Nothing has seen the row yet: a copy would cost as much as reading it.
                for name in decide.CHOSEN:
                    setattr(row, name, getattr(start.row, name))
                return decide.Start(row=row, gaps=start.gaps)
        decision = decide.at_claim(
            row,
            one.schedule,
            self._now,
            one.newest,
            self._definitions[row.task_name],
            is_full=is_full,
            poll=self._poll,
        )
        decision = replace(decision, gaps=_following(one.schedule, decision.gaps))
        if alike is not None and isinstance(decision, decide.Start):
            self._starts[alike] = decision
        return decision

    def _read(self, row: Row, newest: datetime | None) -> _Plan | None:
        try:
            schedule = parse_schedule(row.schedule or "-")
        except InvalidSchedule as error:
            is_young = self._now < row.execution_time + UNREADABLE_PAUSE
            if is_young and self.left < MOST_LEFT:
                # Another worker may know the zone, or be of a newer release.
                self._let_go(row, hand_back(row, Reason.UNREADABLE))
                self.left += 1
                return None
            kind = NEWER if error.may_be_newer else ""
            self._bad.append((row, f"{kind}schedule {row.schedule!r:.200}: {error}"))
            return None
        # The ledger is ahead of a row that was restored alone, and of one that was handed back.
        is_ahead = row.slot is not None and newest is not None and row.slot <= newest
        is_behind = is_ahead and not decide.has_decided_ahead(row, newest)
        return _Plan(
            decide.without_attempts(row) if is_behind else row,
            schedule,
            newest,
            is_behind,
        )

    def _start_plans(
        self, plans: Sequence[_Plan], refused: Mapping[Key, Refusal]
    ) -> dict[Key, Row | None]:
        answered = [
            one for one in plans if self._passes(one, refused.get(one.row.key))
        ]
        gaps = [(one.row, gap) for one in answered for gap in one.decision.gaps]
        self._dialect.gaps(self._connection, gaps, self._now)
        self.skipped += gaps
        found: dict[Key, Row | None] = {}
        usual: list[tuple[_Plan, Row]] = []
        for one in answered:
            decision = one.decision
            if isinstance(decision, decide.Advance):
                ask_to_stop(self._at, one.row, decision.replaces)
                self._move_past(one.row, decision.row)
            elif one.row.attempt == 1 and self._detaches(one.row):
                found[one.row.key] = self._start_beside(one, decision.row)
            else:
                usual.append((one, decision.row))
        found |= self._begin(usual)
        overruled = [
            one.starting for one in answered if found.get(one.row.key, one) is None
        ]
        self._gates.give_back(overruled, self._now, self._connection, Moment.START)
        return found

    def _detaches(self, row: Row) -> bool:
        return self._definitions[row.task_name].overlap.detaches

    def _passes(self, one: _Plan, answer: Refusal | None) -> bool:
        """Return whether the row does not go back; a gate may have its slot skipped."""
        if isinstance(answer, Later):
            self._defer(one.row, answer)
            return False
        if answer is not None and isinstance(one.decision, decide.Start):
            one.decision = decide.skipped(one.schedule, one.decision, answer.reason)
        return True

    def _begin(self, usual: Sequence[tuple[_Plan, Row]]) -> dict[Key, Row | None]:
        if not usual:
            return {}
        rows = [started for _, started in usual]
        may_run = self._dialect.enter(self._connection, rows, self._now, self._strict)
        found: dict[Key, Row | None] = {}
        for one, started in usual:
            if one.is_behind:  # it may have left an open slot in the ledger
                self._end_orphans(started)
            if started.key in may_run or self._enter_disowned(started):
                found[started.key] = started
            else:
                found[started.key] = None
                self._move_past(started, decide.past_slot(started, one.schedule))
        return found

    def _start_beside(self, one: _Plan, started: Row) -> Row | None:
        """Start the slot in a detached row, and move the plan row on."""
        detached = detach_started(self._at, started)
        if (
            detached is None
            and (stranger := stranger_of(self._at, started)) is not None
        ):
            self._claims.note(
                [stranger],
                "it has the id of a slot and is not its row: the slot is skipped; delete it",
            )
            self._skip_slot(started, Reason.UNREADABLE)
        if detached is not None and not self._enter(detached):
            # The ledger refuses the slot: delete the new row.
            mine = self._dialect.conditions.under(detached, detached.picked_by)
            self._connection.execute(self._dialect.tables.tasks.delete().where(*mine))
            detached = None
        definition = self._definitions[started.task_name]
        columns = decide.beside(started, one.schedule, definition, self._now)
        self._move_on(
            one.row, columns if detached else decide.past_slot(started, one.schedule)
        )
        if one.is_behind:  # as in ``_begin``
            self._end_orphans(started)
        return detached

    def _start_detached(self, row: Row, answer: Refusal | None) -> Row | None:
        if isinstance(answer, Later):
            ledger.put_off(self._at, row, answer.reason)
            self._defer(row, answer)
            return None
        if answer is not None:
            self._skip(row, answer.reason)
            return None
        if self._enter(row):
            return row
        # Its only slot has run, is held under another claim, or may start only once.
        asked = [row] if self._is_open(row) else []
        self._gates.give_back(asked, self._now, self._connection, Moment.START)
        ledger.close_reopened(self._at, row)
        self._move_past(row, None)
        return None

    def _has_given_up(self, row: Row) -> bool:
        """Skip a detached slot of the schedule that was handed back and is too late by now."""
        reason = decide.given_up(row, self._definitions[row.task_name], self._now)
        if reason is not None:
            self._skip(row, reason)
        return reason is not None

    def _skip(self, row: Row, reason: str) -> None:
        """End the slot of a detached row without a start."""
        self._skip_slot(row, reason)
        self._move_on(row, None)

    def _skip_slot(self, row: Row, reason: str) -> None:
        assert row.slot is not None
        ledger.end_unbegun(self._at, row, Outcome.SKIPPED, reason)
        self.skipped.append(
            (row, Gap(first=row.slot, last=row.slot, count=1, reason=reason))
        )

    def _defer(self, row: Row, later: Later) -> None:
        self._let_go(row, defer(row, later.due, later.reason))

    def _enter(self, row: Row) -> bool:
        rows = [row]
        entered = self._dialect.enter(self._connection, rows, self._now, self._strict)
        return bool(entered) or self._enter_disowned(row)

    def _enter_disowned(self, row: Row) -> bool:
        if row.task_name in self._strict or not ledger.disown(self._at, row):
            return False
        rows = [row]
        return bool(
            self._dialect.enter(self._connection, rows, self._now, self._strict)
        )

    def _move_past(self, row: Row, columns: dict[str, object] | None) -> None:
        """Move the row on, and end open slots of the job that no row has any more."""
        self._move_on(row, columns)
        self._end_orphans(row)

    def _end_orphans(self, row: Row) -> None:
        ledger.end_orphans(self._at, row.plan_key)

    def _move_on(self, row: Row, columns: dict[str, object] | None) -> None:
        self._let_go(row, Transition(label=Release.MOVED_ON, row=columns))

    def _let_go(self, row: Row, transition: Transition) -> None:
        change = Change(held=Held(row=row, now=self._now), transition=transition)
        self._dialect.release(self._connection, [change])
        if row.is_detached and transition.remove:
            release_queued(self._at, [change])


def _is_simple(row: Row) -> bool:
    """Whether a late row waits for its first attempt at a slot after which nothing is decided."""
    is_first = row.attempt == 1 and not row.lost_count and not row.trying_since
    is_new = row.origin is None and not row.collapsed and not row.catch_up_until
    is_free = not row.unheld_since and not row.called_off
    is_newest = row.slot is not None and row.slot == row.watermark
    return is_newest and is_first and is_new and is_free


def _following(schedule: Schedule, gaps: Sequence[Gap]) -> tuple[Gap, ...]:
    """Return the gaps, each with the slot before it: it may extend the gap that ends there."""
    return tuple(
        replace(gap, after=schedule.latest_before(gap.first)) if gap.count > 1 else gap
        for gap in gaps
    )
