"""The exported rules fire on planted faults and on nothing else, in a simulated month of hourly,
weekly, monthly, disabled and per-customer jobs.

A worker on a clock that the test moves runs the month; the cluster's figures are taken as a scrape
does; promtool evaluates the rules that are shipped on each hour of that month. The slow form
scrapes each hour; the other one those in which something can begin or end, and takes the figures to
stay in the hours between.
"""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.contrib.metrics.test_prometheus import RULES
from tests.kit.programs import program

from slotwise import (
    Disabled,
    JobContext,
    JobRegistry,
    Schedule,
    TaskContext,
    job,
    task,
)
from slotwise.contrib.metrics import Metrics
from slotwise.spi import FunctionJob
from slotwise.testing import ManualClock, ManualWorker

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
#: A Thursday. The first slots of each job are before it.
START = datetime(2026, 10, 1, tzinfo=UTC)
WARM_UP = timedelta(days=35)
HOURS = 31 * 24
#: Rules of one process, and of counters, which a scrape each hour cannot show.
CLUSTER_RULES = {
    "SlotwiseNoSuccess",
    "SlotwiseTasksDead",
    "SlotwisePaused",
    "SlotwiseOldSnapshot",
    "SlotwiseBacklogOld",
    "SlotwiseDatabaseAway",
    "SlotwiseNoWorker",
    "SlotwiseHandlerSlow",
}
#: What happens, by the hour of the month.
FAULTS: dict[int, Callable[[Month], object]] = {
    # the weekly job fails on Monday the 5th at 02:00, and succeeds a week later
    4 * 24 + 1: lambda month: month.fails.add("weekly"),
    4 * 24 + 3: lambda month: month.fails.discard("weekly"),
    # customer b's report fails at 06:00 of the 8th and the 9th
    7 * 24 + 5: lambda month: month.fails.add("report/b"),
    9 * 24 + 5: lambda month: month.fails.discard("report/b"),
    # the hourly job is paused for two days, and then goes on
    12 * 24: lambda month: month.client.operations.pause("hourly", note="month end"),
    14 * 24: lambda month: month.client.operations.resume("hourly"),
    # a customer's monthly report becomes an hourly one
    16 * 24: lambda month: month.client.schedule_recurring(
        "report", "m", "0 * * * *", "m"
    ),
    # a mail dies, and somebody deletes it a day later
    20 * 24: lambda month: month.client.schedule("mail", "x", id="1"),
    21 * 24: lambda month: month.client.cancel("mail", "1"),
    # no worker runs in the night of Monday the 26th: from 01:00 to 06:00
    25 * 24 + 1: lambda month: month.works.clear(),
    25 * 24 + 6: lambda month: month.works.add("worker"),
}


def hours(day: int, first: int, last_day: int, last: int) -> set[int]:
    """Hours from one of a day to before another, days from 1."""
    return set(range((day - 1) * 24 + first, (last_day - 1) * 24 + last))


#: When which rule is to fire, and about which name: success is missed for more than two hours.
EXPECTED: dict[tuple[str, str], set[int]] = {
    ("SlotwiseNoSuccess", "weekly"): hours(5, 5, 12, 2) | hours(26, 5, 26, 6),
    ("SlotwiseNoSuccess", "report"): hours(8, 9, 10, 6) | hours(26, 5, 26, 6),
    ("SlotwiseNoSuccess", "hourly"): hours(26, 5, 26, 6),
    ("SlotwiseNoSuccess", "daily"): hours(26, 5, 26, 6),
    ("SlotwiseTasksDead", "mail"): hours(21, 0, 22, 0),
}


#: Hours around each fault and around what it causes; between them nothing begins or ends.
BUSY = sorted(
    {0}
    | {hour + near for hour in FAULTS for near in range(-1, 9)}
    | {
        edge + near
        for fires in EXPECTED.values()
        for edge in fires
        if not {edge - 1, edge + 1} <= fires
        for near in range(-2, 3)
    }
)


