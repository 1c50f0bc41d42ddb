"""The parts of the store that tests drive one by one.

Tests import inner names from here: a module that moves is named in one place.
"""

from __future__ import annotations

from slotwise.store.operations import slot_operations
from slotwise.store.operations.job_operations import end_pauses
from slotwise.store.operations.pauses import next_end
from slotwise.store.operations.slot_operations import claim_trigger, trigger
from slotwise.store.operations.transaction import Author, Operation
from slotwise.store.planning import instances, plan_rows
from slotwise.store.planning.deploy_preview import Moved, moved
from slotwise.store.planning.planner import Plan, Planner
from slotwise.store.planning.revision import Revision
from slotwise.store.queue.queue_cursors import LOOK_BACK, MOST, SHARE, QueueCursors
from slotwise.store.reading import worker_registry
from slotwise.store.reading.facts import Facts, facts, slot_state
from slotwise.store.reading.failures import failed_attempts, failures
from slotwise.store.reading.worker_registry import Badge, WorkerRegistry
from slotwise.store.slots import (
    checkpoints,
    detached,
    gates,
    ledger,
    settlement_writer,
)
from slotwise.store.slots.claims import BatchSize, Claims
from slotwise.store.slots.counts import (
    RECENT,
    SLOT,
    TASK,
    Counts,
    Ended,
    hour_of,
)
from slotwise.store.slots.detached import detach
from slotwise.store.slots.gates import (
    ORDER,
    START,
    Answer,
    Gate,
    Later,
    Limits,
    MinInterval,
    RecoveryRate,
)
from slotwise.store.slots.ledger import end_orphans
from slotwise.store.slots.retention import Page, Pruner
from slotwise.store.slots.settlement_hooks import SettlementHooks
from slotwise.store.slots.settlement_writer import EndOfRun, SettlementWriter
from slotwise.store.slots.settlements import (
    Settlement,
    Settlements,
    is_usual,
    onward,
    usual,
)
from slotwise.store.slots.store import HeldRows, LedgerFence, Store

__all__ = [
    "LOOK_BACK",
    "MOST",
    "ORDER",
    "RECENT",
    "SHARE",
    "SLOT",
    "START",
    "TASK",
    "Answer",
    "Author",
    "Badge",
    "BatchSize",
    "Claims",
    "Counts",
    "EndOfRun",
    "Ended",
    "Facts",
    "Gate",
    "HeldRows",
    "Later",
    "LedgerFence",
    "Limits",
    "MinInterval",
    "Moved",
    "Operation",
    "Page",
    "Plan",
    "Planner",
    "Pruner",
    "QueueCursors",
    "RecoveryRate",
    "Revision",
    "Settlement",
    "SettlementHooks",
    "SettlementWriter",
    "Settlements",
    "Store",
    "WorkerRegistry",
    "checkpoints",
    "claim_trigger",
    "detach",
    "detached",
    "end_orphans",
    "end_pauses",
    "facts",
    "failed_attempts",
    "failures",
    "gates",
    "hour_of",
    "instances",
    "is_usual",
    "ledger",
    "moved",
    "next_end",
    "onward",
    "plan_rows",
    "settlement_writer",
    "slot_operations",
    "slot_state",
    "trigger",
    "usual",
    "worker_registry",
]
