"""The tuned constants of claims and settlements, each with its unit and the measurement that chose
it.

"Judged" means that no measurement chose the value: it was reasoned about, and works.
"""

from __future__ import annotations

from datetime import timedelta

# -- batches --------------------------------------------------------------------------------------

#: Rows of one statement, at most. Measured: PostgreSQL joins longer arrays by a sequential scan
#: from 1000 on, and more rows gain nothing.
BATCH = 500
#: Rows. The size of the first claim of slots: it is not known yet what a late slot costs. Judged.
FIRST = 100
#: How long the decisions of one claim may take; at most this part of its lease. Judged.
LONGEST = timedelta(seconds=1)
PART_OF_LEASE = 8
#: Decisions that take less than this part of it say nothing about their number: round trips take
#: as long. Judged.
NOTHING = 20
#: Rows. After so many that spoil a batch for an unforeseen reason, the other rows wait for the next
#: claim. Judged.
MOST_APART = 20

#: Rows that a claim leaves to other workers, which may be able to read them; further ones are
#: postponed, so that a flood of them costs little. Judged.
MOST_LEFT = 20

# -- many names -----------------------------------------------------------------------------------

#: Names. With more, the names of due rows are read before the claim. Measured: a generic plan
#: compares thousands of names in 52 to 129 ms.
MANY = 200
#: Rows among which the first slot of many names is looked for, before the names are sent. Judged.
FEW = 50
#: Seconds for which full claims share the names that were found due. Judged.
SHARED = 0.1
#: Seconds for which a worker without jobs looks for no slots, at most: its tasks may get an
#: instance. Judged.
LONGEST_REST = 5.0

# -- gates ----------------------------------------------------------------------------------------

#: How long claims leave out a task that was found at its limit. Judged.
FULL_PAUSE = timedelta(milliseconds=250)
#: A first start is late from this delay on; runs of missed slots always are. Judged.
LATE = timedelta(minutes=1)
#: Seconds of tokens that the bucket of ``recovery_rate`` holds. Judged.
SLACK = timedelta(milliseconds=250)
#: When a row comes back if another claim has locked the bucket. Judged.
BUSY = timedelta(milliseconds=200)
#: Slots among which the last start of a plan is: one may have been started again after newer ones.
#: Judged.
NEWEST = 100

# -- settlements ----------------------------------------------------------------------------------

#: How long follow-ups wait for a lock, when they are written first and again: other outcomes wait
#: behind them. Judged.
FIRST_WAIT = timedelta(milliseconds=250)
LATER_WAIT = timedelta(milliseconds=5)
#: How far the clocks of database and worker may drift apart during a run. Judged.
DRIFT = timedelta(seconds=1)

# -- the ledger -----------------------------------------------------------------------------------

#: How many of the newest slots of a plan are searched for orphans. Judged.
LOOKED_AT = 100
#: Rows that one transaction of the pruner reads, and deletes at most. Measured: 20,000 rows a
#: second at a twentieth of the load.
PRUNED = 2000
#: Between two walks through the jobs that keep their successes for minutes. Judged.
SHORTEST_REST = timedelta(minutes=1)
#: A walk of the pruner that has written nothing for this long has lost its process. Judged.
STALLED = timedelta(minutes=5)

# -- histories and counts -------------------------------------------------------------------------

#: Workers add to the counts of younger hours, so that a slot that ends late costs no recount.
#: Judged.
CLOSED_AFTER = timedelta(hours=2)
#: How much of a job's history one statement counts, and how many such statements a transaction has,
#: which others wait for. Judged.
RECOUNTED = timedelta(days=7)
RECOUNTS = 50
#: Names of tasks in the history of one start of a worker: fleets with thousands of jobs restart
#: often. Judged.
NAMES_KEPT = 500
#: Deploys and counts are kept for at least so long: the same month of the year before is
#: there to compare with.
REMEMBERED = timedelta(days=400)

# -- bad rows -------------------------------------------------------------------------------------

#: Seconds between two lines about a task: a minute; an hour if less than MANY_BAD rows have the
#: same problem. Judged.
MINUTE = 60.0
HOUR = 3_600.0
MANY_BAD = 100
#: How long rows may wait for a newer worker, as in a rolling deploy, before that is a problem.
#: Judged.
NEWER_PATIENCE = timedelta(minutes=1)
