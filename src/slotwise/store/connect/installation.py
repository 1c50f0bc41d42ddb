"""Which installation of slotwise a caller's connection leads to."""

from __future__ import annotations

import logging
from datetime import timedelta

import sqlalchemy as sa

from slotwise.errors import ConfigurationError, SchemaMissing
from slotwise.model.clock import elapsed
from slotwise.store.connect.caller_transaction import (
    Address,
    Joinable,
    address_of,
    joined,
    whole,
)
from slotwise.store.connect.database import Database
from slotwise.store.connect.database_errors import (
    describe_address,
    describe_error,
    is_transient,
    lacks_permission,
    lacks_tables,
)
from slotwise.store.connect.mysql_callers import is_mysql, mysql_callers

logger = logging.getLogger(__name__)

#: How long our own id is not asked for again after the database could not be reached.
PAUSE = timedelta(minutes=1)


class Installation:
    """The id in our meta table, and the addresses that were seen to lead to it. Safe between
    threads.
    """

    def __init__(self, database: Database, meta: sa.Table) -> None:
        self._database = database
        self._meta = meta
        self._id: str | None = None
        self._ask_again_at = 0.0
        #: The addresses that were seen to lead here. Not the connections: Django opens one for
        #: each request.
        self._ours: set[Address] = set()

    def join(self, connection: object, where: str) -> Joinable:
        """Return an executor for the transaction of ``connection``. Raise ConfigurationError if it
        leads elsewhere.

        The id is read once per address, and not compared if the role may not read it or our
        database is unreachable.
        """
        own = joined(connection, self._database.dialect_name, where)
        self._refuse_on_mysql(own, where)
        address = address_of(own)
        if (
            address not in self._ours
            and not self._database.in_memory
            and self._is_this(own, where)
        ):
            self._ours.add(address)
        return own

    def _refuse_on_mysql(self, connection: Joinable, where: str) -> None:
        """Raise ConfigurationError for a connection on which a fence would misfire."""
        if is_mysql(connection.dialect):
            mysql_callers().refuse(connection, self._database.settings, where)

    @property
    def is_unknown(self) -> bool:
        """Whether ``learn`` would ask the database."""
        return (
            self._id is None
            and not self._database.in_memory
            and elapsed() >= self._ask_again_at
        )

    def learn(self) -> str | None:
        """Return our id, read once; None while the database is unreachable. Raise SchemaMissing
        without our tables.
        """
        if self.is_unknown:
            try:
                self._id = self.read()
            except Exception as error:
                if lacks_tables(error):
                    raise SchemaMissing(
                        f"the table {self._meta.name} is missing in "
                        f"{describe_address(self._database.url)}; correct the database "
                        "address, or run: slotwise db upgrade"
                    ) from None
                if not is_transient(error):
                    raise
                self._ask_again_at = elapsed() + PAUSE.total_seconds()
                logger.warning(
                    "callers' connections are not checked, as slotwise's own "
                    "database cannot be reached: %s",
                    describe_error(error),
                )
        return self._id

    def read(self) -> str | None:
        """Read our id without a transaction of ours: on SQLite that is a writer, and would wait
        for the caller's.
        """
        engine = self._database.main
        connection = engine.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute(
                str(
                    self._select().compile(
                        engine, compile_kwargs={"literal_binds": True}
                    )
                )
            )
            found = cursor.fetchone()
        except BaseException:
            # else the pool would clean it, and complain where it is broken
            connection.invalidate()
            raise
        finally:
            connection.close()
        return found[0] if found else None

    def _select(self) -> sa.Select[tuple[str]]:
        return sa.select(self._meta.c.value).where(
            self._meta.c.key == "installation_id"
        )

    def _is_this(self, own: Joinable, where: str) -> bool:
        """Return whether the connection was compared, and leads here. Raise ConfigurationError for
        another one.
        """
        try:
            with whole(own):
                found = own.execute(self._select()).fetchone()
        except Exception as error:
            if lacks_permission(error):
                return True
            raise
        theirs = found[0] if found else None
        if (ours := self.learn()) is None or theirs == ours:
            return ours is not None
        self._id = (
            self.read()
        )  # an operator may have changed it: slotwise db new-epoch
        if theirs == self._id:
            return True
        address = address_of(own)
        there = sa.URL.create(
            own.dialect.name,
            host=address.host,
            port=address.port,
            database=address.database,
        )
        raise ConfigurationError(
            f"{where}: the connection leads to installation {theirs} in "
            f"{describe_address(there)}, slotwise's tables "
            f"are installation {self._id} in {describe_address(self._database.url)}; pass a "
            "connection to that database, or none"
        )
