"""How long tests wait for what must happen: a deadline for what hangs, and no measure of speed."""

from __future__ import annotations

#: Seconds, also on a machine that is busy with other things.
PATIENCE = 180
