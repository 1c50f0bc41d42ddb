"""Cron jobs under PostgreSQL's advisory locks: their keys, and ``CRON_JOBS``. It imports the core
only.

>>> from slotwise.contrib.advisory import parse_cron_jobs
>>> text = '{"tokenCleanup": {"schedule": "0 */1 * * * *", "lockKey": 5101}}'
>>> [job.name for job in parse_cron_jobs(text)]
['tokenCleanup']
"""

from __future__ import annotations

from slotwise.contrib.advisory.cron_jobs import (
    CronJob,
    KeyedJob,
    bind_cron_jobs,
    cron_jobs_schema,
    distributed_scheduled,
    parse_cron_jobs,
    read_cron_jobs,
)
from slotwise.contrib.advisory.lock_keys import KeyRange, LockKeys, read_lock_keys

__all__ = [
    "CronJob",
    "KeyRange",
    "KeyedJob",
    "LockKeys",
    "bind_cron_jobs",
    "cron_jobs_schema",
    "distributed_scheduled",
    "parse_cron_jobs",
    "read_cron_jobs",
    "read_lock_keys",
]
