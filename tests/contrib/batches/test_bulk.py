"""Bulk writes in the order of the key."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from tests.contrib.batches.shop import START, Card, Proposal, Shop

from slotwise import ConfigurationError
from slotwise.contrib.batches import insert_all, update_all


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_rows_are_written_in_the_order_of_their_key(shop: Shop, kind: str) -> None:
    """Each write is one call of the driver."""
    sent = []

    def note(conn, cursor, statement, parameters, context, executemany) -> None:
        if statement.startswith(("INSERT", "UPDATE")):
            sent.append((statement.split()[0], parameters))

    sa.event.listen(shop.engine, "before_cursor_execute", note)
    begin = shop.engine.begin if kind == "connection" else shop.sessions.begin
    with begin() as connection:
        new = {"created_at": START, "status": "eligible", "region": None}
        insert_all(connection, Proposal, [{"id": id, **new} for id in (3, 1, 2)])
        insert_all(connection, Card, [{"proposal_id": 7}])
        changed = [{"id": id, "status": f"done-{id}"} for id in (3, 1)]
        assert update_all(connection, Proposal, changed) == 2
        insert_all(connection, Card, [])
        assert update_all(connection, Proposal.__table__, []) == 0
    assert [word for word, _ in sent] == ["INSERT", "INSERT", "UPDATE"]
    assert [one["slotwise_key_id"] for one in sent[2][1]] == [1, 3]
    assert shop.statuses() == {"done-1": [1], "eligible": [2], "done-3": [3]}
    assert shop.carded() == [7]


def test_what_a_session_has_written_is_updated(shop: Shop) -> None:
    with shop.sessions.begin() as session:
        session.add(Proposal(id=1, status="eligible", created_at=START, region=None))
        assert update_all(session, Proposal, [{"id": 1, "status": "done"}]) == 1


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"status": "done"}], "differs in id"),
        ([{"id": 1, "status": "done"}, {"id": 2}], "differs in status"),
        ([{"id": 1, "status": "x"}, {"id": "a", "status": "x"}], "cannot be compared"),
    ],
)
def test_rows_that_cannot_be_written_are_refused(
    shop: Shop, rows: list[dict[str, object]], words: str
) -> None:
    with (
        shop.engine.begin() as connection,
        pytest.raises(ConfigurationError, match=words),
    ):
        update_all(connection, Proposal, rows)


def test_targets_that_are_no_tables_are_refused(shop: Shop) -> None:
    keyless = sa.Table("keyless", sa.MetaData(), sa.Column("id", sa.Integer))
    with shop.engine.begin() as connection:
        with pytest.raises(ConfigurationError, match="is no table"):
            insert_all(connection, orm.Session, [])
        with pytest.raises(ConfigurationError, match="has no primary key"):
            update_all(connection, keyless, [])
