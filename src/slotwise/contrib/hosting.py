"""What the integrations of web frameworks share: checks of their arguments, and slotwise's command
line beneath another program's (``manage.py slotwise …``, ``flask slotwise …``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

from slotwise import ConfigurationError, Settings


def checked_application(application: object, caller: str) -> None:
    """Raise ConfigurationError for something that is no application of WSGI or ASGI."""
    if not callable(application):
        raise ConfigurationError(
            f"{caller}: {application!r:.80} is no application; write "
            f"{caller}(application, registry)"
        )


#: What every command must know, and a health check reads without importing the application.
_PLACE = ("database_url", "schema", "table_prefix")


def run_commands(
    arguments: Sequence[str],
    *,
    app: str,
    settings: Settings,
    app_dir: str | None = None,
) -> None:
    """Run ``slotwise`` with these arguments for an application that the host program knows.

    ``app`` is what ``--app`` would name. The location of the tables goes into this process's
    environment, for commands that do not import the application, and for worker processes. Raises
    SystemExit unless the command succeeded.
    """
    for name in _PLACE:
        if (value := getattr(settings, name)) is not None:
            os.environ[f"SLOTWISE_{name.upper()}"] = value
    where = [f"--app-dir={app_dir}"] if app_dir else []
    commands = import_module(
        "slotwise.cli"
    )  # by name: the command line is above this room, and does not know it
    try:
        commands.main([f"--app={app}", *where, *arguments])
    except SystemExit as ended:
        if ended.code:
            raise
