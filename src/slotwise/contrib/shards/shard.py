"""One shard: a database, or a schema of one, with the tables of slotwise."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from slotwise import ConfigurationError, InvalidSetting, Settings
from slotwise.spi import connect_arguments, database_url, describe_address

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Shard:
    """A database of the application, or a schema of one.

    ``database_url`` is where slotwise's tables are, ``app_url`` the application's own pool of the
    same database (``engine``), by default the same address. ``schema``, ``pool_size`` and
    ``wake_up_url`` are the settings of these names, for this shard. Raises ConfigurationError for
    an invalid name, InvalidSetting for an invalid setting. Creating one opens no connection.
    """

    name: str
    database_url: str
    schema: str | None = None
    pool_size: int | None = None
    wake_up_url: str | None = None
    app_url: str | None = None
    app_pool_size: int = 5
    _engines: dict[int, sa.Engine] = field(
        default_factory=dict, init=False, compare=False
    )
    _turn: threading.Lock = field(
        default_factory=threading.Lock, init=False, compare=False
    )

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"{self.name!r:.80} is no name of a shard: it has at most 63 letters, "
                "digits, _, - and ., and begins with a letter or a digit"
            )
        for name, value in self.settings.items():
            Settings.check(name, value, f"shard {self.name}: {name}")
        try:
            database_url(self.database_url)
            database_url(self.app_url or self.database_url)
        except InvalidSetting as error:
            raise InvalidSetting(f"shard {self.name}: {error}") from None

    def __repr__(self) -> str:
        return f"Shard({self.name!r}, {self.address})"

    @property
    def settings(self) -> dict[str, str | int]:
        """The settings in which this shard differs from the others."""
        found = {
            "database_url": self.database_url,
            "schema": self.schema,
            "pool_size": self.pool_size,
            "wake_up_url": self.wake_up_url,
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def address(self) -> str:
        """Where it is, without the password."""
        where = describe_address(database_url(self.database_url))
        return where if self.schema is None else f"{where}, schema {self.schema}"

    @property
    def engine(self) -> sa.Engine:
        """The application's pool of this database in this process, made at its first use.

        With a ``schema`` each use opens a connection whose search path is that schema: pools of
        hundreds of schemas would hold a connection each.
        """
        with self._turn:
            if os.getpid() not in self._engines:
                self._engines.clear()  # of the parent of a fork, which still uses them
                self._engines[os.getpid()] = self._make_engine()
            return self._engines[os.getpid()]

    def close(self) -> None:
        """Close the idle connections of ``engine``; a later use opens new ones."""
        with self._turn:
            made = self._engines.get(os.getpid())
        if made is not None:
            made.dispose()

    def _make_engine(self) -> sa.Engine:
        url = database_url(self.app_url or self.database_url)
        if self.schema is None:
            return sa.create_engine(
                url, pool_size=self.app_pool_size, pool_pre_ping=True
            )
        options = connect_arguments(url).get("options", "")
        path = f"{options} -csearch_path={self.schema}".strip()
        return sa.create_engine(
            url, poolclass=NullPool, connect_args={"options": path}
        )
