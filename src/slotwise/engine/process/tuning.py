"""The tuned constants of processes, each with its unit. No measurement chose any of them: they were
reasoned about, and work.
"""

from __future__ import annotations

from datetime import timedelta

#: A signal within this time after a counted one counts as the same request.
ECHO = timedelta(seconds=1)
#: The longest pause between two looks at a slot that another process holds.
LOOK_AGAIN = timedelta(seconds=5)
#: How long a process prunes the ledger after its slot. What is left waits for the next turn.
PRUNE_FOR = timedelta(seconds=20)
#: The pause after a claim that got nothing though the row was due: another claim, or an operation,
#: has it locked.
CONTENDED = timedelta(milliseconds=200)
#: How long a handler may take to stop before it is left behind.
HANDLER_PATIENCE = timedelta(seconds=5)
