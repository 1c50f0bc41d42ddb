"""Crontabs as they are: each line a job of the cluster. Imports the hall and
``contrib/commands``.

>>> from slotwise.contrib.crontab import parse_crontab
>>> [job.name for job in parse_crontab("30 2 * * * /opt/shop/report --all").jobs()]
['report-6cfc381f0b']
"""

from __future__ import annotations

from slotwise.contrib.crontab.crontabs import Crontabs, parse_crontab, read_crontabs
from slotwise.contrib.crontab.entry import Entry
from slotwise.contrib.crontab.reader import Problem

__all__ = ["Crontabs", "Entry", "Problem", "parse_crontab", "read_crontabs"]
