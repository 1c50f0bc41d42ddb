"""A lock that several processes share, and a table that rejects the late write of a former holder.

    python examples/locked_report.py

prints:

    first run: written
    second run: skipped, the lock is held
    late write of the first holder: rejected

On PostgreSQL the lock is a row of ShedLock's table, so that a Java job under the same name is kept
out, too.
"""

from __future__ import annotations

import sqlalchemy as sa
from _database import application_engine, database_url

from slotwise.locks import Lock, SQLLocks

WRITE = sa.text("""
    INSERT INTO example_report (day, total, token) VALUES (:day, :total, :token)
    ON CONFLICT (day) DO UPDATE SET total = excluded.total, token = excluded.token
    WHERE example_report.token <= excluded.token
""")


def write(engine: sa.Engine, total: int, token: int) -> str:
    """Store a day's total, unless a later holder of the lock has written it already."""
    with engine.begin() as connection:
        changed = connection.execute(
            WRITE, {"day": "2026-01-31", "total": total, "token": token}
        ).rowcount
    return "written" if changed else "rejected"


def main() -> None:
    engine, locks = application_engine(), SQLLocks(database_url())
    locks.create_table()
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE IF EXISTS example_report"))
        connection.execute(
            sa.text(
                "CREATE TABLE example_report (day text PRIMARY KEY, total int, token bigint)"
            )
        )
    report = Lock("example-report", at_most_for="15m", provider=locks)

    @report
    def run() -> str:
        return write(engine, 100, report.token)

    print("first run:", run())
    with report as later:
        print("second run:", run() or "skipped, the lock is held")
        write(engine, 120, later.token)
        # A holder that was paused for longer than its lease would still have its old, lower token.
        print("late write of the first holder:", write(engine, 100, later.token - 1))
    locks.close()
    engine.dispose()


if __name__ == "__main__":
    main()
