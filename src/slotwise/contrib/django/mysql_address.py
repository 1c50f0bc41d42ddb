"""The address of a database of MariaDB or MySQL in ``DATABASES``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import quote, urlencode


class Given(Protocol):
    """The settings of one database."""

    def get(self, name: str, /) -> object: ...


#: Django's names of an SSL option, as ``mysqlclient`` has them.
_SSL = ("ca", "cert", "key")


def mysql_address(given: Given) -> str:
    """Return slotwise's address. Options of Django's own sessions, such as ``charset`` and
    ``init_command``, are left out: slotwise sets up its connections itself.
    """
    host = str(given.get("HOST") or "localhost")
    found = _options(given.get("OPTIONS"))
    if host.startswith("/"):
        host, found["unix_socket"] = "localhost", host
    port = f":{given.get('PORT')}" if given.get("PORT") else ""
    name = quote(str(given.get("NAME") or ""), safe="")
    rest = urlencode(found, safe="/", quote_via=quote)
    return f"mysql://{_login(given)}{host}{port}/{name}{rest and f'?{rest}'}"


def _options(given: object) -> dict[str, str]:
    """Return the options that say how the server is reached."""
    options = given if isinstance(given, Mapping) else {}
    ssl = options.get("ssl")
    files = ssl if isinstance(ssl, Mapping) else {}
    found = {f"ssl_{name}": str(files[name]) for name in _SSL if name in files}
    if socket := options.get("unix_socket"):
        found["unix_socket"] = str(socket)
    return found


def _login(given: Given) -> str:
    if not given.get("USER"):
        return ""
    user, password = (
        quote(str(given.get(key) or ""), safe="") for key in ("USER", "PASSWORD")
    )
    return f"{user}:{password}@"
