"""Batches beside a bare loop of the same statements, on a database of its own that is empty.

    DATABASE_URL=postgresql://… python tools/bench/batches.py --rows 5000 --rounds 10 --size 50

Both loops run in one thread, round by round in turn, so that a busy machine slows both down. A
ratio is that of the medians: below 1, the batches are slower. "CPU" is that of this thread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

import psycopg
import sqlalchemy as sa
from sqlalchemy import orm

from slotwise import DistributedJob, Every, JobContext
from slotwise.contrib.batches import batches
from slotwise.testing import ManualClock, ManualWorker

CHECKPOINTS = 500
START = datetime(2026, 1, 1, tzinfo=UTC)
CARDS = "INSERT INTO cards (proposal_id) SELECT unnest(%s::bigint[])"
DONE = "UPDATE proposals SET status = 'done' WHERE id = ANY(%s)"
NEXT = (
    "SELECT id, status FROM proposals WHERE status = 'eligible' "
    "ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"
)


class Base(orm.DeclarativeBase):
    pass


class Proposal(Base):
    __tablename__ = "proposals"
    __table_args__ = (
        sa.Index("open", "id", postgresql_where=sa.text("status = 'eligible'")),
    )
    id: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, primary_key=True)
    status: orm.Mapped[str]


class Card(Base):
    __tablename__ = "cards"
    id: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, primary_key=True)
    proposal_id: orm.Mapped[int] = orm.mapped_column(sa.BigInteger)


ELIGIBLE = sa.select(Proposal).where(Proposal.status == "eligible")
COLUMNS = sa.select(Proposal.id, Proposal.status).where(Proposal.status == "eligible")


class Bench:
    """The same work by both loops, on each kind of connection."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.url = os.environ["DATABASE_URL"]
        self.engine = sa.create_engine(
            sa.make_url(self.url).set(drivername="postgresql+psycopg")
        )
        self.sessions = orm.sessionmaker(self.engine)
        driver = psycopg.connect(self.url, autocommit=True)
        self.driver = cast("psycopg.Connection[object]", driver)
        Base.metadata.create_all(self.engine)

    # -- the work of a batch ----------------------------------------------------------------------

    def by_engine(self, connection: sa.Connection, ids: list[int]) -> None:
        connection.execute(sa.insert(Card), [{"proposal_id": id} for id in ids])
        done = sa.update(Proposal).where(Proposal.id.in_(ids))
        connection.execute(done.values(status="done"))

    def by_session(self, session: orm.Session, proposals: list[Proposal]) -> None:
        session.add_all(Card(proposal_id=one.id) for one in proposals)
        for one in proposals:
            one.status = "done"

    def by_psycopg(
        self, connection: psycopg.Connection[object], ids: list[object]
    ) -> None:
        connection.execute(CARDS, [ids])
        connection.execute(DONE, [ids])

    # -- bare loops -------------------------------------------------------------------------------

    def bare_engine(self, ctx: JobContext) -> None:
        size = self.given.size
        wanted = (
            COLUMNS.order_by(Proposal.id).limit(size).with_for_update(skip_locked=True)
        )
        while True:
            with self.engine.begin() as connection:
                rows = connection.execute(wanted).all()
                if not rows:
                    return
                self.by_engine(connection, [row.id for row in rows])

    def bare_session(self, ctx: JobContext) -> None:
        size = self.given.size
        wanted = (
            ELIGIBLE.order_by(Proposal.id)
            .limit(size)
            .with_for_update(skip_locked=True)
        )
        while True:
            with self.sessions.begin() as session:
                rows = [*session.scalars(wanted)]
                if not rows:
                    return
                self.by_session(session, rows)

    def bare_psycopg(self, ctx: JobContext) -> None:
        while True:
            with self.driver.transaction():
                rows = self.driver.execute(NEXT, [self.given.size]).fetchall()
                if not rows:
                    return
                self.by_psycopg(
                    self.driver, [cast("tuple[int, str]", row)[0] for row in rows]
                )

    # -- batches ----------------------------------------------------------------------------------

    def ours_engine(self, ctx: JobContext) -> None:
        for batch in batches(ctx, COLUMNS, self.engine, size=self.given.size):
            with batch as rows:
                self.by_engine(batch.connection, [row.id for row in rows])

    def ours_session(self, ctx: JobContext) -> None:
        for batch in batches(ctx, ELIGIBLE, self.sessions, size=self.given.size):
            with batch as rows:
                self.by_session(batch.session, [*rows])

    def ours_psycopg(self, ctx: JobContext) -> None:
        select = "SELECT id, status FROM proposals WHERE status = 'eligible'"
        found = batches(ctx, select, self.lent, key="id", size=self.given.size)
        for batch in found:
            with batch as rows:
                self.by_psycopg(batch.connection, [row["id"] for row in rows])

    def lent(self) -> Lent:
        return Lent(self.driver)

    # -- measuring --------------------------------------------------------------------------------

    def fill(self) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text("TRUNCATE proposals, cards"))
            connection.execute(
                sa.text(
                    "INSERT INTO proposals SELECT n, 'eligible' FROM generate_series(1, :n) AS n"
                ),
                {"n": self.given.rows},
            )
        with self.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(sa.text("VACUUM ANALYZE proposals"))

    def measure(self, ctx: JobContext) -> None:
        for kind in self.given.kinds.split(","):
            pairs = {
                word: getattr(self, f"{word}_{kind}") for word in ("bare", "ours")
            }
            wall: dict[str, list[float]] = defaultdict(list)
            cpu: dict[str, list[float]] = defaultdict(list)
            for turn in range(self.given.rounds + 1):
                for word in sorted(pairs, reverse=bool(turn % 2)):
                    self.fill()
                    found = spent(lambda: pairs[word](ctx))  # noqa: B023
                    if turn:
                        wall[word].append(found[0])
                        cpu[word].append(found[1])
            for name, times in (("wall", wall), ("CPU", cpu)):
                bare, ours = (
                    statistics.median(times[word]) for word in ("bare", "ours")
                )
                each = 1e3 / (self.given.rows / self.given.size)
                print(
                    f"{kind:8} {name:4} bare {bare * each:.2f}, batches {ours * each:.2f} ms a "
                    f"batch, ratio {bare / ours:.2f}"
                )
        self.checkpoints(ctx)

    def checkpoints(self, ctx: JobContext) -> None:
        value = {"after": [17, START], "done": 1_000}
        joined = []
        for _ in range(CHECKPOINTS):
            with self.engine.begin() as connection:
                connection.execute(sa.text("SELECT 1"))
                joined.append(spent(lambda: ctx.checkpoint(value, connection)))
        driven = []
        for _ in range(CHECKPOINTS):
            with self.driver.transaction():
                driven.append(spent(lambda: ctx.checkpoint(value, self.driver)))
        alone = [spent(lambda: ctx.checkpoint(value)) for _ in range(CHECKPOINTS)]
        for word, times in (
            ("in SQLAlchemy's transaction", joined),
            ("in psycopg's transaction", driven),
            ("alone", alone),
        ):
            wall, cpu = (
                statistics.median(one) * 1e3 for one in zip(*times, strict=True)
            )
            print(f"checkpoint {word}: wall {wall:.2f} ms, CPU {cpu:.2f} ms")


class Lent:
    """Lend one connection again and again, as a pool does."""

    def __init__(self, connection: psycopg.Connection[object]) -> None:
        self.connection = connection

    def __enter__(self) -> psycopg.Connection[object]:
        return self.connection

    def __exit__(self, *_: object) -> None:
        pass


def spent(work: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.thread_time()
    work()
    return time.perf_counter() - wall, time.thread_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--size", type=int, default=50)
    parser.add_argument("--kinds", default="engine,session,psycopg")
    bench = Bench(parser.parse_args())
    failed = []

    class Measure(DistributedJob):
        name = "measure"
        schedule = Every("1h")

        def execute(self, ctx: JobContext) -> None:
            bench.measure(ctx)

    with ManualWorker([Measure], bench.url, ManualClock(START)) as worker:
        worker.tick("1h")
        failed = [
            one
            for one in worker.run_due()
            if getattr(one, "outcome", "") != "succeeded"
        ]
    assert not failed, failed


if __name__ == "__main__":
    main()
