"""What an account of MariaDB or MySQL needs for its part, as SQL.

Rights are given by table: no trigger signs the audit or refuses rows, as they do on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slotwise import ConfigurationError

_READ = "SELECT"
_WRITE = "SELECT, INSERT, UPDATE, DELETE"
#: A lock of a row needs the right to update a column of it.
_APPEND = "SELECT, INSERT, UPDATE ({locked})"
_NOTES = ("meta", "pauses", "alembic_version")
_ENQUEUER = {
    "tasks": _APPEND.format(locked="last_error"),
    "receipts": _WRITE,
    **dict.fromkeys(_NOTES, _READ),
}
#: By role, the rights that differ from those on all other tables.
_RIGHTS: Mapping[str, tuple[str | None, Mapping[str, str]]] = {
    "worker": (
        _WRITE,
        {"controls": _APPEND.format(locked="id"), "alembic_version": _READ},
    ),
    "operator": (
        _WRITE,
        {"controls": _APPEND.format(locked="id"), "alembic_version": _READ},
    ),
    "reader": (_READ, {}),
    "enqueuer": (None, _ENQUEUER),
    "application": (None, {**_ENQUEUER, "slots": "SELECT, INSERT, UPDATE"}),
}
_MIGRATOR = "CREATE, ALTER, DROP, INDEX, SELECT, INSERT, UPDATE, DELETE"


def grants(role: str, to: str, prefix: str, names: Sequence[str]) -> list[str]:
    """Return the statements that give the account ``to`` what ``role`` needs in the session's
    database. ``names``: those of all tables. Raises ConfigurationError.
    """
    user, _, host = to.partition("@")
    if not user or not to.isprintable() or len(to) > 80 or set(to) & set("'\"`\\"):
        raise ConfigurationError(
            f"{to!r:.80} is no name of an account; write NAME, or NAME@HOST"
        )
    account = f"'{user}'@'{host or '%'}'"
    if role == "migrator":
        return [f"GRANT {_MIGRATOR} ON * TO {account}"]
    usual, others = _RIGHTS[role]
    rights = {name.removeprefix(prefix): usual for name in sorted(names)}
    return [
        f"GRANT {right} ON `{prefix}{name}` TO {account}"
        for name, right in (rights | dict(others)).items()
        if right is not None
    ]
