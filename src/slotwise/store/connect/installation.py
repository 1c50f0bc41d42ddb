"""Which installation of slotwise a caller's connection leads to: a task in another one would never run here."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.errors import ConfigurationError, SchemaMissing
from slotwise.model.clock import elapsed
from slotwise.store.connect.caller_transaction import Joinable, address_of, joined, whole
from slotwise.store.connect.database_errors import (
    describe,
    is_transient,
    lacks_permission,
    lacks_tables,
    place,
    sqlstate,
)

if TYPE_CHECKING:
    from slotwise.store.connect.database import Database

logger = logging.getLogger(__name__)

_ABORTED = "25P02"
#: How long our own id is not asked for again after the database could not be reached.
PAUSE = timedelta(minutes=1)


class Installation:
    """The id in our meta table, and the addresses that were seen to lead to it. Safe between threads."""

    def __init__(self, database: Database, meta: sa.Table) -> None:
        self._database, self._meta = database, meta
        self._id: str | None = None
        self._ask_again_at = 0.0
        #: The addresses that were seen to lead here. Not the connections: Django opens one for each request.
        self._ours: set[sa.URL] = set()

    def join(self, connection: object, where: str) -> Joinable:
        """Return an executor for the transaction of ``connection``. Raise ConfigurationError, with the cure, for one
        that cannot be joined or that leads to another installation.

        The id there is read once for each address. It is not compared if this role may not read it, or as long as the
        database in our settings cannot be reached.
        """
        own = joined(connection, self._database.dialect_name, where)
        address = address_of(own)
        if address not in self._ours and not self._database.in_memory and self._is_this(own, where):
            self._ours.add(address)
        return own

    def check(self, connection: Joinable) -> None:
        """Raise ConfigurationError unless the connection leads here: else work and settlement commit apart."""
        try:
            found = connection.execute(self._select()).fetchone()
        except Exception as error:
            state = sqlstate(error)
            if is_transient(error) or (state is None and not isinstance(error, DBAPIError)):
                raise
            if state == _ABORTED:
                raise ConfigurationError(
                    "the transaction of this connection was aborted by an error before, and nothing of it will stay: "
                    "roll back, and do its work again in another one"
                ) from error
            raise ConfigurationError(
                f"this connection does not reach {self._meta.name}: pass one to the database that holds slotwise's "
                "tables"
            ) from error
        theirs = found[0] if found else None
        if self._id is None:  # in memory there is but the one connection, which the caller has
            self._id = theirs if self._database.in_memory else self.read()
        if theirs != self._id:
            raise ConfigurationError(
                "this connection leads to another installation of slotwise; pass one to the worker's own database"
            )

    @property
    def is_unknown(self) -> bool:
        """Whether ``learn`` would ask the database."""
        return self._id is None and not self._database.in_memory and elapsed() >= self._ask_again_at

    def learn(self) -> str | None:
        """Return our id, read at the first call; None if the database cannot be reached now.

        Raise SchemaMissing if it lacks our tables.
        """
        if self.is_unknown:
            try:
                self._id = self.read()
            except Exception as error:
                if lacks_tables(error):
                    raise SchemaMissing(
                        f"the table {self._meta.name} is missing in {place(self._database.url)}; correct the database "
                        "address, or run: slotwise db upgrade"
                    ) from None
                if not is_transient(error):
                    raise
                self._ask_again_at = elapsed() + PAUSE.total_seconds()
                logger.warning(
                    "callers' connections are not checked, as slotwise's own database cannot be reached: %s",
                    describe(error),
                )
        return self._id

    def read(self) -> str | None:
        """Read our id without a transaction of ours: on SQLite that is a writer, and would wait for the caller's."""
        engine = self._database.main
        connection = engine.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute(str(self._select().compile(engine, compile_kwargs={"literal_binds": True})))
            found = cursor.fetchone()
        except BaseException:
            connection.invalidate()  # else the pool would clean it, and complain where it is broken
            raise
        finally:
            connection.close()
        return found[0] if found else None

    def _select(self) -> sa.Select[tuple[str]]:
        return sa.select(self._meta.c.value).where(self._meta.c.key == "installation_id")

    def _is_this(self, own: Joinable, where: str) -> bool:
        """Return whether the connection was compared, and leads here. Raise ConfigurationError for another one."""
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
        self._id = self.read()  # an operator may have changed it: slotwise db new-epoch
        if theirs == self._id:
            return True
        raise ConfigurationError(
            f"{where}: the connection leads to installation {theirs} in {place(address_of(own))}, slotwise's tables "
            f"are installation {self._id} in {place(self._database.url)}; pass a connection to that database, or none"
        )
