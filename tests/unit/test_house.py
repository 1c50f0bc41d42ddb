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

import slotwise.store
from slotwise.store.dialects.port import Dialect
from slotwise.store.dialects.postgresql.dialect import PostgreSQL
from slotwise.store.dialects.task_statements import TaskStatements

STORE = Path(slotwise.store.__file__).parent
#: The portable form of the statements, of which a database changes what it does in its own way.
PORTABLE = (Dialect, TaskStatements)
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


def test_postgresql_has_every_verb_of_its_own() -> None:
    """The portable form reads before it writes, which is right with one writer at a time only."""
    verbs = {
        name
        for name, verb in vars(Dialect).items()
        if inspect.isfunction(verb) and not name.startswith("_")
    }
    assert verbs - vars(PostgreSQL).keys() == set()


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
