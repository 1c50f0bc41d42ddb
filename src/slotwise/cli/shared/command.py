"""How our commands differ from click's: the common options in a section of their own, examples as they are written."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from slotwise.cli.shared.options import COMMON_NAMES


class _Sections(click.Command):
    """``examples``: lines for the end of the help."""

    def __init__(self, *arguments: Any, examples: str = "", notes: str = "", **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.examples = textwrap.dedent(examples).strip()
        self.notes = textwrap.dedent(notes).strip()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = [(option.name, record) for option in self.get_params(ctx) if (record := option.get_help_record(ctx))]
        own = [record for name, record in records if name not in COMMON_NAMES]
        common = [record for name, record in records if name in COMMON_NAMES]
        for title, rows in (("Options", own), ("Before or after the command", common)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, text in (("Exit status", self.notes), ("Examples", self.examples)):
            if text:
                with formatter.section(title):
                    formatter.write(textwrap.indent(text, "  ") + "\n")


class Command(_Sections):
    """A command with examples."""


class Group(_Sections, click.Group):
    """A group of commands with examples."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


Group.group_class = Group
