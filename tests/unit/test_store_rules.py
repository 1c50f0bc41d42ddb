"""Rules of the store that a reader cannot see in one file: no class is spread over files, and SQL
stays where it is.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.kit.ports import ByKey, PostgreSQL

import slotwise.store
from slotwise.spi import Dialect, Locking, OneWriter
from slotwise.store.dialects.locking import LockingTasks
from slotwise.store.dialects.postgresql.server import PostgreSQLServer
from slotwise.store.dialects.registered import dialect_of
from slotwise.store.dialects.task_statements import TaskStatements
from slotwise.store.dialects.upserts import Upserting

STORE = Path(slotwise.store.__file__).parent
#: The bases of dialects and their helpers, of which a database changes what it does in its own
#: way.
PORTABLE = (
    Dialect,
    ByKey,
    Upserting,
    OneWriter,
    Locking,
    PostgreSQLServer,
    TaskStatements,
    LockingTasks,
)
#: What not all databases know, as SQLAlchemy calls it.
OF_SOME_DATABASES = {"returning", "on_conflict_do_nothing", "on_conflict_do_update"}


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages([str(STORE)], "slotwise.store."):
        yield importlib.import_module(found.name)


def towers(module: ModuleType) -> list[str]:
    """Classes of this module that inherit from a class of another module of the store."""
    return [
        f"{name}({base.__name__})"
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
        for base in kind.__bases__
        if base.__module__.startswith("slotwise.store.")
        and base.__module__ != module.__name__
        if not issubclass(base, BaseException) and base not in PORTABLE
    ]


def test_no_class_is_spread_over_files_by_inheritance() -> None:
    """A class is made of parts with names; it may only replace verbs of the portable form."""
    assert {tower for module in modules() for tower in towers(module)} == set()


def verbs_of(kind: object) -> set[str]:
    return {
        name
        for name, verb in vars(kind).items()
        if inspect.isfunction(verb) and not name.startswith("_")
    }


def test_the_port_has_no_bodies() -> None:
    """A verb that a dialect forgets is an error of the type checker, not a race."""
    tree = ast.parse((STORE / "dialects" / "port.py").read_text())
    (port,) = (
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "Dialect"
    )
    verbs = [node for node in port.body if isinstance(node, ast.FunctionDef)]
    assert [verb.name for verb in verbs if len(verb.body) != 1] == []


@pytest.mark.parametrize("kind", [PostgreSQL, Locking])
def test_no_body_for_one_writer_is_inherited_where_many_write(kind: type) -> None:
    """OneWriter locks nothing, and knows no commit in doubt."""
    assert not issubclass(kind, OneWriter)


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_each_dialect_has_every_verb(kind: str) -> None:
    """Also for tests that are not type-checked."""
    assert {
        verb for verb in verbs_of(Dialect) if not hasattr(dialect_of(kind), verb)
    } == set()


def test_words_of_some_databases_are_inside_a_dialect() -> None:
    """A further database is then a class, and nothing else."""
    outside = {
        str(file.relative_to(STORE))
        for file in STORE.rglob("*.py")
        if file.relative_to(STORE).parts[0] != "dialects"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in OF_SOME_DATABASES
    }
    assert outside == set()
