"""A real Prometheus scrapes real workers, and promtool reads what they export."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contrib.metrics.ports import (
    JOBS,
    ask,
    figures,
    free_port,
    port_of,
    wait_for_figures,
    wait_for_status,
)
from tests.integration.shell import Shell, wait_until
from tests.kit.programs import program

import slotwise.contrib.metrics
from slotwise.contrib.metrics.figures import FIGURES, Kind

SHIPPED = Path(slotwise.contrib.metrics.__file__).parent
RULES, DASHBOARD = SHIPPED / "alerts.yml", SHIPPED / "dashboard.json"


@pytest.fixture
def shell(tmp_path: Path, pg_url: str) -> Iterator[Shell]:
    made = Shell(tmp_path, pg_url)
    made.environment["SLOTWISE_APP"] = "jobs:registry"
    made.write("jobs.py", JOBS)
    yield made
    made.close()


@pytest.mark.extended
def test_what_a_worker_exports(shell: Shell) -> None:
    """Every figure of the table, of the right kind and with its labels; promtool has no
    complaint.
    """
    worker = shell.worker("--http", "127.0.0.1:0", ONLY="tick,bad,slow,mail")
    port = port_of(worker)
    worker.wait_until_seen("settled", 2, job="bad")
    worker.wait_until_seen("settled", 2, job="tick")
    found = wait_for_figures(
        port, lambda found: 'slotwise_since_success_seconds{name="tick"}' in found
    )
    assert (
        found[
            'slotwise_attempts_total{kind="slot",name="tick",outcome="succeeded",reason=""}'
        ]
        >= 2
    )
    assert (
        found[
            'slotwise_attempts_total{kind="slot",name="bad",outcome="failed",reason=""}'
        ]
        >= 2
    )
    assert found['slotwise_duration_seconds_count{kind="slot",name="tick"}'] >= 2
    assert found["slotwise_busy"] == 1
    assert 0 < found["slotwise_lease_left_seconds"] <= 1.8
    assert found["slotwise_capacity"] == 4
    assert found["slotwise_heartbeat_age_seconds"] < 5
    assert (
        found["slotwise_database_up"]
        == found["slotwise_ready"]
        == found["slotwise_workers"]
        == 1
    )
    status, text = ask(port, "/metrics")
    assert status == 200
    types = {
        line.split()[2]: line.split()[3]
        for line in text.splitlines()
        if line.startswith("# TYPE")
    }
    expected = {
        figure.name + "_total" * (figure.kind is Kind.COUNTER): figure.kind.value
        for figure in FIGURES.values()
    }
    assert types == {name: kind for name, kind in expected.items() if name in types}
    absent = set(expected) - set(types)
    assert absent == {"slotwise_shard_running"}, "a figure is never exported"
    checked = subprocess.run(
        [program("promtool", "prometheus"), "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.extended
def test_processes_are_summed(shell: Shell) -> None:
    """Counters and capacity are added up; the worst of the others counts."""
    pool = shell.worker("--processes", "2", "--http", "127.0.0.1:0")
    port = port_of(pool)
    wait_for_status(port, "/readyz", 200)
    pool.wait_until_seen("settled", 6, job="tick")
    settled = len([one for one in pool.events("settled") if one["job"] == "tick"])
    found = wait_for_figures(
        port, lambda found: "slotwise_backlog_age_seconds" in found
    )
    assert (found["slotwise_workers"], found["slotwise_capacity"]) == (2, 8)
    total = found[
        'slotwise_attempts_total{kind="slot",name="tick",outcome="succeeded",reason=""}'
    ]
    assert total >= settled
    assert (
        found['slotwise_duration_seconds_bucket{kind="slot",le="+Inf",name="tick"}']
        == total
    )


@pytest.mark.extended
def test_names_are_bounded(shell: Shell) -> None:
    """The first names have labels of their own; all others are one."""
    worker = shell.worker("--http", "127.0.0.1:0", SLOTWISE_METRICS_MAX_NAMES="1")
    worker.wait_until_seen("settled", 2, job="bad")
    worker.wait_until_seen("settled", 2, job="tick")
    found = figures(ask(port_of(worker), "/metrics")[1])
    names = {
        name.partition('name="')[2].partition('"')[0]
        for name in found
        if 'name="' in name
    }
    assert len(names) == 2
    assert "other" in names


@pytest.mark.extended
def test_prometheus_scrapes_a_worker(shell: Shell) -> None:
    """The figures arrive, and the shipped rules are evaluated on them: the alarm for failed
    attempts fires.
    """
    binary = program("prometheus", "prometheus")
    worker = shell.worker("--http", "127.0.0.1:0")
    target, own = port_of(worker), free_port()
    rules = shell.directory / "rules.yml"
    rules.write_text(RULES.read_text())
    (shell.directory / "prometheus.yml").write_text(
        f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: slotwise
    static_configs: [{{targets: ["127.0.0.1:{target}"]}}]
"""
    )
    server = subprocess.Popen(
        [
            binary,
            "--config.file=prometheus.yml",
            f"--web.listen-address=127.0.0.1:{own}",
            "--storage.tsdb.path=data",
            "--log.level=error",
        ],
        cwd=shell.directory,
    )
    try:
        wait_until(lambda: value(own, 'up{job="slotwise"}') == 1, "a scrape")
        wait_until(
            lambda: (value(own, 'slotwise_attempts_total{name="tick"}') or 0) > 1,
            "attempts",
        )
        wait_until(
            lambda: (
                (
                    value(
                        own, 'rate(slotwise_duration_seconds_count{name="tick"}[10s])'
                    )
                    or 0
                )
                > 0
            ),
            "a rate",
        )
        wait_until(lambda: "SlotwiseAttemptsFail" in alerts(own), "the alarm")
    finally:
        server.terminate()
        server.wait(30)


