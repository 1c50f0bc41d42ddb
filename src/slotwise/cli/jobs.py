"""``slotwise jobs``: which jobs there are, and how each stands."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click
from rich.text import Text

from slotwise.cli.command import Command, Group
from slotwise.cli.options import Given, common, pass_given
from slotwise.cli.output import (
    ago,
    as_json,
    last_line,
    moment,
    outcome,
    print_fields,
    print_json,
    print_json_list,
    print_table,
)
from slotwise.contrib.logging import escaped
from slotwise.definition import Definition
from slotwise.errors import UnknownTask
from slotwise.store.lines import JobLine
from slotwise.store.revision import Revision


@click.group(cls=Group, examples="slotwise jobs list\nslotwise jobs show nightly-report")
@common
def jobs() -> None:
    """Which jobs there are, and how each stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A job in the database, in the application, or in both."""

    name: str
    line: JobLine | None
    definition: Definition | None
    compared: bool

    @property
    def code(self) -> str | None:
        """How the application sees it; None where no application was named."""
        if not self.compared:
            return None
        if self.definition is None:
            return "orphan"
        if self.line is None:
            return "not planned"
        return "same" if str(self.definition.schedule) == self.line.schedule else "changed"

    @property
    def json(self) -> dict[str, Any]:
        known = {"job": self.name, **(as_json(self.line) if self.line else {"state": "not planned"})}
        return {**known, "code": self.code} if self.compared else known


@jobs.command(
    "list",
    cls=Command,
    examples="""
    slotwise jobs list
    slotwise jobs list --app jobs            also: what the code has and the database not, and the reverse
    slotwise jobs list --json | jq -r '.[] | select(.consecutive_failures > 0) | .job'
    """,
)
@common
@pass_given
def list_jobs(given: Given) -> None:
    """All jobs that have a row in the database, by name.

    With --app, jobs are compared with the application: "orphan" is no longer in the code, "not planned" has
    no row before a worker starts, "changed" has another schedule in the code than in the row, which decides.
    A job that is due and that no live worker can take is "unroutable"; the reason stands below.

    Below the list: jobs of which live workers have another schedule, refused because a newer revision planned them.
    """
    definitions = _definitions(given)
    with given.reader() as reader:
        entries, now = _entries(reader.jobs(), definitions), reader.now()
    if given.json:
        print_json_list(entry.json for entry in entries)
        return
    if not entries:
        click.echo("no jobs yet: a worker plans them when it starts")
        return
    columns = ["JOB", "STATE", "NEXT SLOT", "LAST SUCCESS", "FAILURES", "SCHEDULE"]
    print_table([*columns, "CODE"] if definitions is not None else columns, [_row(entry, now) for entry in entries])
    for line in (entry.line for entry in entries):
        if line is not None and line.reason:
            click.echo(f"{escaped(line.job)} is due, and unroutable: {line.reason}", err=True)
        if line is not None and line.refused:
            click.echo(f"{escaped(line.job)}: {_refused(line)}", err=True)


def _definitions(given: Given) -> Mapping[str, Definition] | None:
    """The application's jobs, if the command line names an application."""
    if "app" not in given.values:
        return None
    return {found.name: found for found in given.registry().jobs}


def _entries(lines: Sequence[JobLine], definitions: Mapping[str, Definition] | None) -> list[_Entry]:
    rows = {line.job: line for line in lines}
    found = definitions or {}
    return [
        _Entry(name=name, line=rows.get(name), definition=found.get(name), compared=definitions is not None)
        for name in sorted({*rows, *found})
    ]


def _row(entry: _Entry, now: datetime) -> list[str | Text]:
    line = entry.line
    code = [entry.code] if entry.code is not None else []
    if line is None:
        schedule = str(entry.definition.schedule) if entry.definition else ""
        return [entry.name, outcome("not planned"), "–", "–", "–", schedule, *code]
    failures = str(line.consecutive_failures) if line.consecutive_failures else "–"
    times = [moment(line.next_slot), ago(line.last_success, now)]
    return [entry.name, outcome(line.state), *times, failures, line.schedule, *code]


@jobs.command(
    "show", cls=Command, examples="slotwise jobs show nightly-report\nslotwise jobs show nightly-report --json"
)
@click.argument("name")
@common
@pass_given
def show_job(given: Given, name: str) -> None:
    """Everything the database knows about the job NAME."""
    with given.reader() as reader:
        line = reader.job(name)
        if line is None:
            raise UnknownTask(_unknown(name, [known.job for known in reader.jobs()]))
    if given.json:
        print_json(line)
        return
    print_fields(_fields(line))


def _fields(line: JobLine) -> list[tuple[str, str | Text]]:
    return [
        ("job", line.job),
        ("state", outcome(line.state)),
        *([("reason", line.reason)] if line.reason else []),
        ("schedule", line.schedule),
        ("next slot", moment(line.next_slot)),
        ("due", moment(line.due)),
        ("attempt", str(line.attempt)),
        ("worker", line.worker or "–"),
        ("heartbeat", moment(line.heartbeat)),
        ("last success", moment(line.last_success)),
        ("last failure", moment(line.last_failure)),
        ("failures in a row", str(line.consecutive_failures)),
        ("last error", last_line(line.last_error) or "–"),
        ("priority", str(line.priority)),
        ("runs on", ", ".join(line.runs_on) or "any worker"),
        ("revision", _planned_by(line)),
        *([("refused", _refused(line))] if line.refused else []),
    ]


def _planned_by(line: JobLine) -> str:
    """By which deploy its schedule came."""
    return str(Revision(text=line.revision, started=line.deployed)) if line.revision or line.deployed else "–"


def _refused(line: JobLine) -> str:
    """Who proposes another schedule and was not heard."""
    whose = Counter(worker["revision"] for worker in line.refused)
    told = ", ".join(f"{count} with revision {revision or 'none'}" for revision, count in whose.items())
    return f"live workers whose schedule was refused: {told}; revision {_planned_by(line)} has planned it"


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"no job {name!r} in this database; did you mean {near[0]!r}?"
    cure = f"known are {', '.join(known)}" if known else "a worker plans its jobs when it starts"
    return f"no job {name!r} in this database; {cure}"
