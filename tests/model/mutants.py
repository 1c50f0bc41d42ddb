"""The product with one rule taken out: functions whose text is changed in one place, for as long as a test looks."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from slotwise.decide import absence, claim, columns, ending, final, handback, pause, slot_choice
from slotwise.engine.run import outcomes
from slotwise.engine.run.runner import Runner
from slotwise.store.dialects import decided_slots
from slotwise.store.dialects.claims_by_row import ClaimsByRow
from slotwise.store.dialects.endings_by_row import EndingsByRow
from slotwise.store.operations import slot_operations
from slotwise.store.planning import planner
from slotwise.store.planning.planner import Planner
from slotwise.store.slots import backfill_release, retention
from slotwise.store.slots.concurrent_slots import ConcurrentSlots
from slotwise.store.slots.late_claims import LateClaims


@dataclass(frozen=True)
class Mutant:
    """``function`` with ``rule`` in its text replaced by ``instead``."""

    function: Any
    rule: str
    instead: str

    @contextmanager
    def at_large(self) -> Iterator[None]:
        """Whoever has imported the function runs the changed one."""
        function: FunctionType = self.function
        text = textwrap.dedent(inspect.getsource(function))
        assert text.count(self.rule) == 1, f"{function.__qualname__} says {self.rule!r} {text.count(self.rule)} times"
        changed = text.replace(self.rule, self.instead)
        names: dict[str, Any] = {}
        code = compile(changed, inspect.getfile(function), "exec", __future__.annotations.compiler_flag)
        exec(code, function.__globals__, names)
        before, function.__code__ = function.__code__, names[function.__name__].__code__
        try:
            yield
        finally:
            function.__code__ = before


#: By what the product does not do then.
MUTANTS: dict[str, Mutant] = {
    # losses
    "a claim that is lost was held until its lease end": Mutant(
        ending.at_loss, "end = min(lease_end, now)", "end = now"
    ),
    "a slot is dead after max_lost": Mutant(
        ending.at_loss, "lost >= definition.max_lost", "lost > definition.max_lost"
    ),
    "a hand-back does not count": Mutant(
        handback.hand_back, "attempt = max(row.attempt - 1, 0)", "attempt = row.attempt"
    ),
    "a slot with a row of its own is not forgotten": Mutant(
        handback.hand_back, "forget = attempt == 0 and not row.is_detached", "forget = attempt == 0"
    ),
    "a late settlement is refused": Mutant(
        EndingsByRow.hold, "*self._under(claim)", "*self._under(claim)[:2]"
    ),
    "complete_in outlives its holder": Mutant(
        ending.at_loss, "ledger.outcome == Outcome.SUCCEEDED and ledger.token == row.version", "False"
    ),
    # give_up
    "the ledger starts a slot that gives up once": Mutant(
        ClaimsByRow.enter, "self.tables.slots, strict=strict", "self.tables.slots, strict=False"
    ),
    "a slot that gives up stays as it ended": Mutant(LateClaims._end_reopened, "row.last_failure or now", "None"),
    # retries
    "no retry falls behind the next slot": Mutant(
        ending._is_forfeited, "due >= following", "False"
    ),
    "a lost attempt is no try": Mutant(ending._tries, "row.attempt - row.lost_count", "row.attempt"),
    "a snoozed attempt is no try": Mutant(ending._snoozed, "aborted=1", "aborted=0"),
    "what was called off is not tried again": Mutant(
        ending._called_off, "return row, replace(outcome, final=True)", "return row, outcome"
    ),
    "what was called off does not start": Mutant(
        Runner._refusal, "holding.claim.row.cancel_requested is not None", "False"
    ),
    "who has run for too long has failed": Mutant(outcomes.timed_out, "holding.stop_reason != Reason.TIMEOUT", "True"),
    # absence
    "what comes after a lease that nobody took over is missed": Mutant(
        absence.absent_from, "row.missed_after or lease_end", "row.missed_after"
    ),
    "what comes while a retry is due and nobody takes it is missed": Mutant(
        absence._alone_since, "if row.attempt > 1", "if False"
    ),
    "what comes while a queue is due and nobody takes it is missed": Mutant(
        absence._alone_since, "row.catch_up_until is None", "True"
    ),
    "what is missed waits for the queue": Mutant(
        columns.missed_among, '"missed_after": row.missed_after', '"missed_after": None'
    ),
    # catch-up
    "a catch-up has a maximum": Mutant(slot_choice.choose_missed, "first if catch_up.max is None", "first if True"),
    "a catch-up has a window": Mutant(slot_choice._limit, 'catch_up.mode == "all"', "False"),
    "a catch-up has a pace": Mutant(columns.catching_up, "(definition.catch_up.pace, ", "("),
    "a catch-up's pace is for its tail as well": Mutant(
        columns.catching_up, "if least is not None]", "if least is not None and slot <= row.catch_up_until]"
    ),
    "a catch-up is bounded anew at each start": Mutant(
        claim._own_until, "following is None or following > due", "False"
    ),
    "slots that were missed since a long run are a catch-up's": Mutant(
        claim._own_until, "None if was_missed else until", "until"
    ),
    "what comes due during a run that gains joins the tail": Mutant(
        columns.catching_up, "held_until - began < slot - base or", "False or"
    ),
    "what comes due during a run that loses ground is overlap's": Mutant(
        columns.catching_up, "held_until - began < slot - base or", "True or"
    ),
    "what comes due after the end of a lease joins the tail": Mutant(
        columns.catching_up, "or newest + wait > held_until", "or False"
    ),
    "what comes due during runs is left to overlap by the next start as well": Mutant(
        claim._own_until, "None if was_missed else until", "None"
    ),
    "overlap decides where all that was missed is too late": Mutant(
        claim._choose, "until is not None and definition is not None", "False"
    ),
    "a queue minds start_within": Mutant(
        claim._choose, "definition.start_within if definition else None", "None"
    ),
    "slots are collapsed only once": Mutant(
        claim.at_claim, "row.slot is None or row.watermark is None or row.slot >= row.watermark", "True"
    ),
    "two starts are min_interval apart": Mutant(ending._spaced, "definition.min_interval is None or", "True or"),
    # overlap
    "a queue has a maximum": Mutant(
        slot_choice.choose_overlapped, "_newest_few(schedule, first, newest, overlap.max)", "first"
    ),
    "slots of a run are its overlap's": Mutant(
        EndingsByRow._advance, "following.slot is not None and following.slot <= now", "False"
    ),
    "so many run side by side": Mutant(
        claim._at_claim, "abreast >= definition.overlap.max", "abreast > definition.overlap.max"
    ),
    "what waits for its retry is stopped at once": Mutant(
        ConcurrentSlots.ask_to_stop, "cancel_requested=now, execution_time=due", "cancel_requested=now"
    ),
    # orders
    "a pause leaves a retry alone": Mutant(
        pause.slept, "_after_begun(row, schedule) if row.attempt else row.slot", "row.slot"
    ),
    "a row that was paused while it was held sleeps": Mutant(pause.parked, "row.state != State.PAUSED", "True"),
    "an order on a held row is read": Mutant(
        EndingsByRow._advance, ", *(tasks.c[name].is_(None) for name in UNASKED)", ""
    ),
    "a skipped slot is skipped alone": Mutant(
        pause.skipping, "schedule if row.attempt else undecided(schedule, row.slot, row.watermark)", "schedule"
    ),
    "a trigger that minds others is skipped": Mutant(LateClaims._mind, 'rule == "queue"', "True"),
    "a backfill has a pace": Mutant(backfill_release.release_next, "if pace else now", "if False else now"),
    "a slot that is called off lets the next one go": Mutant(
        slot_operations.cancel_waiting, "row.origin == Origin.BACKFILL and row.state != State.QUEUED", "False"
    ),
    # deploys, restores, pruning
    "a deploy comes after all that was decided": Mutant(
        planner._replanned, "max(now, row.watermark or now)", "now"
    ),
    "a new row begins after all that was decided": Mutant(
        planner.first_slot, "first is not None and row.watermark is not None and first <= row.watermark", "False"
    ),
    "gaps count as decided": Mutant(
        decided_slots.newest_decided, "for found in in_both if found", "for found in in_both[:1] if found"
    ),
    "a deploy brings no two starts together": Mutant(
        Planner._keep_distance, "job.min_interval is None or where not in columns", "True"
    ),
    "a restored queue finds what had begun": Mutant(LateClaims._disown, "rowcount == 1", "rowcount == 99"),
    "the newest decided slot is never pruned": Mutant(
        retention.Pruner._slots, "beside if floor is None else sa.or_(beside, slots.c.slot < floor)", "sa.true()"
    ),
    "a slot that has ended lets its row move on": Mutant(final.final, "row.is_detached", "row.is_detached or True"),
}  # fmt: skip
