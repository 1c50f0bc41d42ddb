"""``slotwise jobs``: the jobs in the database and their states."""

from __future__ import annotations

import difflib
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from zoneinfo import ZoneInfo

import click
from rich.text import Text

from slotwise import UnknownTask
from slotwise.cli.instances import chosen
from slotwise.cli.shared.options import (
    Command,
    Given,
    common,
    lines_option,
    of_instances,
    pass_given,
)
from slotwise.cli.shared.output import (
    ago,
    as_json,
    failed_of_all,
    outcome,
    print_fields,
    print_json,
    print_json_list,
    print_table,
    run_time,
    warn_paused,
)
from slotwise.cli.shared.terminal import moment, say
from slotwise.cli.shared.values import duration
from slotwise.cli.upcoming import NOT_A_BUSINESS_DAY, as_it_runs, passed_over
from slotwise.contrib.wording import counted
from slotwise.inspect import (
    RECURRING,
    Inspection,
    JobInfo,
    JobRates,
    Rate,
    describe_schedule,
    zone_of,
)
from slotwise.operations import InstanceFilter
from slotwise.spi import (
    Definition,
    ListedState,
    error_summary,
    format_duration,
    short_duration,
)

#: Lines of a table of jobs.
LINES = 100
#: Lines of a table of recurring instances.
INSTANCE_LINES = 20
#: Lines that are read at once.
PAGE = 500
_COLUMNS = ("JOB", "STATE", "NEXT SLOT", "LAST SUCCESS", "FAILURES", "SCHEDULE")
#: How a job fares; they come before its schedule.
_RATES = ("LAST 20", "24 HOURS", "RUN TIME")
#: Left out on a narrow terminal.
_SPARE = ("LAST SUCCESS", "24 HOURS", "FAILURES", "RUN TIME", "LAST 20")


