"""What handlers leave behind: follow-up tasks, and arrivals at tasks that wait for them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import sqlalchemy as sa

from slotwise.model.records import FollowUps, IfExists, Key, Wanted
from slotwise.store.queue.queue import Queue

logger = logging.getLogger(__name__)


def write_follow_ups(connection: sa.Connection, queue: Queue, succeeded: Sequence[FollowUps]) -> set[str]:
    """Write what these handlers have left behind; return the tasks that may be due by it.

    In the order of keys: two settlements that meet in several rows cannot deadlock there. Several of one id stay in
    the order in which they were requested: the second one finds the first.
    """
    turns: Counter[Key] = Counter()
    groups: dict[tuple[int, str, IfExists, bool], list[Wanted]] = {}
    for name, wanted, if_exists in (follow for one in succeeded for follow in one.follows):
        turns[key := Key(name, wanted.instance)] += 1
        groups.setdefault((turns[key], name, if_exists, wanted.waits_for > 0), []).append(wanted)
    for (_, name, if_exists, blocked), some in sorted(groups.items()):
        if not blocked:
            queue.put_many(connection, name, some, if_exists)
            continue
        for wanted in sorted(some):
            queue.put(connection, name, wanted, if_exists)
    arrivals = sorted(key for one in succeeded for key in set(one.arrivals))
    for key, arrived in groupby(arrivals):
        if not queue.tasks.arrive(connection, key, len(list(arrived))):
            logger.warning(
                "ctx.count_down: no task %r with the id %r is blocked; this arrival counts for nothing", *key
            )
    return {follow.task for one in succeeded for follow in one.follows} | {key.task_name for key in arrivals}
