"""A PostgreSQL that somebody gave us: used, never started nor stopped."""

from __future__ import annotations

from types import TracebackType
from typing import Self
from urllib.parse import quote, urlsplit

from slotwise.errors import DatabaseProblem, InvalidSetting


class GivenPostgres:
    """Stands where an EmbeddedPostgres stands when a DSN is given."""

    def __init__(self, dsn: str) -> None:
        """Takes a DSN in URL form; InvalidSetting for any other."""
        scheme = urlsplit(dsn).scheme.partition("+")[0]
        if scheme not in ("postgres", "postgresql"):
            raise InvalidSetting(f"dsn={dsn!r}: expected a URL, postgresql://user@host:port/database")
        self._url = urlsplit(dsn)._replace(scheme="postgresql")

    @property
    def dsn(self) -> str:
        """The DSN that was given, in libpq's spelling."""
        return self._url.geturl()

    def url(self, database: str) -> str:
        """The DSN of another database of this server."""
        return self._url._replace(path=f"/{quote(database, safe='')}").geturl()

    def start(self) -> Self:
        """Nothing to do: it runs, or connecting will say that it does not."""
        return self

    def stop(self) -> None:
        """Nothing to do: it is not ours."""

    def restart(self, mode: str = "fast") -> None:
        """Raises DatabaseProblem: we do not restart what is not ours."""
        raise DatabaseProblem(f"{self._url.hostname}: cannot restart a server that was given ({mode})")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
