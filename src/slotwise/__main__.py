"""``python -m slotwise`` is ``slotwise``."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # `-m` puts the current directory first, where a user's jobs.py or logging.py would hide
    # somebody else's module.
    if not sys.flags.safe_path and sys.path and Path(sys.path[0]) == Path.cwd():
        del sys.path[0]
    from slotwise.cli import main

    main()
