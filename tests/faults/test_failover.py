"""An address with several hosts: the primary is found wherever it stands, also when it is another
one by now.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.conninfo import make_conninfo
from tests.databases import provision
from tests.faults.bench import SLACK, eventually, loaded
from tests.faults.conftest import MakeBench
from tests.kit.connections import Database, sure_transaction
from tests.kit.dialect import DIALECT
from tests.kit.store import Store

from slotwise.embedded import EmbeddedPostgres
from slotwise.errors import CommitUnknown, PostgresMissing
from slotwise.settings.settings import Settings

pytestmark = pytest.mark.extended

CAST = "rerun,give-up,completing"


@contextmanager
def a_primary_and_its_standby(
    path: Path,
) -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    """Two servers; what the first has committed the second has, too."""
    with EmbeddedPostgres(path / "first") as first:
        provision(first.dsn)
        first._cluster.stop()
        subprocess.run(
            ["cp", "-a", path / "first", path / "second"], check=True
        )  # also a base backup
        first.start()
        with psycopg.connect(first.dsn, autocommit=True) as connection:
            connection.execute(
                "create role standby replication login password 'standby'"
            )
        conninfo = make_conninfo(first.dsn, user="standby", password="standby")
        second = EmbeddedPostgres(
            path / "second", settings={"primary_conninfo": conninfo}
        )
        signal = path / "second" / "data" / "standby.signal"
        signal.touch()
        second._account.own(signal, 0o600)
        with second:
            with psycopg.connect(first.dsn, autocommit=True) as connection:
                connection.execute("alter system set synchronous_standby_names = '*'")
                connection.execute("select pg_reload_conf()")
                synchronous = (
                    "select 1 from pg_stat_replication where sync_state = 'sync'"
                )
                eventually(lambda: connection.execute(synchronous).fetchone())
            yield first, second


def one_address(*servers: EmbeddedPostgres) -> str:
    """As SQLAlchemy writes it; nobody listens at the first of its hosts."""
    urls = [sa.make_url(server.dsn) for server in servers]
    hosts = "&".join(
        ["host=127.0.0.1:1", *(f"host={url.host}:{url.port}" for url in urls)]
    )
    return f"postgresql://postgres:{urls[0].password}@/postgres?{hosts}&target_session_attrs=read-write"


def test_workers_follow_the_primary(bench: MakeBench, open_path: Path) -> None:
    """A host that is down and the standby are passed over; when that becomes the primary, work
    goes on there.
    """
    try:
        with a_primary_and_its_standby(open_path) as (first, second):
            stage = bench(CAST, url=one_address(second, first), shutdown_grace="30s")
            crew = stage.start_all(2)
            for job in CAST.split(","):
                stage.wait("settled", job=job)
            gone = stage.mark()
            first._cluster.stop("immediate")
            stage.wait("database_lost", after=gone)
            with psycopg.connect(second.dsn, autocommit=True) as connection:
                assert connection.execute("select pg_promote()").fetchone() == (True,)
            up = stage.mark()
            for player in crew:
                back = stage.wait("heartbeat", by=player, after=up)
                assert back.at - up.at <= 5 + loaded(SLACK).total_seconds()
            until = stage.now()
            for job in CAST.split(","):
                stage.wait("settled", job=job, slot=lambda slot: slot > until)
            assert set(stage.end_all()) == {0}
            stage.expect_clean(until=until)
            stage.close()
    except PostgresMissing as error:
        pytest.skip(str(error))


def part(first: EmbeddedPostgres, second: EmbeddedPostgres) -> None:
    """End the replication: the second server hears of no later transaction of the first."""
    with (
        psycopg.connect(first.dsn, autocommit=True) as primary,
        psycopg.connect(second.dsn, autocommit=True) as standby,
    ):
        primary.execute("alter role standby nologin")
        primary.execute("select pg_terminate_backend(pid) from pg_stat_replication")
        receiver = "select 1 from pg_stat_wal_receiver"
        eventually(lambda: standby.execute(receiver).fetchone() is None)


def give_again(sql: psycopg.Connection, transaction_id: int) -> None:
    """Give this id to a transaction of this server, which commits."""
    theirs = 0
    while theirs < transaction_id:
        (found,) = sql.execute("select pg_current_xact_id()::text").fetchall()
        theirs = int(found[0])
    status = "select pg_xact_status(%s::text::xid8)"
    # it may be one of the server itself, such as of a vacuum, that has not ended
    eventually(
        lambda: (
            sql.execute(status, (str(transaction_id),)).fetchone() == ("committed",)
        )
    )


def lose_a_reply(
    store: Store, first: EmbeddedPostgres, second: EmbeddedPostgres
) -> None:
    """Before the commit on the first server, let the second one take over; there another
    transaction gets its id.

    The second server has not heard of the id, or it would give it to nobody.
    """
    part(first, second)

    def fail_over(connection: sa.Connection) -> str | None:
        mine = store.dialect.transaction_id(connection)
        first._cluster.stop("immediate")
        with psycopg.connect(second.dsn, autocommit=True) as sql:
            assert sql.execute("select pg_promote()").fetchone() == (True,)
            if DIALECT != "locking":  # a receipt is given to no other transaction
                give_again(sql, int(str(mine)))
        return mine

    committed = store.dialect.committed
    with sure_transaction(store.database, committed, fail_over) as connection:
        connection.exec_driver_sql("CREATE TABLE lost (a integer)")


def test_a_new_primary_knows_nothing_of_a_transaction(open_path: Path) -> None:
    """It may have given the same id to another transaction, which it has committed."""
    try:
        with a_primary_and_its_standby(open_path) as (first, second):
            settings = Settings(database_url=one_address(second, first))
            with closing(Database(settings)) as database:
                store = Store(database, {})
                with pytest.raises(CommitUnknown) as unknown:
                    lose_a_reply(store, first, second)
                assert unknown.value.timeline == "00000001"
                assert unknown.value.transaction is not None
    except PostgresMissing as error:
        pytest.skip(str(error))
