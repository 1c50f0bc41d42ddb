"""The tuned constants of the loops, each with its unit and the measurement that chose it.

"Judged" means that no measurement chose the value: it was reasoned about, and works.
"""

from __future__ import annotations

from datetime import timedelta

from slotwise.store.slots.tuning import BATCH

# -- claims ---------------------------------------------------------------------------------------

#: Seconds. Tasks claimed ahead should start within this time. Judged; the benchmark's `backlog`
#: ran faster with tasks claimed ahead at all.
AHEAD = 0.1
#: Tasks. Never claim more ahead than this: one batch runs, one waits, one is on its way. Judged.
MOST_AHEAD = 3 * BATCH
#: Seconds, at least, over which ends are counted. Measured with `backlog`: within 20 ms a busy
#: machine settles nothing, and the next claim was of a hundred rows instead of 500.
RATE_WINDOW = 0.1
#: How long a claim waits while fast handlers make room for a whole batch, and how often it looks
#: at slots meanwhile. Measured with 10,000 jobs that are due each second on 100 threads: 10,000
#: slots a second, where claims that waited for one settlement reached 6,400.
FILLING = timedelta(milliseconds=50)
SHORTLY = timedelta(milliseconds=1)
#: Rows. A task floods when so many of its rows have filled claims. The next claim first takes one
#: part in OTHERS of that number from all other tasks, whatever the priorities. Judged; the cell
#: `fairness` shows the effect: p99 of 80 ms behind a flood.
FLOOD = 100
OTHERS = 8
#: Heartbeat intervals. After a claim that got no thread in time, claims are limited for so long.
#: Judged; the limit itself was measured: 200 CPU-bound threads gave 795 slots back for 55 starts.
MINDED = 10

# -- sleeps ---------------------------------------------------------------------------------------

#: Approximate duration of one claim, and the distance between the polls of two peers. Measured: a
#: claim and its commit take 1.0 ms in the trace of a lone task.
OFFSET_STEP = timedelta(milliseconds=1)
#: The longest such wait, however many peers there are. Judged.
LONGEST_OFFSET = timedelta(milliseconds=25)
#: A part of the interval. A poll comes early by up to this part. Judged.
POLL_JITTER = 0.1
#: First and longest pause before the next attempt to claim a due row that was locked. The first
#: is two claims long; a fixed pause of 100 ms delayed rows that a peer was just claiming.
LOCKED_PAUSES = timedelta(milliseconds=2), timedelta(milliseconds=100)
#: When full for this long, check what is due and wake other workers. Judged.
CROWDED = timedelta(milliseconds=100)
#: How much later a worker comes to due rows that has met rows of a newer release: newer workers
#: take these first. Judged.
COURTESY = timedelta(milliseconds=100)
#: The shortest pause that is not ``AT_ONCE``: the resolution of a timedelta.
IN_A_MOMENT = timedelta(microseconds=1)
#: Seconds. The shortest wait: it yields the GIL, so that the thread just woken can run. Measured:
#: five trips to the server lay between the claim of a lone task and the start of its handler.
BLINK = 0.000001

# -- outages and outcomes -------------------------------------------------------------------------

#: How often the log repeats that the database is unreachable. Judged.
REMINDER = timedelta(minutes=1)
#: When an outcome is tried again that could not be written though others could, e.g. on a locked
#: row. The pause doubles, so that many of them leave time for the others. Judged.
STUCK_PAUSE = timedelta(seconds=1)
LONGEST_STUCK_PAUSE = timedelta(seconds=5)

# -- housekeeping ---------------------------------------------------------------------------------

#: Time between two additions of a worker to the hourly counts. Judged.
COUNT_INTERVAL = timedelta(minutes=1)

#: The longest time between two looks for the end of a pause. A notification of an operation ends
#: the wait. Judged.
PAUSE_CHECK = timedelta(seconds=5)

#: Time between two forecasts of ends, of jobs with `finish_by` alone. Judged.
FINISH_CHECK = timedelta(seconds=30)

#: Between the start of a worker and its first look whether it is its turn to prune. Measured: the
#: first look and walk take 45 ms of CPU, for statements that are built and prepared; beside the
#: first claims, that was a seventh of a worker's CPU for 5,000 slots.
PRUNE_DELAY = timedelta(seconds=20)
#: Time between two walks through the ledger, in the whole cluster. Judged.
PRUNE_INTERVAL = timedelta(hours=1)
#: Transactions per round, the shortest pause after it, and the pause as a multiple of the time
#: that the round took: the pruner uses at most a fifth of one connection's time. Judged.
PRUNE_ROUND = 10
PRUNE_BREATH = timedelta(milliseconds=100)
PRUNE_REST = 4
#: How long a notification sent through the pool may take to arrive. Judged.
ECHO = timedelta(seconds=5)
#: Notifications that are off for less than this are not worth a line in the log. Judged.
UNHEARD = timedelta(seconds=10)
#: Where notifications do not get through, an early retry would hardly help. Judged.
LISTEN_AGAIN = timedelta(minutes=5)
#: Seconds. A handler that was asked to stop so long ago hangs. Judged: longer than a command or a
#: child process takes to be killed.
HANGS_AFTER = 6.0
