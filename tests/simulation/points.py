"""Where the simulation's mutants break the product: every name of the product that they use."""

from __future__ import annotations

from tests.kit.decisions import ending
from tests.kit.ports import ByKey
from tests.kit.store import HeldRows, Limits, Settlements, gates, onward

from slotwise.spi import Definition
from slotwise.store.dialects.due_rows import DueRows

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
