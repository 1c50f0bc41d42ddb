"""Where the model's mutants break the product: every name of the product that they use."""

from __future__ import annotations

from tests.kit.decisions import Ending, claim, ending, going_back, pause, slot_choice
from tests.kit.loops import Runner
from tests.kit.ports import ByKey, by_key
from tests.kit.store import (
    MinInterval,
    Planner,
    SettlementWriter,
    detached,
    ledger,
    onward,
    plan_rows,
    slot_operations,
)

from slotwise.store.dialects import row_values
from slotwise.store.dialects.conditions import Conditions

# ends
LOST = ending._lost
FINAL = ending.final
HAND_BACK = going_back.hand_back
HAS_COMPLETED = ending._has_completed
HAS_ENDED = SettlementWriter._has_ended
IS_FORFEITED = ending._is_forfeited
TRIES = ending._tries
SNOOZED = ending._snoozed
CALLED_OFF = ending._called_off
REFUSAL = Runner.begin
HELD = Conditions.held
HOLD = ByKey.hold
LOCK_HELD = ByKey._lock_held
HELD_FENCE = row_values.held_fence
BEAT = ByKey.beat
STILL_HELD = ByKey.still_held
AS_HELD = Conditions.under
OPEN_ENTRY = Conditions.open_entry

# where overlap and catch-up meet
HELD_UNTIL = ending._held_until
JUDGED = Ending.judged
WAITING = Ending.waiting
SPACED = Ending.spaced
FOLLOWING = ending._following
OVERLAPPED = ending._overlapped
TAIL = ending._tail
END_OF_TAIL = claim._end_of_tail
CONCURRENT_SLOTS = claim._concurrent_slots
START_BESIDE = claim.beside
MOVED_DUE = slot_operations.moved
CHOOSE_MISSED = slot_choice.choose_missed
LATEST_START = slot_choice.latest_start
HAS_DECIDED_AHEAD = claim.has_decided_ahead

KEEPS_APART = MinInterval.admit

# overlap
AT_CLAIM = claim.at_claim
CHOOSE_OVERLAPPED = slot_choice.choose_overlapped
ASKED_TO_STOP = detached._called_off

# what operators request
FIRST_UNBEGUN = pause._first_unbegun
PARKED = pause.parked
UNDECIDED = slot_choice.undecided
IS_BUSY = slot_operations._is_busy
BACKFILLS_NEWEST_START = detached._Queue._newest_start
FREED = detached.freed

# the ledger, deploys and restores
MAY_START = Conditions.may_start
KEEP_AS_ENDED = ledger.close_reopened
NEWEST_DECIDED = by_key.newest_of
FIRST_SLOT = plan_rows.first_slot
REPLANNED = plan_rows.replanned
OWED = plan_rows._owed
HAS_SLOT = plan_rows._has_slot
KEEP_DISTANCE = Planner._keep_distance

#: Functions that remember what others have decided.
CACHES = (onward,)
