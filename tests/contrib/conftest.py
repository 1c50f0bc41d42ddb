"""Django in the tests' own process: one project, and a database with its tables for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.databases import Databases

from slotwise import SlotwiseError

BACKENDS = ("default", "patient")


def _settings() -> dict[str, Any]:
    import django

    library = "tasks" if django.VERSION >= (6,) else "django_tasks"
    backend = f"slotwise.contrib.django.{library}.SlotwiseBackend"
    return {
        "ALLOWED_HOSTS": ["testserver"],
        "DATABASES": {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": "",
                "HOST": "nowhere",
            }
        },
        "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
        "INSTALLED_APPS": [
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.messages",
            "django.contrib.sessions",
            *(["django_tasks"] if library == "django_tasks" else []),
            "slotwise.contrib.django",
            "tests.contrib.djangoshop",
        ],
        "LOGGING_CONFIG": None,
        "MIDDLEWARE": [
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
        "ROOT_URLCONF": "tests.contrib.djangoshop.urls",
        "SECRET_KEY": "for tests",
        "SHOP_SITE": "shop.example",
        "SLOTWISE": {
            "POLL_INTERVAL": "1s",
            "threads": 2,
            "RESOLVERS": ["tests.contrib.djangoshop.resolvers.shop_settings"],
        },
        "TASKS": {
            "default": {"BACKEND": backend, "QUEUES": ["default", "mail"]},
            "patient": {
                "BACKEND": backend,
                "QUEUES": [],
                "OPTIONS": {"max_attempts": 2, "result_retention": "1d"},
            },
        },
        "TEMPLATES": [
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        "TIME_ZONE": "Europe/Vienna",
        "USE_TZ": True,
    }


@pytest.fixture(scope="session")
def django_project() -> Callable[[str], None]:
    """Set the project up once; return a function that points its database to an address."""
    import django
    from django.conf import settings
    from django.db import connections
    from psycopg.conninfo import conninfo_to_dict

    settings.configure(**_settings())
    django.setup()
    SlotwiseError.program, SlotwiseError.upgrade = (
        "slotwise",
        None,
    )  # tests without Django run in this process, too

    def point(url: str) -> None:
        connections.close_all()
        found: dict[str, Any] = dict(conninfo_to_dict(url))
        given = connections["default"].settings_dict
        for ours, name in (
            ("NAME", "dbname"),
            ("HOST", "host"),
            ("PORT", "port"),
            ("USER", "user"),
        ):
            given[ours] = found.get(name) or ""
        given["PASSWORD"] = found.get("password") or ""

    return point


@pytest.fixture
def shop(
    databases: Databases,
    django_project: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """A database with the tables of the project, slotwise's among them; its address."""
    from asgiref.sync import SyncToAsync
    from django.core.management import call_command
    from django.db import connections

    from slotwise.contrib.django import registry
    from slotwise.contrib.django.apps import PROGRAM, upgrade_command

    def prepare(url: str) -> None:
        django_project(url)
        call_command("migrate", verbosity=0)
        connections.close_all()

    with databases.provisioned("django", prepare) as url:
        django_project(url)
        monkeypatch.setattr(SlotwiseError, "program", PROGRAM)
        monkeypatch.setattr(SlotwiseError, "upgrade", upgrade_command())
        yield url
        registry().stop()
        connections.close_all()
        SyncToAsync.single_thread_executor.submit(connections.close_all).result()
