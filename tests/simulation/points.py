"""Where the simulation's mutants break the product: every name of the product that they use."""

from __future__ import annotations

from slotwise.decide.fast_finish import onward
from slotwise.jobs.definition import Definition
from slotwise.store.dialects.claims_by_row import ClaimsByRow
from slotwise.store.dialects.endings_by_row import EndingsByRow
from slotwise.store.slots import recovery_rate
from slotwise.store.slots.limits import Limits
from slotwise.store.slots.recovery_rate import RecoveryRate
from slotwise.store.slots.store import Store

# claims
ENTER = ClaimsByRow.enter
RANK = ClaimsByRow._rank
MAY_RUN_ON = Definition.may_run_on
ROOM = Limits.room
LIMITED_TASK = Limits._task
MARK_RUNNING = Store.mark_running

# ends
HOLD = EndingsByRow.hold
HELD = EndingsByRow._held
AS_HELD = EndingsByRow._as_held
OPEN_ENTRY = EndingsByRow._open_entry
ADVANCE = EndingsByRow.advance
GAPS = EndingsByRow.gaps
TAKE_OVER = Store.take_over

# the rate of a recovery
HAS_ROOM = recovery_rate._has_room
FILLED = recovery_rate._filled
IS_LATE = RecoveryRate.is_late

#: Functions that remember what others have decided.
CACHES = (onward,)
