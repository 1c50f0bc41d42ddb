"""``slotwise schedule sync``: the recurring instances of a scope, from a CSV file."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click

from slotwise import (
    Client,
    ConfigurationError,
    InvalidPayload,
    RecurringItem,
    SlotwiseError,
    SyncReport,
)
from slotwise.cli.shared.options import Command, Given, common, job_name, pass_given
from slotwise.cli.shared.output import print_json
from slotwise.cli.shared.terminal import say

_COLUMNS = ("id", "schedule", "data", "tags", "priority")
#: Ids that are named of each kind.
SHOWN = 5


@click.command(
    cls=Command,
    examples="""
    slotwise schedule sync report customers.csv --scope crm --app jobs --dry-run
    slotwise schedule sync report customers.csv --scope crm --app jobs
    psql --csv -f customers.sql | slotwise schedule sync report - --scope crm --app jobs
    """,
    notes="""
    0  the scope is as the file says, or would be
    1  nothing is changed: an invalid line, or more than a fifth would be removed
    """,
)
@click.argument("name", callback=job_name)
@click.argument("file")
@click.option("--scope", required=True, metavar="NAME", help="The scope of the file.")
@click.option(
    "--force", is_flag=True, help="Even if more than a fifth of the scope is removed."
)
@click.option(
    "--dry-run", is_flag=True, help="Print what would change, and change nothing."
)
@common
@pass_given
def sync(
    given: Given, name: str, file: str, scope: str, force: bool, dry_run: bool
) -> None:
    """Bring the recurring instances of the job or task NAME in line with a CSV file; - is the
    standard input.

    Its first line names the columns: id and schedule, and, if you like, data (JSON), tags
    (separated by spaces) and priority. Instances of the scope that are not in the file are
    removed. With an invalid line, nothing is changed. The application of --app is needed, since
    the policies and the type of the data come from it.
    """
    opened = Client.open(given.table_settings(), application=given.registry())
    places = list[str]()
    with opened as client, _opened(file) as lines, _naming_lines(places):
        found = client.sync_schedules(
            name,
            _items(client, name, file, lines, places),
            scope=scope,
            force=force,
            dry_run=dry_run,
        )
    if given.json:
        print_json(found.as_json())
        return
    _print(found, dry_run=dry_run)


@contextmanager
def _opened(file: str) -> Iterator[TextIO]:
    if file == "-":
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(
                newline="", encoding="utf-8-sig", errors="surrogateescape"
            )
        yield sys.stdin
        return
    try:
        with Path(file).open(
            newline="", encoding="utf-8-sig", errors="surrogateescape"
        ) as lines:
            yield lines
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}; check the path") from None


def _items(
    client: Client, name: str, file: str, lines: TextIO, places: list[str]
) -> Iterator[RecurringItem[object]]:
    """Append the place of each item, a file and a line, to ``places``."""
    rows = csv.DictReader(_in_utf8(file, lines), strict=True)
    try:
        _check_columns(file, rows.fieldnames or ())
        for row in rows:
            places.append(f"{file}:{rows.line_num}")
            yield _item(client, name, row, places[-1])
    except csv.Error as error:
        raise ConfigurationError(
            f"{file}:{rows.line_num}: {error}; write a CSV file in UTF-8"
        ) from None


def _in_utf8(file: str, lines: Iterable[str]) -> Iterator[str]:
    """Raise ConfigurationError at the first line that has other bytes, which are surrogates."""
    for number, line in enumerate(lines, 1):
        try:
            line.encode("utf-8")
        except UnicodeEncodeError as error:
            byte = ord(line[error.start]) & 0xFF
            raise ConfigurationError(
                f"{file}:{number}: the byte 0x{byte:02x} is not UTF-8; save the file in UTF-8, "
                "or convert it, for example: iconv -f LATIN1 -t UTF-8"
            ) from None
        yield line


@contextmanager
def _naming_lines(places: Sequence[str]) -> Iterator[None]:
    """Name the line of the file in an error that names the item by its number."""
    try:
        yield
    except SlotwiseError as error:
        found = re.match(r"items\[(\d+)\]", str(error))
        if found is None:
            raise
        place = places[int(found[1])]
        raise type(error)(f"{place}{str(error)[found.end() :]}") from None


def _check_columns(file: str, columns: Sequence[str]) -> None:
    missing = [one for one in ("id", "schedule") if one not in columns]
    unknown = [one for one in columns if one not in _COLUMNS]
    if missing or unknown:
        what = f"no column {missing[0]!r}" if missing else f"column {unknown[0]!r:.60}"
        raise ConfigurationError(
            f"{file}:1: {what}; the first line names the columns: {', '.join(_COLUMNS)}"
        )


def _item(
    client: Client, name: str, row: dict[str, str], where: str
) -> RecurringItem[object]:
    if None in row or None in row.values():
        raise ConfigurationError(
            f"{where}: this line has more or fewer values than the first line has columns"
        )
    priority = _priority(row.get("priority", "").strip(), where)
    try:
        given = client.typed_data(name, _data(row.get("data", ""), where))
    except InvalidPayload as error:
        problem = str(error).replace("task_data", "data", 1)
        raise InvalidPayload(f"{where}: {problem}") from None
    return RecurringItem(
        row["id"],
        row["schedule"],
        given,
        tags=row.get("tags", "").split(),
        priority=priority,
    )


def _priority(text: str, where: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigurationError(f"{where}: priority {text!r:.60}: write a number")
    return int(text)


def _data(text: str, where: str) -> object:
    try:
        return json.loads(text or "null")
    except ValueError as error:
        raise ConfigurationError(
            f'{where}: data is no JSON ({error}); write for example {{"customer": 7}}'
        ) from None


def _print(found: SyncReport, *, dry_run: bool) -> None:
    kinds = (
        ("added", found.added),
        ("changed", found.changed),
        ("removed", found.removed),
    )
    for kind, ids in kinds:
        if ids:
            more = f", … {len(ids) - SHOWN:,} more" if len(ids) > SHOWN else ""
            say(f"{kind}: {', '.join(ids[:SHOWN])}{more}", err=True)
    counts = ", ".join(f"{len(ids):,} {kind}" for kind, ids in kinds)
    would = "would be " if dry_run else ""
    say(
        f"{found.task}, scope {found.scope}: {would}{counts}; {found.unchanged:,} unchanged"
    )
    if dry_run and found.needs_force:
        say("more than a fifth would be removed: this needs --force", err=True)
