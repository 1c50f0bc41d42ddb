"""What each database of a shard knows of itself: its installation, its name, and the map.

All three are rows of ``scheduled_meta``. Race: two processes may mark a new database at once; the
key of the row lets one insert it, and both read it afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from slotwise import ConfigurationError
from slotwise.contrib.shards.shards import Shards
from slotwise.spi import Database, Tables, tables

NAME_KEY: Final = "shard_name"
MAP_KEY: Final = "shard_map"
_INSTALLATION_KEY: Final = "installation_id"


@dataclass(frozen=True, slots=True)
class Marks:
    """The rows of one database; None where there is none."""

    installation: str | None
    name: str | None
    map: str | None


class MapDiffers(ConfigurationError):
    """The database keeps another map of keys than this process has."""


def tables_of(database: Database) -> Tables:
    """Return the tables of a database, as its settings name them."""
    settings = database.settings
    return tables(settings.table_prefix, settings.schema, database.dialect_name)


def read_marks(database: Database) -> Marks:
    """Read the marks in one statement; raises the driver's errors."""
    meta = tables_of(database).meta
    wanted = sa.select(meta.c.key, meta.c.value).where(
        meta.c.key.in_([NAME_KEY, MAP_KEY, _INSTALLATION_KEY])
    )
    with database.autocommit() as connection:
        found = {row.key: row.value for row in connection.execute(wanted)}
    return Marks(found.get(_INSTALLATION_KEY), found.get(NAME_KEY), found.get(MAP_KEY))


def check_marks(marks: Marks, name: str, shards: Shards) -> None:
    """Raise ConfigurationError if the database is another shard, MapDiffers if it has another
    map. Missing marks are right.
    """
    if marks.name not in (None, name):
        raise ConfigurationError(_other_name(marks.name, name, shards))
    if marks.map not in (None, shards.fingerprint):
        raise MapDiffers(
            f"shard {name}: the database has the map of keys {marks.map!r:.40}, this "
            f"process has {shards.fingerprint!r}; deploy the same settings everywhere, or "
            "if these are the new ones: slotwise shards apply"
        )


def _other_name(found: str | None, name: str, shards: Shards) -> str:
    """Return the message for a database that says that it is another shard."""
    text = f"shard {name}: the database says that it is shard {found!r:.80}; "
    if any(shard.name == found for shard in shards):
        text += (
            f"shards {found} and {name} lead to one database, or {name} is a copy: for one "
            f"database, correct the address of {name}; for a copy"
        )
    else:
        text += f"correct the address, or if it is a copy that is to be {name}"
    return (
        f"{text}: slotwise db new-epoch --shard {name}, then "
        f"slotwise shards apply --shard {name} --yes"
    )


def identify(database: Database, name: str, shards: Shards) -> Marks:
    """Check the marks, and write those that are missing; return them.

    Raises what ``check_marks`` raises, and the driver's errors.
    """
    marks = read_marks(database)
    check_marks(marks, name, shards)
    missing = {}
    if marks.name is None:
        missing[NAME_KEY] = name
    if marks.map is None:
        missing[MAP_KEY] = shards.fingerprint
    if not missing:
        return marks
    for key, value in missing.items():
        _insert(database, key, value)
    marks = read_marks(database)  # another process may have been first
    check_marks(marks, name, shards)
    return marks


def apply_marks(database: Database, name: str, shards: Shards) -> Marks:
    """Write name and map into the database, whatever it had; return what it had."""
    before = read_marks(database)
    meta = tables_of(database).meta
    for key, value in ((NAME_KEY, name), (MAP_KEY, shards.fingerprint)):
        _insert(database, key, value)
        with database.transaction() as connection:
            connection.execute(
                sa.update(meta).where(meta.c.key == key).values(value=value)
            )
    return before


def _insert(database: Database, key: str, value: str) -> None:
    """Insert the row unless it is there. Race: the key lets one of several writers insert it."""
    meta = tables_of(database).meta
    row = sa.select(sa.literal(key), sa.literal(value)).where(
        ~sa.exists().where(meta.c.key == key)
    )
    try:
        with database.transaction() as connection:
            connection.execute(sa.insert(meta).from_select(["key", "value"], row))
    except sa.exc.IntegrityError:
        return
