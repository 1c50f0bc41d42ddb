"""What a claim reads of the rows that it takes, and how they become values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

from slotwise.model.records import Row
from slotwise.model.vocabulary import Kind
from slotwise.payload.payload import PAYLOAD_LIMIT
from slotwise.store.dialects.port import ClaimRequest
from slotwise.store.dialects.row_values import MOST_BYTES
from slotwise.store.schema.rows import LAST_ATTEMPT, LAST_VERSION, flawed

#: By the first two of TASK_COLUMNS: the highest priority first, and then the oldest.
by_rank = itemgetter(0, 1)


#: What a claim reads instead of the payload, so that no row fills the worker's memory.
_SIZE = "pg_catalog.length(task_data)"
#: As text: beside a number, an untyped literal may be read as one, by an operator of another
#: schema.
_SIZE_TEXT = f"{_SIZE}::text"
_DATA = f"CASE WHEN {_SIZE} <= {MOST_BYTES} THEN task_data END"
#: Why a row that was just claimed must not run, or NULL. Any writer of the table may have written
#: it.
_FLAW = f"""\
CASE WHEN {_SIZE} > {MOST_BYTES}
         THEN 'payload too large: ' || {_SIZE_TEXT} || ' bytes, \
at most {PAYLOAD_LIMIT} are allowed'
         WHEN version > {LAST_VERSION} THEN 'its version cannot rise further; give it a lower one'
         WHEN attempt > {LAST_ATTEMPT} THEN \
'its attempts cannot be counted; set attempt to 0' END"""

#: What a claim reads of a slot's row: what it has written itself is known. A watermark at the
#: slot, as most are then, is left out.
SLOT_COLUMNS = (
    "task_name",
    "task_instance",
    "execution_time",
    "version",
    _DATA,
    "last_success",
    "last_failure",
    "consecutive_failures",
    "priority",
    "kind",
    "slot",
    "CASE WHEN kind <> 'plan' OR watermark IS DISTINCT FROM slot THEN watermark END",
    "next_slot",
    "schedule",
    "plan_instance",
    "origin",
    "collapsed",
    "created_version",
    "attempt",
    "lost_count",
    "cancel_requested",
    "control",
    "parked_due",
    "wanted_due",
    "unheld_since",
    "pending::text",
    _FLAW,
)

#: What a claim reads of a one-time task: the rest of its columns is empty, or read again by the
#: settlement. Most have their first due time in the place of a slot: it is read only if it
#: differs.
TASK_COLUMNS = (
    "-coalesce(t.priority, 50)",
    "t.execution_time",
    "t.task_name",
    "t.task_instance",
    "t.version",
    _DATA,
    "t.slot IS NOT DISTINCT FROM t.execution_time",
    "nullif(t.slot, t.execution_time)",
    "t.created_version",
    "t.attempt",
    "t.cancel_requested",
    "t.last_heartbeat",
    _FLAW,
)


def slot_of(values: Sequence[Any], request: ClaimRequest, now: datetime) -> Row:
    """Return a Row of values in the order of SLOT_COLUMNS; one is built for each slot that
    runs.
    """
    (
        name,
        instance,
        due,
        version,
        data,
        last_success,
        last_failure,
        failures,
        priority,
        kind,
        slot,
        watermark,
        next_slot,
        schedule,
        plan_instance,
        origin,
        collapsed,
        created,
        attempt,
        lost_count,
        cancel,
        control,
        parked,
        wanted,
        unheld_since,
        waits,
        flaw,
    ) = values
    watermark = slot if watermark is None and kind == Kind.PLAN else watermark
    row = Row(
        task_name=name,
        task_instance=instance,
        execution_time=due,
        version=version,
        picked=True,
        picked_by=request.holder,
        task_data=data,
        last_success=last_success,
        last_failure=last_failure,
        consecutive_failures=min(failures or 0, LAST_ATTEMPT),
        last_heartbeat=now,
        priority=priority,
        kind=kind,
        slot=slot,
        watermark=watermark,
        next_slot=next_slot,
        schedule=schedule,
        plan_instance=plan_instance,
        origin=origin,
        collapsed=collapsed,
        created_version=created,
        attempt=attempt,
        lost_count=lost_count,
        lease=request.lease,
        cancel_requested=cancel,
        control=control,
        parked_due=parked,
        wanted_due=wanted,
        unheld_since=unheld_since,
    )
    return row if waits is None and flaw is None else flawed(row, waits, flaw)


def task_of(values: Sequence[Any], holder: str) -> Row:
    """Return a Row of values in the order of TASK_COLUMNS; one is built for each task that
    runs.
    """
    (
        rank,
        due,
        name,
        instance,
        version,
        data,
        slot_is_due,
        slot,
        created,
        attempt,
        cancel,
        claimed,
        flaw,
        _,
    ) = values
    return Row(
        task_name=name,
        task_instance=instance,
        execution_time=due,
        version=version,
        picked=True,
        picked_by=holder,
        priority=-rank,
        task_data=data,
        slot=due if slot_is_due else slot,
        created_version=created,
        attempt=attempt,
        cancel_requested=cancel,
        last_heartbeat=claimed,
        flaw=flaw,
    )
