"""Django's tests: they reach the databases that Django allows them, and the test database can be dropped."""

from __future__ import annotations

import functools

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from slotwise.contrib.django.databases import alias, database_address
from slotwise.contrib.django.project import stop
from slotwise.errors import SlotwiseError
from slotwise.store.connect.database import Database, guards

_ensure_connection = BaseDatabaseWrapper.ensure_connection


def guard_tests() -> None:
    """Refuse slotwise's own connections where a test may not use Django's connection to the same database.

    Django creates a test database only for aliases in ``TestCase.databases``. The settings of other aliases still lead
    to the real database.
    """
    if _guard not in guards:
        guards.append(_guard)


def _guard(database: Database) -> None:
    if BaseDatabaseWrapper.ensure_connection is _ensure_connection:
        return  # no test of Django is running
    name = alias()
    if database.settings.database_url == database_address(name):
        refuse_in_tests(name)


def refuse_in_tests(name: str) -> None:
    """Raise what Django raises if the running test may not use this alias; open no connection."""
    if BaseDatabaseWrapper.ensure_connection is not _ensure_connection:
        probe = connections[name].copy()
        probe.connect = lambda: None
        probe.ensure_connection()  # replaced while a test of Django runs: it checks the alias


def release_before_drop() -> None:
    """Close slotwise's connections before a test runner drops the test database, which would fail otherwise."""
    try:
        creation = connections[alias()].creation
    except SlotwiseError:
        return  # the system check reports it
    drop = creation.destroy_test_db

    @functools.wraps(drop)
    def release_and_drop(*args: object, **options: object) -> object:
        stop()
        return drop(*args, **options)

    creation.destroy_test_db = release_and_drop
