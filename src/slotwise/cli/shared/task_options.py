"""How commands name one-time tasks and their ids."""

from __future__ import annotations

import click

from slotwise import (
    Client,
)
from slotwise.cli.shared.options import (
    named,
)

task_name = named("task", "slotwise tasks")


def id_of(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is not None and (problem := Client.wrong_id(text)) is not None:
        raise click.BadParameter(f"{text!r:.60}: {problem}", ctx, option)
    return text


def known_id(
    ctx: click.Context, option: click.Parameter, text: str | None
) -> str | None:
    """Take any id that a row may have but a blank one, which an unset variable gives."""
    return text if text is None or text.strip() else id_of(ctx, option, text)


def known_ids(
    ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    return tuple(str(known_id(ctx, option, text)) for text in texts)
