"""Writes what handlers have left behind, and the history of one-time tasks, in the settlement's transaction."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import sqlalchemy as sa

from slotwise.jobs.definition import Definition
from slotwise.model.records import Claim, Follow, FollowUps, IfExists, Key, Record, Wanted
from slotwise.model.vocabulary import Origin, Outcome
from slotwise.store.dialects.port import Dialect
from slotwise.store.queue.queue import queue_of
from slotwise.store.schema.rows import Change
from slotwise.store.slots import ledger

logger = logging.getLogger(__name__)


class End(NamedTuple):
    """A settled claim with what it leaves behind."""

    claim: Claim
    change: Change
    definition: Definition
    sequel: FollowUps | None


class FollowUpWriter:
    """Everything in the order of keys: two settlements that meet in several rows cannot deadlock there."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._queue = queue_of(dialect)

    def write(self, connection: sa.Connection, ends: Sequence[End]) -> set[str]:
        """What succeeded brings its sequel; every end of a task, its history, if the task keeps one.

        The tasks that may be due by it.
        """
        succeeded = [end.sequel for end in ends if end.sequel and end.change.transition.label == Outcome.SUCCEEDED]
        self._follow(connection, [follow for sequel in succeeded for follow in sequel.follows])
        for key, arrived in groupby(sorted(key for sequel in succeeded for key in set(sequel.arrivals))):
            if not self._queue.tasks.arrive(connection, key, len(list(arrived))):
                logger.warning(
                    "ctx.count_down: no task %r with the id %r is blocked; this arrival counts for nothing", *key
                )
        rows = [row for end in ends if (row := _history(end)) is not None]
        if rows:
            ledger.remember(connection, self._dialect, rows)
        follows = {follow.task for sequel in succeeded for follow in sequel.follows}
        return follows | {key.task_name for sequel in succeeded for key in sequel.arrivals}

    def _follow(self, connection: sa.Connection, follows: Sequence[Follow]) -> None:
        """Several of one id in the order in which they were asked for: the second one finds the first."""
        turns: Counter[Key] = Counter()
        groups: dict[tuple[int, str, IfExists, bool], list[Wanted]] = {}
        for name, wanted, if_exists in follows:
            turns[key := Key(name, wanted.instance)] += 1
            groups.setdefault((turns[key], name, if_exists, wanted.waits_for > 0), []).append(wanted)
        for (_, name, if_exists, blocked), some in sorted(groups.items()):
            if not blocked:
                self._queue.chunks.put_many(connection, name, some, if_exists)
                continue
            for wanted in sorted(some):
                self._queue.tasks.put(connection, name, wanted, if_exists)


def _history(end: End) -> dict[str, Any] | None:
    """The ledger row of a one-time task that has come to its end; None where none is kept."""
    row, now, definition = end.change.held.row, end.change.held.now, end.definition
    ended: Record | None = end.change.transition.ended
    if ended is None:
        return None
    is_success = ended.outcome == Outcome.SUCCEEDED
    kept = is_success and definition.result_retention is not None
    if not kept and (definition.record == "none" or (definition.record == "failures" and is_success)):
        return None
    sequel = end.sequel if kept else None
    return {
        "task_name": row.task_name, "task_instance": row.task_instance, "slot": row.slot or row.execution_time,
        "outcome": ended.outcome, "reason": ended.reason, "origin": Origin.TASK, "attempts": ended.attempts,
        "lost": row.lost_count + ended.lost, "token": row.version, "worker": end.claim.holder,
        "started": end.claim.claimed_at, "finished": now, "error": sequel.problem if sequel else ended.error,
        "result": sequel.result if sequel else None,
        "expires": now + definition.result_retention if kept and definition.result_retention else None,
    }  # fmt: skip
