"""The naive forms of the guide, and what each of them breaks: what batches are for."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from tests.contrib.batches.shop import ELIGIBLE, Card, Proposal, Shop, make_cards

NEXT = ELIGIBLE.order_by(Proposal.id).limit(4)


class Killed(BaseException):
    """The process ends here."""


def test_a_loop_without_a_transaction_makes_a_second_card(shop: Shop) -> None:
    """Killed between the commit of the card and that of its proposal."""
    shop.add(3)

    def run(killed_at: int | None = None) -> None:
        with shop.sessions() as session:
            for one in session.scalars(ELIGIBLE.order_by(Proposal.id)).all():
                session.add(Card(proposal_id=one.id))
                session.commit()
                if one.id == killed_at:
                    raise Killed
                one.status = "done"
                session.commit()

    with pytest.raises(Killed):
        run(killed_at=2)
    run()
    assert Counter(shop.carded()) == {1: 1, 2: 2, 3: 1}


def test_one_long_transaction_loses_all_and_keeps_dead_rows(shop: Shop) -> None:
    """Killed at the last row; and while it runs, vacuum can remove nothing that others changed."""
    shop.add(50)

    def run() -> None:
        with shop.sessions.begin() as session:
            proposals = [*session.scalars(ELIGIBLE)]
            make_cards(session, proposals)
            session.flush()
            assert len(session.identity_map) >= len(proposals) == 50  # in memory, all
            assert holds_back_vacuum(shop, session)
            raise Killed

    with pytest.raises(Killed):
        run()
    assert shop.carded() == []


def holds_back_vacuum(shop: Shop, session: orm.Session) -> bool:
    own = session.scalar(sa.text("SELECT pg_backend_pid()"))
    found = sa.text(
        "SELECT coalesce(backend_xmin, backend_xid) IS NOT NULL FROM pg_stat_activity "
        "WHERE pid = :own"
    )
    with shop.engine.connect() as other:
        return bool(other.execute(found, {"own": own}).scalar_one())


def test_batches_without_locks_process_rows_twice(shop: Shop) -> None:
    shop.add(4)
    with shop.sessions() as one, shop.sessions() as other:
        first, second = [*one.scalars(NEXT)], [*other.scalars(NEXT)]
        make_cards(one, first)
        one.commit()
        make_cards(other, second)
        other.commit()
    assert Counter(shop.carded()) == dict.fromkeys([1, 2, 3, 4], 2)


@pytest.mark.parametrize("skips", [False, True], ids=["waits", "skips"])
def test_locks_alone_add_no_speed(shop: Shop, skips: bool) -> None:
    """A second worker waits for the commit of the first one; with SKIP LOCKED it does not."""
    shop.add(8)
    locked = NEXT.with_for_update(skip_locked=skips)
    taken = threading.Event()

    def work() -> None:
        with shop.sessions.begin() as session:
            make_cards(session, [*session.scalars(locked)])
            taken.set()

    with shop.sessions.begin() as session:
        make_cards(session, [*session.scalars(locked)])
        other = threading.Thread(target=work)
        other.start()
        assert taken.wait(10 if skips else 0.5) is skips
    other.join()
    assert sorted(shop.carded()) == [*range(1, 9)]
