"""Work on rows in batches: one transaction each, by several workers, with a place to resume from.

It imports the public modules of slotwise only.
"""

from __future__ import annotations

from slotwise.contrib.batches.api import BatchOptions, batches
from slotwise.contrib.batches.awaited import AsyncBatch, AsyncBatches
from slotwise.contrib.batches.batches import Batch, Batches
from slotwise.contrib.batches.bulk import insert_all, update_all
from slotwise.contrib.batches.jobs import BatchJob, BatchTask, in_parallel
from slotwise.contrib.batches.pacing import replica_is_behind
from slotwise.contrib.batches.set_aside import AsideRow, AsideState, SetAside

__all__ = [
    "AsideRow",
    "AsideState",
    "AsyncBatch",
    "AsyncBatches",
    "Batch",
    "BatchJob",
    "BatchOptions",
    "BatchTask",
    "Batches",
    "SetAside",
    "batches",
    "in_parallel",
    "insert_all",
    "replica_is_behind",
    "update_all",
]
