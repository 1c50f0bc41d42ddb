"""``slotwise demo`` and ``slotwise init``: see slotwise at work, and write the files of a first
application.
"""

from __future__ import annotations

import os
import secrets
import textwrap
from pathlib import Path
from string import Template
from typing import Final

import click

from slotwise import ConfigurationError
from slotwise.cli.shared import exits
from slotwise.cli.shared.options import Command
from slotwise.cli.shared.terminal import say


@click.command(
    cls=Command,
    short_help="See slotwise at work: three workers, three disasters, a verdict.",
    notes="""
    0    every slot is accounted for
    1    a law was broken, or PostgreSQL could not be started
    130  interrupted; everything that the demo started has ended
    """,
    examples="""
    pip install 'slotwise[embedded]'
    slotwise demo                     under a minute
    slotwise demo | cat               lines instead of a live picture
    slotwise demo --keep              leave it running, to look around with the other commands
    """,
)
@click.option(
    "--keep",
    is_flag=True,
    help="Leave everything running after the verdict, until Ctrl-C.",
)
def demo(keep: bool) -> int:
    """Start a PostgreSQL of its own, three workers and six jobs; kill one worker, freeze one,
    restart the database.

    At the end the ledger is compared with the slots that were due, and with a log that the
    handlers wrote themselves. Nothing is left on this machine. PostgreSQL comes from this machine
    or from the extra `embedded`.
    """
    from slotwise.demo.__main__ import perform  # late: no other command needs the demo

    status = perform(keep=keep)
    if status == exits.OK:
        say("", "to write an application of your own: slotwise init")
    return status


# -- init -----------------------------------------------------------------------------------------

_JOBS: Final = '''\
"""The application's jobs and tasks. Workers import this module."""

from slotwise import Daily, JobContext, JobRegistry, TaskContext, job, task


@job(name="nightly-report", schedule=Daily("02:00", tz="$zone"))
def nightly_report(ctx: JobContext) -> None:
    ctx.log.info("the report from %s to %s", ctx.interval_start, ctx.interval_end)


@task(name="send-mail")
def send_mail(ctx: TaskContext[dict[str, str]]) -> None:
    ctx.log.info("a mail to %s", ctx.data["to"])


registry = JobRegistry(jobs=[nightly_report], tasks=[send_mail])
'''

_SETTINGS: Final = """\
# slotwise reads this file in the current directory; options, and SLOTWISE_… in the environment,
# have precedence.
app = "jobs"
# The database's address stays out of this file:
# export DATABASE_URL=postgresql://user:password@host/database
threads = 10
shutdown_grace = "30s"
"""

_COMPOSE: Final = """\
# docker compose up --build: a PostgreSQL, its tables, and two workers.
services:
  database:
    image: postgres:17
    environment:
      POSTGRES_DB: slotwise
      POSTGRES_PASSWORD: $superuser
    configs: [{source: role, target: /docker-entrypoint-initdb.d/role.sql}]
    ports: ["127.0.0.1:5432:5432"]
    volumes: ["data:/var/lib/postgresql/data"]
    healthcheck:
      test: [CMD, pg_isready, --username=postgres, --dbname=slotwise]
      interval: 2s
      retries: 30
  tables:
    build: &image
      context: .
      dockerfile_inline: |
        FROM python:3.13-slim
        RUN pip install --no-cache-dir --root-user-action=ignore 'slotwise[binary]'
        WORKDIR /app
        COPY . .
        USER nobody
    environment: &environment
      DATABASE_URL: $inside
    command: [slotwise, db, upgrade]
    depends_on:
      database: {condition: service_healthy}
  worker:
    build: *image
    environment: *environment
    command: [slotwise, worker, --log-format, json]
    deploy: {replicas: 2}
    stop_grace_period: 60s
    restart: on-failure
    depends_on:
      tables: {condition: service_completed_successfully}
volumes:
  data:
configs:
  role:
    # The workers' role owns the database, and is no superuser.
    content: |
      CREATE ROLE slotwise LOGIN PASSWORD '$password';
      ALTER DATABASE slotwise OWNER TO slotwise;
"""

#: What an image must not contain: passwords, the history, what a run leaves behind.
_IGNORED: Final = """\
.git
.env
.venv
**/__pycache__
compose.yaml
"""


@click.command(
    cls=Command,
    short_help="Write a first application: jobs.py, settings, a compose file.",
    notes="""
    0    written; files that exist are kept
    1    the directory cannot be written
    """,
    examples="""
    slotwise init                     in the current directory
    slotwise init shop
    """,
)
@click.argument(
    "directory", type=click.Path(file_okay=False, path_type=Path), default=Path()
)
def init(directory: Path) -> None:
    """Write jobs.py, slotwise.toml, compose.yaml and .dockerignore into DIRECTORY, and say what to
    run next.

    Asks nothing: the time zone is this machine's, the passwords of compose's PostgreSQL are
    random, only your account may read the files, and DATABASE_URL is used if
    it is set. Files that exist are kept.
    """
    password = secrets.token_hex(12)
    values = {
        "zone": local_zone(),
        "password": password,
        "superuser": secrets.token_hex(12),
        "inside": f"postgresql://slotwise:{password}@database/slotwise",
    }
    kept = [
        name
        for name, text in FILES.items()
        if not _write(directory / name, Template(text).substitute(values))
    ]
    for name in FILES:
        say(f"{'kept   ' if name in kept else 'written'} {directory / name}")
    say("", *_next_steps(directory, kept, password))


#: By name, the file's text.
FILES: Final = {
    "jobs.py": _JOBS,
    "slotwise.toml": _SETTINGS,
    "compose.yaml": _COMPOSE,
    ".dockerignore": _IGNORED,
}


def _write(path: Path, text: str) -> bool:
    """Write a new file for this account alone; return False if there is one. Raises
    ConfigurationError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}"
        ) from None
    return True


def _next_steps(directory: Path, kept: list[str], password: str) -> list[str]:
    steps = [] if directory == Path() else [f"cd {directory}"]
    if not any(
        os.environ.get(name) for name in ("SLOTWISE_DATABASE_URL", "DATABASE_URL")
    ):
        steps += [
            "docker compose up --build --detach database       # or: python -m slotwise.embedded"
        ]
        if "compose.yaml" not in kept:
            steps += [
                f"export DATABASE_URL=postgresql://slotwise:{password}@localhost/slotwise"
            ]
    steps += ["slotwise db upgrade                               # creates the tables"]
    if "jobs.py" not in kept:
        steps += [
            "slotwise run nightly-report                       # runs the job once, now"
        ]
    steps += [
        "slotwise worker                                   # runs what is due, until Ctrl-C",
        "slotwise jobs",
    ]
    if (directory / "manage.py").exists():
        steps += [
            "",
            "This is a Django project: slotwise.contrib.django has an app, an "
            "admin and manage.py slotwise.",
        ]
    return ["next:", *textwrap.indent("\n".join(steps), "  ").splitlines()]


def local_zone() -> str:
    """Return the name of this machine's time zone; UTC if it has none that Python knows."""
    from zoneinfo import available_timezones

    localtime = Path("/etc/localtime")
    found = [os.environ.get("TZ", "").removeprefix(":")]
    if Path("/etc/timezone").is_file():
        found += [Path("/etc/timezone").read_text().strip()]
    if localtime.is_symlink():
        found += [str(localtime.readlink()).rpartition("zoneinfo/")[2]]
    known = available_timezones()
    name = next((one for one in found if one in known), "UTC")
    return (
        "UTC" if name in ("Etc/UTC", "UCT", "Universal", "Zulu", "Etc/UCT") else name
    )
