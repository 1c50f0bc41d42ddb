"""A worker of the benchmark's raw limit that breaks the law: one task runs twice."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tools.bench.journal import Journal
from tools.bench.raw import Loop


def main() -> None:
    """Run everything once, and the first task again."""
    journal = Journal(Path(os.environ["BENCH_JOURNAL"]))
    loop = Loop(
        json.loads(os.environ["BENCH_OPTIONS"])["url"], 100, journal, slots=False
    )
    loop.run_batch()
    journal.note(journal.ids()[0])
    loop.drain()


if __name__ == "__main__":
    main()
