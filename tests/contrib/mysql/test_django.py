"""Django on MariaDB: its migrations make the tables, and tasks join its transactions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from slotwise.contrib.django.mysql_address import mysql_address

#: PyMySQL stands in for mysqlclient, which Django asks for.
PROJECT = """
import os
from urllib.parse import urlsplit
import pymysql
pymysql.version_info = (2, 2, 7, "final", 0)
pymysql.install_as_MySQLdb()
import django
from django.conf import settings

given = urlsplit(os.environ["DATABASE"])
settings.configure(
    SECRET_KEY="for tests",
    USE_TZ=True,
    INSTALLED_APPS=["slotwise.contrib.django"],
    SLOTWISE={"JOBS": ["shop_jobs"]},
    DATABASES={"default": {
        "ENGINE": "django.db.backends.mysql", "NAME": given.path[1:], "USER": "root",
        "HOST": given.hostname, "PORT": given.port}},
)
django.setup()
from django.core.management import call_command
from django.db import transaction
from slotwise.contrib.django import registry, schedule

call_command("migrate", verbosity=0)

def rolled_back():
    with transaction.atomic():
        schedule("mail", None, id="gone")
        raise LookupError

try:
    rolled_back()
except LookupError:
    pass
with transaction.atomic():
    schedule("mail", None, id="kept")
    assert [found.id for found in registry().client.list("mail")] == []
schedule("mail", None, id="alone")
print(*sorted(found.id for found in registry().client.list("mail")))
"""

JOBS = """
from slotwise import task

@task(name="mail")
def mail(ctx): ...
"""


def test_a_task_joins_djangos_transaction(
    mysql_empty_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "project.py"
    file.write_text(PROJECT)
    (tmp_path / "shop_jobs.py").write_text(JOBS)
    done = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, "DATABASE": mysql_empty_url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["alone", "kept"], done.stderr


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (
            {"NAME": "a b", "USER": "me", "PASSWORD": "p@ss/", "HOST": "h", "PORT": 3},
            "mysql://me:p%40ss%2F@h:3/a%20b",
        ),
        ({"NAME": "a", "HOST": "/run/s"}, "mysql://localhost/a?unix_socket=/run/s"),
        (
            {
                "NAME": "a",
                "OPTIONS": {"ssl": {"ca": "/c"}, "charset": "utf8mb4"},
            },
            "mysql://localhost/a?ssl_ca=/c",
        ),
    ],
)
def test_the_address_is_that_of_the_settings(
    given: dict[str, object], address: str
) -> None:
    assert mysql_address(given) == address
    assert sa.make_url(mysql_address(given)).database == given["NAME"]
