"""The tuned constants of a worker's start and end, each with its unit. No measurement chose any of
them: they were reasoned about, and work.
"""

from __future__ import annotations

from datetime import timedelta

#: The most threads without a setting: ten thousand jobs must not start ten thousand threads.
MOST_THREADS = 500
#: Of how many intervals of a job the shortest counts; a worker may have ten thousand jobs.
SAMPLE = 10
#: Jobs shorten the poll interval to no less than this: an idle worker sleeps until the next known
#: slot anyway.
SHORTEST_POLL = timedelta(seconds=1)

#: Pauses while the database cannot be reached at the start.
PAUSES = timedelta(milliseconds=300), timedelta(seconds=15)
#: Pauses while another transaction holds a row of ours, usually a worker that starts at the same
#: time.
BUSY_PAUSES = timedelta(milliseconds=50), timedelta(seconds=1)
#: How long the row of a vanished worker stays visible.
FORGET_AFTER = timedelta(days=1)
#: Seconds of clock drift between host and database above which the worker logs a warning.
SKEW_WARNING = 1.0

#: Seconds. How often a wait checks whether a further request to stop has come.
STEP = 0.05
#: How long the loops may take to end, the last outcomes to be written, and the worker to sign out.
LOOP_PATIENCE = timedelta(seconds=5)
WRITE_PATIENCE = timedelta(seconds=5)
LEAVE_PATIENCE = timedelta(seconds=3)
#: How long a worker that ends waits for a reply of the database; longer than the longest wait for
#: a lock.
REPLY_PATIENCE = timedelta(seconds=6)
#: Bounds of the time that handlers get to stop: the grace, but within these bounds.
SHORTEST_ASIDE = timedelta(seconds=1)
LONGEST_ASIDE = timedelta(seconds=5)