def query(port: int, path: str) -> dict[str, object]:
    status, body = ask(port, path)
    return json.loads(body)["data"] if status == 200 else {}  # type: ignore[no-any-return]


def value(port: int, expression: str) -> float | None:
    found = query(port, f"/api/v1/query?query={urllib.parse.quote(expression)}").get(
        "result"
    )
    return float(found[0]["value"][1]) if isinstance(found, list) and found else None


def alerts(port: int) -> set[str]:
    found = query(port, "/api/v1/alerts").get("alerts")
    return (
        {one["labels"]["alertname"] for one in found}
        if isinstance(found, list)
        else set()
    )


# -- what is shipped ------------------------------------------------------------------------------

NAME = re.compile(r"\bslotwise_\w+")
SUFFIXES = ("_bucket", "_count", "_sum", "_total")


def exported() -> set[str]:
    """Every name that a series can have."""
    found = set()
    for figure in FIGURES.values():
        kinds = {
            Kind.COUNTER: ["_total"],
            Kind.GAUGE: [""],
            Kind.HISTOGRAM: ["_bucket", "_count", "_sum"],
        }
        found |= {figure.name + suffix for suffix in kinds[figure.kind]}
    return found


def figure_of(name: str) -> str:
    return next(
        (
            name.removesuffix(one)
            for one in SUFFIXES
            if name.removesuffix(one) in FIGURES
        ),
        name,
    )


def labels_of(name: str) -> set[str]:
    return {*FIGURES[figure_of(name)].labels, "instance", "job", "le"}


def expressions() -> list[str]:
    return [
        target["expr"]
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel["targets"]
    ]


