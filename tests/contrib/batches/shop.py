"""The tables of the tests: proposals that get cards, in the tests' own database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy import orm

from slotwise import DistributedJob, Every, JobContext
from slotwise.spi import Settled
from slotwise.testing import ManualClock, ManualWorker


class Base(orm.DeclarativeBase):
    pass


class Proposal(Base):
    __tablename__ = "proposals"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    status: orm.Mapped[str] = orm.mapped_column(default="eligible")
    created_at: orm.Mapped[datetime] = orm.mapped_column(sa.DateTime(timezone=True))
    region: orm.Mapped[str | None]


class Card(Base):
    __tablename__ = "cards"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    proposal_id: orm.Mapped[int]


START = datetime(2026, 1, 1, tzinfo=UTC)
ELIGIBLE = sa.select(Proposal).where(Proposal.status == "eligible")
T = TypeVar("T")


class Shop:
    """A database with proposals, and what became of them."""

    def __init__(self, url: str) -> None:
        self.url = url
        address = sa.make_url(url)
        if address.drivername.startswith("postgresql"):
            address = address.set(drivername="postgresql+psycopg")
        self.engine = sa.create_engine(address)
        self.clock = ManualClock(START)
        self.sessions = orm.sessionmaker(self.engine)
        Base.metadata.create_all(self.engine)

    def add(self, count: int) -> None:
        """Add proposals: each third one is a second older than the one before it."""
        with self.engine.begin() as connection:
            connection.execute(
                sa.insert(Proposal),
                [
                    {
                        "id": id,
                        "status": "eligible",
                        "created_at": START - timedelta(seconds=id // 3),
                        "region": "de" if id % 2 else "at",
                    }
                    for id in range(1, count + 1)
                ],
            )

    def carded(self) -> list[int]:
        """The proposals of all cards, in the order of the cards."""
        with self.engine.connect() as connection:
            order = sa.select(Card.proposal_id).order_by(Card.id)
            return [*connection.scalars(order)]

    def statuses(self) -> dict[str, list[int]]:
        with self.engine.connect() as connection:
            found: dict[str, list[int]] = {}
            wanted = sa.select(Proposal.status, Proposal.id).order_by(Proposal.id)
            for status, id in connection.execute(wanted):
                found.setdefault(status, []).append(id)
            return found

    def run(
        self,
        handler: Callable[[JobContext], object],
        *,
        times: int = 1,
        step: str = "1h",
        **declared: object,
    ) -> list[Settled]:
        """Run a handler as slots of a job; return how they were settled."""
        with self.worker(handler, **declared) as worker:
            found = []
            for _ in range(times):
                worker.tick(step)
                found += [one for one in worker.run_due() if isinstance(one, Settled)]
            return found

    @contextmanager
    def worker(
        self, handler: Callable[[JobContext], object], **declared: object
    ) -> Iterator[ManualWorker]:
        members = {"name": "cards", "schedule": Every("1h"), **declared}
        job = type(
            "Job", (DistributedJob,), {**members, "execute": staticmethod(handler)}
        )
        with ManualWorker([job], self.url, self.clock, foreign_rows=True) as worker:
            yield worker


def make_cards(session: orm.Session, proposals: list[Proposal]) -> None:
    """What the founding example does with a batch."""
    session.add_all(Card(proposal_id=one.id) for one in proposals)
    for one in proposals:
        one.status = "done"
