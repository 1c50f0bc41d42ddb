"""``manage.py slotwise …``: slotwise's command line for this project."""

from __future__ import annotations

import sys
from argparse import REMAINDER
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from slotwise import Settings, SlotwiseError
from slotwise.contrib.django.project import APP, registry
from slotwise.contrib.hosting import run_commands

#: Options that manage.py has read already, with a value or without.
_OURS = ("--settings", "--pythonpath")
_FLAGS = ("--traceback", "--no-color", "--force-color")


class Command(BaseCommand):
    """Pass everything on; options and exit statuses are those of ``slotwise``."""

    help = "Run slotwise's commands for this project: worker, run, jobs, slots, tasks, db …"
    requires_system_checks: list[str] = []  # noqa: RUF012  # as Django declares it

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command line; manage.py's own options are left out."""
        self._run(_without_ours(argv[2:]))

    def add_arguments(self, parser: CommandParser) -> None:
        """Accept all arguments: for ``call_command``."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *args: object, **options: Any) -> None:
        """Run the command line."""
        self._run(options["arguments"])

    def _run(self, arguments: list[str]) -> None:
        try:
            settings = registry().settings
        except SlotwiseError as error:
            if "--help" not in arguments and "-h" not in arguments:
                self.stderr.write(f"error: {error}")
                sys.exit(1)
            settings = Settings()
        run_commands(arguments, app=APP, settings=settings, app_dir=sys.path[0] or ".")


def _without_ours(arguments: list[str]) -> list[str]:
    kept: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument in _OURS:
            next(remaining, None)
        elif argument.partition("=")[0] not in (*_OURS, *_FLAGS):
            kept.append(argument)
    return kept