def test_the_rules_are_valid() -> None:
    told = subprocess.run(
        [program("promtool", "prometheus"), "check", "rules", RULES],
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    assert set(NAME.findall(RULES.read_text())) <= exported()


def test_the_dashboard_is_valid(tmp_path: Path) -> None:
    """Each expression parses, as a rule of its own, and names series and labels that are
    exported.
    """
    board = json.loads(DASHBOARD.read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    rules = [
        {
            "record": f"a{number}",
            "expr": one.replace("$__rate_interval", "1m").replace("$name", ".*"),
        }
        for number, one in enumerate(expressions())
    ]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    told = subprocess.run(
        [program("promtool", "prometheus"), "check", "rules", file],
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    for one in expressions():
        names = set(NAME.findall(one))
        assert names <= exported(), one
        known = set().union(*map(labels_of, names))
        for group in re.findall(r"by \(([^)]*)\)", one):
            assert {label.strip() for label in group.split(",")} <= known, one


def test_every_figure_is_on_the_dashboard_or_in_a_rule() -> None:
    """All but those that repeat others."""
    used = set(NAME.findall("\n".join(expressions()) + RULES.read_text()))
    shown = {
        next(
            (
                name.removesuffix(one)
                for one in SUFFIXES
                if name.removesuffix(one) in FIGURES
            ),
            name,
        )
        for name in used
    }
    assert set(FIGURES) - shown == {
        "slotwise_shard_running",  # of applications with shards alone
        "slotwise_database_outages",
        "slotwise_pool_waits",
        "slotwise_pool_connections",
        "slotwise_ready",
        "slotwise_draining",
    }


def test_rules_by_example(tmp_path: Path) -> None:
    """A stuck loop, an old backlog and a job without success raise their alarms; a healthy worker
    raises none.
    """
    (tmp_path / "alerts.yml").write_text(RULES.read_text())
    (tmp_path / "test.yml").write_text(EXAMPLES)
    told = subprocess.run(
        [program("promtool", "prometheus"), "test", "rules", "test.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stdout + told.stderr


EXAMPLES = """
rule_files: [alerts.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'slotwise_workers{instance="a"}', values: '1x30'}
      - {series: 'slotwise_loop_busy_seconds{instance="a",loop="poller"}', values: '0+60x30'}
      - {series: 'slotwise_backlog_age_seconds{instance="a"}', values: '0+60x30'}
      - {series: 'slotwise_overdue_seconds{instance="a",name="report"}', values: '3600+3600x30'}
      - {series: 'slotwise_database_up{instance="a"}', values: '1x30'}
    alert_rule_test:
      - eval_time: 1m
        alertname: SlotwiseLoopStuck
      - eval_time: 5m
        alertname: SlotwiseLoopStuck
        exp_alerts:
          - exp_labels: {severity: critical, instance: a, loop: poller}
            exp_annotations: {summary: "The loop poller of a hangs; restart the worker"}
      - eval_time: 4m
        alertname: SlotwiseBacklogOld
      - eval_time: 15m
        alertname: SlotwiseBacklogOld
        exp_alerts:
          - exp_labels: {severity: warning}
            exp_annotations:
              summary: "The oldest due row has waited for 15m 0s: too few workers, or none that knows it"
      - eval_time: 0m
        alertname: SlotwiseNoSuccess
      - eval_time: 2m
        alertname: SlotwiseNoSuccess
        exp_alerts:
          - exp_labels: {severity: warning, name: report}
            exp_annotations: {summary: "report has not succeeded since a slot that was due 3h 0m 0s ago"}
      - eval_time: 10m
        alertname: SlotwiseNoWorker
  - interval: 1m
    input_series:
      - {series: 'slotwise_running_seconds{instance="a",name="slow"}', values: '0+60x60'}
      - {series: 'slotwise_usual_duration_seconds{instance="a",name="slow"}', values: '300x60'}
      - {series: 'slotwise_running_seconds{instance="a",name="long"}', values: '0+60x60'}
      - {series: 'slotwise_usual_duration_seconds{instance="a",name="long"}', values: '3600x60'}
      - {series: 'slotwise_running_seconds{instance="a",name="new"}', values: '0+60x60'}
      - {series: 'slotwise_oldest_snapshot_seconds{instance="a"}', values: '0+120x60'}
      - {series: 'slotwise_paused_seconds{instance="a",name="report"}', values: '2588400+60x60'}
      - {series: 'slotwise_dead_tasks{instance="a",name="mail"}', values: '0x9 2x50'}
    alert_rule_test:
      - eval_time: 15m
        alertname: SlotwiseHandlerSlow
      - eval_time: 16m
        alertname: SlotwiseHandlerSlow
        exp_alerts:
          - exp_labels: {severity: warning, name: slow}
            exp_annotations:
              summary: "A handler of slow has run for 16m 0s, three times as long as usual"
      - eval_time: 34m
        alertname: SlotwiseOldSnapshot
      - eval_time: 37m
        alertname: SlotwiseOldSnapshot
        exp_alerts:
          - exp_labels: {severity: warning}
            exp_annotations:
              summary: "A transaction is 1h 14m 0s old and keeps vacuum from dead rows; see: slotwise dashboard, Database"
      - eval_time: 60m
        alertname: SlotwisePaused
      - eval_time: 9m
        alertname: SlotwiseTasksDead
      - eval_time: 12m
        alertname: SlotwiseTasksDead
        exp_alerts:
          - exp_labels: {severity: warning, name: mail}
            exp_annotations:
              summary: "mail has 2 dead rows, which are not retried; see: slotwise tasks list --state dead"
  - interval: 1m
    input_series:
      - {series: 'slotwise_database_up{instance="a"}', values: '1x10 0x10'}
    alert_rule_test:
      - eval_time: 5m
        alertname: SlotwiseDatabaseAway
      - eval_time: 15m
        alertname: SlotwiseDatabaseAway
        exp_alerts:
          - exp_labels: {severity: critical}
            exp_annotations: {summary: "No worker reaches the database"}
      - eval_time: 5m
        alertname: SlotwiseNoWorker
        exp_alerts:
          - exp_labels: {severity: critical}
            exp_annotations: {summary: "No slotwise worker reports: nothing runs"}
"""
