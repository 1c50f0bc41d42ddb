"""Everything slotwise raises. Each is a SlotwiseError."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

#: The commands that cures name, as ``run: slotwise db upgrade``.
_COMMAND = re.compile(
    r"(?:(?<=: )|(?<=`)|(?<=, then ))slotwise "
    r"(?=(?:backfill|calendar|cancel|db|delete|explain|failures|health|jobs|"
    r"pause|plan|resume|retry|run|skip-next|slots|tasks|trigger|worker|workers)\b)"
)
#: The command that creates the tables, as cures name it; with ``--adopt`` it is more than that.
_UPGRADE = re.compile(
    r"(?:(?<=: )|(?<=`)|(?<=, then ))slotwise db upgrade(?: "
    r"--(?:schema|table-prefix) [^\s;,`]+)*(?=[\s;,`]|$)(?! --)"
)


class SlotwiseError(Exception):
    """Something went wrong in slotwise."""

    #: How users of this process call the command line; an integration sets it, so that cures can
    #: be pasted.
    program: ClassVar[str] = "slotwise"

    #: How they create the tables; None: ``program`` with ``db upgrade``.
    upgrade: ClassVar[str | None] = None

    #: The settings file or variable that said so; None: the code, or nobody knows.
    place: str | None = None

    def __init__(self, message: str | None = None) -> None:
        text = message or (self.__doc__ or "").strip()
        super().__init__(pasteable(text))


def pasteable(text: str) -> str:
    """Return a message whose commands are those of this process's integration, e.g. ``python
    manage.py slotwise``.
    """
    program = SlotwiseError.program
    upgrade = SlotwiseError.upgrade
    if upgrade is not None:
        text = _UPGRADE.sub(lambda _: upgrade, text)
    if program == "slotwise":
        return text
    return _COMMAND.sub(f"{program} ", text).replace(
        " --app …", ""
    )  # such a program knows its application


class ConfigurationError(SlotwiseError):
    """A setting, a job or a registry cannot work as declared."""


@contextmanager
def located(where: str, kind: type[ConfigurationError]) -> Iterator[None]:
    """Raise a configuration error from within as one of this kind, with its place in front."""
    try:
        yield
    except ConfigurationError as error:
        raise kind(f"{where}: {error}") from None


class InvalidCrontab(ConfigurationError):
    """Lines of a crontab cannot run."""


class InvalidCronJobs(ConfigurationError):
    """Entries of CRON_JOBS cannot run."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(
            "\n".join(
                one if one.startswith("CRON_JOBS ") else f"CRON_JOBS: {one}"
                for one in problems
            )
        )
        #: Each with its job and field.
        self.problems = tuple(problems)


class InvalidJob(ConfigurationError):
    """A job declares something impossible."""


class InvalidPayload(InvalidJob):
    """Data is not what its task takes, or cannot be read."""


class NewerPayload(InvalidPayload):
    """Data was written by a newer release; workers of that release can read it."""


class InvalidSchedule(ConfigurationError):
    """A schedule cannot be understood, or can never fire."""

    #: It is of a kind that only a newer release may know.
    may_be_newer: bool = False


class InvalidSetting(ConfigurationError):
    """A setting has a wrong name, type or range."""


class DatabaseProblem(SlotwiseError):
    """The database cannot be used as it is."""


class DatabaseUnreachable(DatabaseProblem):
    """The database cannot be reached."""


class DatabaseRefused(DatabaseUnreachable):
    """The database server rejects the login: user, password or database name is wrong."""


class CommitUnknown(DatabaseProblem):
    """The reply to a commit was lost, and the database cannot say whether it was committed."""

    #: Of the task that may be scheduled; call ``schedule`` of the same client again with it.
    id: str | None = None
    #: The transaction, for ``SELECT pg_xact_status('…')``, if it is known.
    transaction: str | None = None
    #: The server's timeline at that time: on another one, the transaction's id means nothing.
    timeline: str | None = None


class SchemaMissing(DatabaseProblem):
    """The tables are missing; run: slotwise db upgrade"""


class SchemaMismatch(DatabaseProblem):
    """The tables are of another version, or belong to another program."""


class DriverMissing(DatabaseProblem):
    """No usable libpq was found; run: pip install 'slotwise[binary]'"""


class PostgresMissing(DatabaseProblem):
    """No PostgreSQL was found to start; run: pip install 'slotwise[embedded]'"""


class ClaimLost(SlotwiseError):
    """The claim is no longer ours: another worker may run this slot."""


class JobCancelled(SlotwiseError):
    """The handler was asked to stop."""


class CommandFailed(SlotwiseError):
    """The command failed, or could not be started."""

    def __init__(
        self, message: str | None = None, *, status: int | None = None
    ) -> None:
        super().__init__(message)
        #: Its exit status, negative for a signal; None if it never ran, or nobody knows.
        self.status = status


class InstanceExists(SlotwiseError):
    """A task with this id is already scheduled."""


class SyncSuperseded(SlotwiseError):
    """Another synchronisation of the same scope has begun: it does the rest."""


class UnknownTask(SlotwiseError):
    """No job or task of this name is known."""


class PlanMissing(SlotwiseError):
    """Jobs have no row in the database after the start."""