class Month:
    """Jobs of all kinds, on a clock that starts a month before the one that is looked at."""

    def __init__(self, url: str) -> None:
        self.fails: set[str] = set()
        self.works = {"worker"}
        self.clock = ManualClock(START - WARM_UP)

        schedules = {
            "hourly": "0 * * * *",
            "daily": "0 2 * * *",
            "weekly": "0 2 * * 1",
            "monthly": "0 3 1 * *",
            "off": Disabled(),
        }

        @task(name="report", retry=None)
        def report(ctx: TaskContext[str]) -> None:
            if f"report/{ctx.data}" in self.fails:
                raise OSError("no space left")

        @task(name="mail", retry=None)
        def mail(ctx: TaskContext[str]) -> None:
            raise ValueError("relay refused")

        self.registry = JobRegistry(
            jobs=[self._job(name, text) for name, text in schedules.items()],
            tasks=[report, mail],
            clock=self.clock,
            database_url=url,
        )
        self.metrics = Metrics(self.registry)
        self.worker = ManualWorker(self.registry, url, self.clock)
        self.worker.plan()
        self.client = self.registry.client
        for customer, text in (
            ("a", "0 5 * * *"),
            ("b", "0 6 * * *"),
            ("m", "0 7 1 * *"),
        ):
            self.client.schedule_recurring("report", customer, text, customer)

    def _job(self, name: str, schedule: Schedule | str) -> FunctionJob:
        @job(name=name, schedule=schedule)
        def run(ctx: JobContext) -> None:
            if name in self.fails:
                raise OSError("no space left")

        return run

    def pass_time(self, span: timedelta = HOUR) -> None:
        self.worker.tick(span)
        while self.works and self.worker.run_due():
            pass


@pytest.fixture
def month(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Month]:
    monkeypatch.setattr("slotwise.contrib.metrics.meter.FRESH", 0.0)
    found = Month(sqlite_url)
    try:
        yield found
    finally:
        found.worker.close()
        found.registry.database.close()


def series_of(month: Month, scraped: Sequence[int]) -> dict[str, list[str]]:
    """Return the values of each series, hour by hour; ``_`` where it has none. After each hour of
    ``scraped`` they stay as they are until the next one.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for hour, following in pairwise([*scraped, HOURS]):
        if hour in FAULTS:
            FAULTS[hour](month)
            month.worker.run_due()
        snapshot = month.metrics.snapshot()
        snapshot["slotwise_workers"] = {(): 1}
        for name in CLUSTER_FIGURES:
            for labels, value in snapshot.get(name, {}).items():
                label = f',name="{labels[0]}"' if labels else ""
                values = found[f'{name}{{instance="a"{label}}}']
                values += ["_"] * (hour - len(values))
                values += [f"{value:g}"] * (following - hour)
        month.pass_time((following - hour) * HOUR)
    return found


CLUSTER_FIGURES = (
    "slotwise_workers",
    "slotwise_overdue_seconds",
    "slotwise_paused_seconds",
    "slotwise_dead_tasks",
    "slotwise_oldest_snapshot_seconds",
    "slotwise_backlog_age_seconds",
    "slotwise_database_up",
    "slotwise_running_seconds",
    "slotwise_usual_duration_seconds",
)


def cases_of(rules: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what promtool is to find, for each rule and hour."""
    severity = {rule["alert"]: rule["labels"]["severity"] for rule in rules}
    for rule in sorted(CLUSTER_RULES - {"SlotwiseBacklogOld"}):
        for hour in range(HOURS):
            names = [
                name
                for (alert, name), fires in EXPECTED.items()
                if alert == rule and hour in fires
            ]
            labels = [{"severity": severity[rule], "name": name} for name in names]
            yield {
                "eval_time": f"{hour}h",
                "alertname": rule,
                "exp_alerts": [{"exp_labels": one} for one in labels],
            }


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "scraped",
    [
        pytest.param(BUSY, id="busy-hours"),
        pytest.param(range(HOURS), id="each-hour", marks=pytest.mark.slow),
    ],
)
def test_the_rules_fire_on_faults_alone(
    month: Month, scraped: Sequence[int], tmp_path: Path
) -> None:
    assert set(FAULTS) <= set(scraped)
    for _ in range(WARM_UP // DAY):
        month.pass_time(DAY)
    series = series_of(month, scraped)
    groups = yaml.safe_load(RULES.read_text())
    rules = [
        one for one in groups["groups"][0]["rules"] if one["alert"] in CLUSTER_RULES
    ]
    assert {one["alert"] for one in rules} == CLUSTER_RULES
    for one in rules:
        del one["annotations"]  # they are compared by another test
    (tmp_path / "rules.yml").write_text(
        yaml.safe_dump({"groups": [{"name": "slotwise", "rules": rules}]})
    )
    cases = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1h",
        "tests": [
            {
                "interval": "1h",
                "input_series": [
                    {"series": name, "values": " ".join(values)}
                    for name, values in series.items()
                ],
                "alert_rule_test": list(cases_of(rules)),
            }
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps(cases))
    told = subprocess.run(
        [program("promtool", "prometheus"), "test", "rules", "test.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, (told.stdout + told.stderr)[:4000]
