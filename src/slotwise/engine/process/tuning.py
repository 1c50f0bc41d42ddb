"""The tuned constants of processes, each with its unit. No measurement chose any of them: they were
reasoned about, and work.
"""

from __future__ import annotations

from datetime import timedelta

#: A signal within this time after a counted one counts as the same request.
ECHO = timedelta(seconds=1)
#: How long a handler may take to stop before it is left behind.
HANDLER_PATIENCE = timedelta(seconds=5)
