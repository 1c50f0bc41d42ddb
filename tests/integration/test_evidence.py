"""What is known about a run is gathered while workers are at work, too: neither witness may be
ahead of the other.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from slotwise import Every, JobContext, JobRegistry, job
from slotwise.demo.evidence import HandlerLog, gather
from slotwise.demo.verdict import judge


@pytest.mark.parametrize("moment", ["before_cursor_execute", "after_cursor_execute"])
def test_a_slot_that_runs_while_the_witnesses_are_read(
    pg_url: str, tmp_path: Path, moment: str
) -> None:
    """It counts or not, but is no broken law: whether it ran before the first statement of the
    look or after it.
    """
    log = HandlerLog(tmp_path / "handlers.log")

    @job(name="tick", schedule=Every("1h"))
    def tick(ctx: JobContext) -> None:
        with log.attempt(ctx):
            pass

    registry = JobRegistry(jobs=[tick], database_url=pg_url, process_hook=False)
    registry.run_now("tick")
    engine = sa.create_engine(
        pg_url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool
    )
    with engine.connect().execution_options(
        isolation_level="REPEATABLE READ"
    ) as connection:
        still_to_come = ["tick"]
        sa.event.listen(
            connection,
            moment,
            lambda *_: still_to_come and registry.run_now(still_to_come.pop()),
        )
        verdict = judge(gather(connection, registry.jobs, log))
    assert len([line for line in log.read() if line.mark == "start"]) == 2
    assert verdict.clean, verdict
    assert verdict.tally.ran == (2 if moment == "before_cursor_execute" else 1)
