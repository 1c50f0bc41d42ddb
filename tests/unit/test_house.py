"""Rules of the store that a reader cannot see in one file: no class is spread over files, and SQL stays where it is."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Protocol

import slotwise.store

STORE = Path(slotwise.store.__file__).parent
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
        if base.__module__.startswith("slotwise.store.") and base.__module__ != module.__name__
        if not issubclass(base, BaseException) and Protocol not in base.__bases__
    ]


def test_no_class_is_spread_over_files_by_inheritance() -> None:
    """A class is made of parts with names; it may only implement a port."""
    assert {tower for module in modules() for tower in towers(module)} == set()


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
