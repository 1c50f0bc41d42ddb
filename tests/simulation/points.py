"""Where the simulation's mutants break the product: every name of the product that they use."""

from __future__ import annotations

from slotwise.decide import ending
from slotwise.spi import Definition
from slotwise.store.dialects.by_key import ByKey
from slotwise.store.dialects.due_rows import DueRows
from slotwise.store.slots import gates
from slotwise.store.slots.gates import Limits
from slotwise.store.slots.settlements import Settlements, onward
from slotwise.store.slots.store import HeldRows

# claims
ENTER = ByKey._enter_slot
RANK = DueRows._rank
MAY_RUN_ON = Definition.may_run_on
ROOM = Limits.room
MARK_RUNNING = HeldRows.mark_running
LOST = ending._lost

# ends
GAPS = ByKey.gaps
TAKE_OVER = Settlements.take_over

# the rate of a recovery
HAS_TOKEN = gates._has_token
TAKEN = gates._taken
IS_LATE = gates._is_late

#: Functions that remember what others have decided.
CACHES = (onward,)
