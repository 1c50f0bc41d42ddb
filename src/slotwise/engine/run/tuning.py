"""The tuned constants of running attempts, each with its unit and the measurement that chose it.

"Judged" means that no measurement chose the value: it was reasoned about, and works.
"""

from __future__ import annotations

from datetime import timedelta

#: Seconds. First and longest pause between two looks of the standby thread. Judged.
LOOK = 0.001
SELDOM = 0.008
#: Seconds. A look that comes later than this means that another thread had the GIL. Judged; the
#: rule keeps a standby thread from joining short handlers, where a second thread costs switches.
LATE = 0.0005
#: After so many late looks without progress in between, the standby thread joins all the same. A
#: handler that computes in C for long then delays others by up to about 30 ms.
MOST_LATE = 5
#: A thread that finished SPELL pieces of work, each within SHORT seconds, while others finished
#: as many, is one too many: the work can have waited for nothing but the GIL. Judged.
SPELL = 64
SHORT = 0.0002
#: Slots. The most that have ended and wait for their settlement; with more, none is claimed.
#: Judged: four batches.
UNSETTLED = 2_000
#: How long idle threads may take to end. Judged.
FAREWELL = timedelta(milliseconds=200)
#: How long our own event loop may take to end; a handler that blocks it, or ignores its
#: cancellation, is left behind. Judged.
EVENT_LOOP_PATIENCE = timedelta(seconds=5)
#: How often a wait for the lifespan checks that its loop still runs. Judged.
LIFESPAN_CHECK = timedelta(milliseconds=200)
#: The most stacks that a worker answers with, and the most characters of each. Judged.
MOST_STACKS = 200
LONGEST_STACK = 20_000
