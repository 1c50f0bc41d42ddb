"""What the commands on one-time tasks are given: when, which id, which data; read and checked as options."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from slotwise.cli.shared.instants import FORMS, read_instant
from slotwise.cli.shared.options import duration
from slotwise.client.arguments import wrong_id
from slotwise.jobs.declaration import LARGEST_PRIORITY

PRIORITY = click.IntRange(-LARGEST_PRIORITY, LARGEST_PRIORITY)


def _instant(ctx: click.Context, option: click.Parameter, text: str | None) -> datetime | None:
    try:
        found = None if text is None else read_instant(text)
    except ValueError:
        raise click.BadParameter(f"{text!r:.60} is not {FORMS}", ctx, option) from None
    if found is not None and ctx.params.get("in_") is not None:
        raise _both(ctx)
    return found


def _delay(ctx: click.Context, option: click.Parameter, text: str | None) -> timedelta | None:
    found = duration(ctx, option, text)
    if found is not None and ctx.params.get("at") is not None:
        raise _both(ctx)
    return found


def _both(ctx: click.Context) -> click.UsageError:
    return click.UsageError("--at and --in are both given; drop one of them", ctx)


def id_of(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is not None and (problem := wrong_id(text)) is not None:
        raise click.BadParameter(f"{text!r:.60}: {problem}", ctx, option)
    return text


def data_of(ctx: click.Context, option: click.Parameter, text: str | None) -> Any:
    try:
        return None if text is None else json.loads(_written(text))
    except OSError as error:
        raise click.BadParameter(f"{text!r:.60} cannot be read: {error.strerror}", ctx, option) from None
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{text!r:.60} is no JSON: {error}", ctx, option) from None


def _written(text: str) -> str:
    """The text itself; of ``@FILE`` and ``@-`` what stands there. No JSON begins like this."""
    if text == "@-":
        return sys.stdin.read()
    return Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text


def due(function: Any) -> Any:
    for option in (
        click.option("--in", "in_", metavar="DURATION", callback=_delay, help="So long from now: 10m, 2h."),
        click.option("--at", metavar="INSTANT", callback=_instant, help="ISO 8601; local unless it says otherwise."),
    ):
        function = option(function)
    return function