@click.command(
    cls=Command,
    examples="""
    slotwise jobs
    slotwise jobs --after report-17 -n 500
    slotwise jobs --app jobs                 also: compared with the code
    slotwise jobs --json | jq -r '.[] | select(.consecutive_failures > 0) | .job'
    slotwise jobs nightly-report
    slotwise jobs poll-feed --instances --after customer-17 -n 50
    slotwise jobs poll-feed --instances --failing
    slotwise jobs poll-feed --instances --stale 1h --tag gold
    slotwise jobs poll-feed --id customer-17
    """,
)
@click.argument("name", required=False)
@click.option(
    "--instances", is_flag=True, help="List the recurring instances of NAME."
)
@click.option("--id", metavar="ID", help="Show this recurring instance of NAME.")
@click.option(
    "--failing", is_flag=True, help="Of the instances, those whose last run failed."
)
@click.option(
    "--stale",
    metavar="DURATION",
    callback=duration,
    help="Of the instances, those without a success for so long.",
)
@of_instances
@lines_option(
    None, f"At most this many lines; by default {LINES}, with --json all the jobs."
)
@click.option("--all", "everything", is_flag=True, help="All lines.")
@click.option("--after", default="", help="Only those with greater names, or ids.")
@common
@pass_given
def jobs(
    given: Given,
    name: str | None,
    instances: bool,
    id: str | None,
    count: int | None,
    everything: bool,
    after: str,
    failing: bool,
    stale: timedelta | None,
) -> None:
    """List the jobs in the database, by name, or show one.

    With --instances, list the recurring instances of the task NAME, by id: those that
    client.schedule_recurring created.

    With --app, jobs are compared with the application: "orphan" is no longer in the code,
    "not_planned" has no row before a worker starts, "changed" has different schedules in the code
    and in the row; the row decides. A due job is "no_live_worker" if none is up, and "unroutable"
    if no live worker can claim it. A job whose row has an invalid value is "unreadable". The
    reasons are printed below the list, and the jobs for which live workers have a schedule that a
    newer revision has replaced.

    NEXT SLOT is the next one that runs, after those that a calendar excludes.

    LAST 20 has the newest outcomes on the right: ✓ succeeded, ✗ failed, · cancelled or skipped.
    24 HOURS has the failed ones among the runs. RUN TIME is the median of the last week; of a job
    that runs now, how long it has run, of that median.
    """
    if name is None and (instances or id is not None):
        raise click.UsageError("--instances and --id need a NAME")
    is_filtered = bool(given.chosen) or failing or stale is not None
    if is_filtered and not instances:
        raise click.UsageError(
            "--failing, --stale, --scope, --tag and --prefix need --instances"
        )
    if name is None:
        _list_jobs(given, count, everything, after)
    elif instances:
        wanted = _Instances(
            name=name, where=chosen(given), failing=failing, stale=stale
        )
        none = "no such instances" if is_filtered else "no recurring instances"
        count = count or INSTANCE_LINES
        _list_instances(given, wanted, count, everything, after, none)
    else:
        _show_job(given, name, id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A job in the database, in the application, or in both."""

    name: str
    line: JobInfo | None
    definition: Definition | None
    #: What a deploy of the application would change; None without an application.
    change: str | None

    @property
    def code(self) -> str | None:
        """The job compared with the application; None without an application."""
        if self.change is None:
            return None
        if self.definition is None:
            return "orphan"
        if self.line is None:
            return ListedState.NOT_PLANNED
        return "changed" if self.change in ("changed", "outdated") else "same"

    @property
    def json(self) -> dict[str, object]:
        known: dict[str, object] = {
            "job": self.name,
            **(
                as_json(self.line) if self.line else {"state": ListedState.NOT_PLANNED}
            ),
        }
        return known if self.change is None else {**known, "code": self.code}


def _list_jobs(given: Given, count: int | None, everything: bool, after: str) -> None:
    application = _application(given)
    with given.inspection() as inspect:
        if given.json:
            print_json_list(
                islice(_with_instances(inspect, application, after), count)
            )
            return
        warn_paused(inspect.all_paused())
        entries = _entries(inspect, application, after)
        now = inspect.now()
        size = count or LINES
        shown = 0
        last = after
        while page := list(
            islice(entries, PAGE if everything else min(PAGE, size - shown))
        ):
            rates = inspect.rates_of([entry.name for entry in page])
            _print_page(page, rates, now, compared=application is not None)
            shown = shown + len(page)
            last = page[-1].name
        has_more = next(entries, None) is not None
        counts = inspect.instance_counts(after=after, until=last if has_more else None)
    if not shown and not counts and not after:
        say("no jobs yet: a worker plans them when it starts")
    for name, number in sorted(counts.items()):
        say(
            f"{name}: {counted(number, 'recurring instance')}; see: slotwise jobs "
            f"{shlex.quote(name)} --instances"
        )
    if has_more:
        lines = "" if count is None else f" -n {count}"
        say(f"… more: slotwise jobs --after {shlex.quote(last)}{lines}", err=True)


def _print_page(
    page: Sequence[_Entry],
    rates: Mapping[str, JobRates],
    now: datetime,
    *,
    compared: bool,
) -> None:
    columns = [*_COLUMNS[:-1], *_RATES, _COLUMNS[-1]]
    print_table(
        [*columns, "CODE"] if compared else columns,
        [_row(entry, rates[entry.name], now) for entry in page],
        spare=_SPARE,
        folds="SCHEDULE",
    )
    for line in (entry.line for entry in page):
        if line is not None and line.reason:
            say(f"{line.job} {_plight(line)}: {line.reason}", err=True)
        if line is not None and line.refused:
            say(f"{line.job}: {_refused(line)}", err=True)


def _plight(line: JobInfo) -> str:
    match line.state:
        case ListedState.NO_LIVE_WORKER:
            return "is due"
        case ListedState.UNROUTABLE:
            return "is due, and unroutable"
        case ListedState.UNREADABLE:
            since = (
                f", due since {moment(line.next_slot, zone_of(line.schedule))}"
                if line.next_slot
                else ""
            )
            return (
                f"is left alone{since}" if line.is_newer else f"is unreadable{since}"
            )
    return "does not start"


def _with_instances(
    inspect: Inspection, application: _Application | None, after: str
) -> Iterator[dict[str, object]]:
    """Each job with its rates and the number of its recurring instances; then the tasks that have
    only instances.
    """
    counts = inspect.instance_counts(after=after)
    entries = _entries(inspect, application, after)
    while page := list(islice(entries, PAGE)):
        rates = inspect.rates_of([entry.name for entry in page])
        for entry in page:
            found = entry.json | {"rates": as_json(rates[entry.name])}
            if (number := counts.pop(entry.name, None)) is not None:
                found["instances"] = number
            yield found
    for name, number in sorted(counts.items()):
        yield {"job": name, "state": ListedState.INSTANCES, "instances": number}


@dataclass(frozen=True, slots=True)
class _Application:
    """The application's jobs, and what its deploy would change of each."""

    definitions: Mapping[str, Definition]
    changes: Mapping[str, str]


def _application(given: Given) -> _Application | None:
    """Return the application, if the command line names one."""
    if "app" not in given.values:
        return None
    registry = given.registry()
    return _Application(
        {found.name: found for found in registry.jobs},
        {found.job: found.change for found in registry.preview()},
    )


def _entries(
    inspect: Inspection, application: _Application | None, after: str
) -> Iterator[_Entry]:
    """Read page by page, while the caller iterates; the jobs of the application that have no row
    come last.
    """
    found = application.definitions if application else {}
    changes = application.changes if application else {}
    unknown = "" if application else None
    while page := inspect.jobs(after=after, limit=PAGE):
        for line in page:
            yield _Entry(
                name=line.job,
                line=as_it_runs(line),
                definition=found.get(line.job),
                change=changes.get(line.job, unknown),
            )
        after = page[-1].job
    for name in sorted(found.keys() - inspect.jobs_among(found)):
        yield _Entry(name=name, line=None, definition=found[name], change="added")


def _row(entry: _Entry, rates: JobRates, now: datetime) -> list[str | Text]:
    line = entry.line
    code = [entry.code] if entry.code is not None else []
    if line is None:
        unknown = ["–"] * (len(_COLUMNS) + len(_RATES) - 3)
        state = outcome(ListedState.NOT_PLANNED)
        return [entry.name, state, *unknown, _declared_schedule(entry), *code]
    *cells, told = _cells(line, now)
    fares = [
        rates.strip or "–",
        failed_of_all(rates.day),
        run_time(line, rates.week, now),
    ]
    return [entry.name, *cells, *fares, told, *code]


def _declared_schedule(entry: _Entry) -> str:
    if entry.definition is None or entry.definition.schedule is None:
        return ""
    return describe_schedule(entry.definition.schedule)


def _cells(line: JobInfo, now: datetime) -> list[str | Text]:
    """All columns but the name."""
    failures = str(line.consecutive_failures) if line.consecutive_failures else "–"
    next_slot = moment(line.next_slot, zone_of(line.schedule))
    return [
        outcome(line.state),
        next_slot,
        ago(line.last_success, now),
        failures,
        describe_schedule(line.schedule),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instances:
    """The instances of a task that a list shows."""

    name: str
    where: InstanceFilter | None
    failing: bool
    stale: timedelta | None

    def each(self, inspect: Inspection, after: str) -> Iterator[JobInfo]:
        """Read page by page, while the caller iterates."""
        read = partial(
            inspect.instances,
            self.name,
            limit=PAGE,
            where=self.where,
            failing=self.failing,
            stale=self.stale,
        )
        while page := read(after=after):
            yield from map(as_it_runs, page)
            after = page[-1].id

    def next_page(self, given: Given, count: int, after: str) -> str:
        """Return the command for the instances after this one."""
        words = ["slotwise", "jobs", self.name, "--instances"]
        for option, value in given.chosen.items():
            words += [f"--{option}", value]
        if self.failing:
            words.append("--failing")
        if self.stale is not None:
            words += ["--stale", format_duration(self.stale)]
        if count != INSTANCE_LINES:
            words += ["-n", str(count)]
        return shlex.join([*words, "--after", after])


def _list_instances(
    given: Given,
    wanted: _Instances,
    count: int,
    everything: bool,
    after: str,
    none: str,
) -> None:
    with given.inspection() as inspect:
        inspect.check_name(wanted.name)
        found = wanted.each(inspect, after)
        if given.json:
            print_json_list(found if everything else islice(found, count))
            return
        lines = list(found if everything else islice(found, count + 1))
        now = inspect.now()
    if not lines:
        say(f"{wanted.name}: {none}")
        return
    shown = lines if everything else lines[:count]
    print_table(
        ("ID", *_COLUMNS[1:]),
        [[line.id, *_cells(line, now)] for line in shown],
        spare=_SPARE,
        folds="SCHEDULE",
    )
    if len(shown) < len(lines):
        say(f"… more: {wanted.next_page(given, count, shown[-1].id)}", err=True)


def _show_job(given: Given, name: str, id: str | None) -> None:
    with given.inspection() as inspect:
        line = inspect.job(name, id=id)
        if line is None and id is not None:
            inspect.check_name(name)
            raise UnknownTask(
                f"{name!r} has no recurring instance {id!r}; see: slotwise jobs {name} --instances"
            )
        if line is None:
            is_task = any(
                worker.live and name in worker.tasks for worker in inspect.workers()
            )
            raise UnknownTask(
                _unknown(
                    name,
                    [known.job for known in inspect.jobs(limit=PAGE)],
                    is_task=is_task,
                )
            )
        rates = inspect.rates(line.job)
    if given.json:
        print_json({**as_json(as_it_runs(line)), "rates": as_json(rates)})
        return
    print_fields([*_fields(line), *_rates(rates)])


def _rates(rates: JobRates) -> list[tuple[str, str | Text]]:
    return [
        ("last 20", rates.strip or "–"),
        ("last 24 hours", _rate(rates.day)),
        ("last 7 days", _rate(rates.week)),
    ]


def _rate(rate: Rate) -> str:
    if not rate.runs:
        return f"no runs, {rate.skipped:,} skipped" if rate.skipped else "no runs"
    took = _usual(rate.duration_p50, rate.duration_p95)
    late = _usual(rate.lateness_p50, rate.lateness_p95)
    return (
        f"{counted(rate.runs, 'run')}, {rate.failures:,} failed, {rate.skipped:,} skipped; "
        f"took {took}; late by {late}"
    )


def _usual(half: timedelta | None, most: timedelta | None) -> str:
    return f"{short_duration(half)}, 95 % at most {short_duration(most)}"


def _fields(line: JobInfo) -> list[tuple[str, str | Text]]:
    zone = zone_of(line.schedule)
    return [
        ("job", line.job),
        *([("id", line.id)] if line.id != RECURRING else []),
        ("state", outcome(line.state)),
        *([("reason", line.reason)] if line.reason else []),
        ("schedule", describe_schedule(line.schedule)),
        ("time zone", zone.key),
        ("next slot", moment(as_it_runs(line).next_slot, zone)),
        *_excluded(line, zone),
        ("due", moment(line.due, zone)),
        ("running since", moment(line.running_since, zone)),
        ("attempt", str(line.attempt)),
        ("worker", line.worker or "–"),
        ("heartbeat", moment(line.heartbeat, zone)),
        ("last success", moment(line.last_success, zone)),
        ("last failure", moment(line.last_failure, zone)),
        ("failures in a row", str(line.consecutive_failures)),
        ("last error", error_summary(line.last_error) or "–"),
        ("priority", str(line.priority)),
        ("runs on", ", ".join(line.runs_on) or "any worker"),
        ("revision", _planned_by(line)),
        *([("refused", _refused(line))] if line.refused else []),
    ]


def _excluded(line: JobInfo, zone: ZoneInfo) -> list[tuple[str, str | Text]]:
    """The slot before the next one that runs."""
    excluded = passed_over(line)
    if excluded is None:
        return []
    return [("before that", f"{moment(excluded, zone)}, {NOT_A_BUSINESS_DAY}")]


def _planned_by(line: JobInfo) -> str:
    """The deploy that planned its schedule."""
    started = (
        f"none (started {moment(line.deployed, zone_of(line.schedule))})"
        if line.deployed
        else "–"
    )
    return line.revision or started


def _refused(line: JobInfo) -> str:
    """The live workers whose schedule was refused."""
    whose = Counter(worker["revision"] for worker in line.refused)
    told = ", ".join(
        f"{count} with revision {revision or 'none'}"
        for revision, count in whose.items()
    )
    return (
        f"live workers whose schedule was refused: {told}; revision "
        f"{_planned_by(line)} has planned it"
    )


def _unknown(name: str, known: Sequence[str], *, is_task: bool) -> str:
    if is_task:
        return (
            f"live workers register {name!r} as a one-time task; see: slotwise tasks "
            f"list {shlex.quote(name)}"
        )
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"no job {name!r} in this database; did you mean {near[0]!r}?"
    cure = (
        f"known are {', '.join(known)}"
        if known
        else "a worker plans its jobs when it starts"
    )
    return f"no job {name!r} in this database; {cure}"
