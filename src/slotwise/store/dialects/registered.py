"""Which dialect speaks to which kind of database."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from slotwise.model.clock import Clock
from slotwise.model.plugged_in import plugged_in
from slotwise.store.dialects.port import Dialect
from slotwise.store.schema.tables import Tables

#: Makes the dialect of a database, mostly a class.
MakeDialect: TypeAlias = Callable[[Tables, Clock], Dialect]

#: For each kind of database where to import its dialect: a worker loads only its own. Others are
#: entry points of ``slotwise.dialects``.
_dialects = {"postgresql": "slotwise.store.dialects.postgresql.dialect:PostgreSQL"}


def register_dialect(kind: str, dialect: str) -> None:
    """Use a dialect for all databases of a kind, in this process and from now on.

    `kind` is the name that SQLAlchemy gives to such databases, as `"postgresql"`; `dialect` is
    where its class stands, as `"package.module:Class"`, which is imported when it is first used.
    All workers and clients of a database must use the same dialect: the locks of two differ.
    """
    _dialects[kind] = dialect


def dialect_of(kind: str) -> MakeDialect:
    """Return what makes the dialect of a kind of database. Raise ConfigurationError."""
    if kind not in _dialects:
        plugged: MakeDialect = plugged_in("slotwise.dialects", kind)
        return plugged
    module, _, name = _dialects[kind].partition(":")
    found: MakeDialect = getattr(import_module(module), name)
    return found
