"""Each page, over HTTP, by both faces: what it shows of a cluster, and its JSON."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from tests.contrib.dashboard import world
from tests.contrib.dashboard.site import Site, served

from slotwise import (
    CatchUp,
    Every,
    JobContext,
    JobRegistry,
    Overlap,
    Retry,
    job,
)
from slotwise.contrib.dashboard import Dashboard, Request, operations
from slotwise.contrib.dashboard.exchange import HEADERS
from slotwise.contrib.dashboard.pages import PAGES, tasks
from slotwise.contrib.dashboard.rendering import Moments
from slotwise.contrib.dashboard.source import Source
from slotwise.inspect import OutcomeCount
from slotwise.payload.checkpoints import encode_checkpoint

#: A slot of the gap, also if the next hour begins before the tables are filled.
AT = (
    datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    - timedelta(hours=2, minutes=15)
).isoformat()
#: Each page with the values that it needs, and a text that it shows.
SHOWN = [
    ("/", {}, "slots were due since midnight"),
    ("/timeline", {}, "worker absent: 17 slots"),
    ("/jobs", {}, "poll-orders"),
    ("/job", {"name": "nightly-report"}, "At 02:30 every day"),
    ("/job", {"name": world.CJK_NAME}, world.CJK_NAME),
    ("/instant", {"name": "poll-orders", "at": AT}, "skipped"),
    ("/what-if", {"name": "nightly-report", "schedule": "0 3 * * *"}, "Slots removed"),
    ("/tasks", {"name": "send-mail", "state": "dead"}, "relay refused"),
    ("/task", {"name": "send-mail", "id": "order-1"}, "ada@example.com"),
    ("/load", {}, "The busiest minutes"),
    ("/workers", {}, "worker-2"),
    ("/calendars", {}, "AT"),
    ("/calendar", {"name": "AT"}, "2026-12-25"),
    ("/audit", {}, "until the audit is through"),
    ("/database", {}, "Live workers"),
]


def test_each_page_is_listed_here() -> None:
    """A page without a test is none."""
    assert {path for path, _, _ in SHOWN} == set(PAGES)


def test_each_page_shows_what_the_tables_have(site: Site) -> None:
    """As HTML with the navigation, and as JSON of the same data under ``.json``."""
    for path, given, text in SHOWN:
        page = site.get(path, **given)
        assert page.status == 200, page.text
        assert text in page.text, path
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        data = site.get("/today.json" if path == "/" else f"{path}.json", **given)
        assert data.status == 200
        assert data.headers["content-type"] == "application/json"
        assert data.json["missing"] == {}
        assert data.json["now"].endswith("Z")


def test_the_timeline_has_what_concerns_all_rows(site: Site) -> None:
    """Deploys, and times without any worker."""
    text = site.get("/timeline").text
    assert "no worker was alive" in text
    assert "planned by the deploy release-41: poll-orders from */10" in text


def test_today_groups_what_did_not_run(site: Site) -> None:
    """By reason, from the hourly counts."""
    skips = site.get("/today.json").json["skips"]
    found = [
        (one["reason"], one["count"], one["jobs"], one["example"]) for one in skips
    ]
    assert found == [("worker_absent", 17, 1, "poll-orders")]


def test_every_answer_has_the_headers(site: Site) -> None:
    """Pages, JSON, files, errors and refusals: none is stored, framed or sniffed."""
    for path in ("/", "/jobs.json", "/static/page.css", "/none", "/job"):
        answer = site.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name.lower()] == value, path


def test_files_are_served(site: Site) -> None:
    """The style, the script and the icon, and nothing beside them."""
    assert site.get("/static/page.css").headers["content-type"].startswith("text/css")
    assert site.get("/static/page.js").status == 200
    for path in ("/static/", "/static/../dashboard.py", "/static/%2e%2e/dashboard.py"):
        assert site.get(path).status == 404


def test_a_page_that_has_not_changed_is_not_sent_again(site: Site) -> None:
    """Its ETag says so; the answer has the database's time."""
    first = site.get("/calendars")
    again = site.get("/calendars", {"if-none-match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["slotwise-as-of"] >= first.headers["slotwise-as-of"]


def test_an_address_that_shows_nothing_says_why(site: Site) -> None:
    """In one line, without a traceback."""
    for path, given, status in (
        ("/nothing", {}, 404),
        ("/job", {}, 400),
        ("/job", {"name": "unknown"}, 404),
        ("/instant", {"name": "poll-orders"}, 400),
        ("/instant", {"name": "poll-orders", "at": "yesterday"}, 400),
        ("/timeline", {"from": "9999-12-31T23:59:59Z"}, 400),
        ("/timeline", {"to": "0001-01-01T00:00:00+14:00"}, 400),
        ("/tasks", {"name": "send-mail", "state": "sleeping"}, 400),
        ("/task", {"name": "send-mail", "id": "none"}, 404),
        ("/calendar", {"name": "XX"}, 404),
        ("/what-if", {"name": "unknown"}, 404),
        ("/what-if", {"name": "poll-orders", "days": "0"}, 400),
        ("/what-if", {"name": "poll-orders", "free": "soon"}, 400),
        ("/job", {"name": "\x00"}, 400),
    ):
        answer = site.get(path, **given)
        assert answer.status == status, (path, given)
        assert "Traceback" not in answer.text


def test_an_empty_cluster_has_every_page(pg_url: str) -> None:
    """No job, no task, no worker: each page says so."""
    with served(Dashboard(pg_url, role="viewer")) as site:
        for path in ("/", "/jobs", "/tasks", "/workers", "/calendars", "/audit"):
            page = site.get(path)
            assert page.status == 200
            assert 'class="none"' in page.text or "No slot was due" in page.text


def test_a_calendar_of_another_program(pg_url: str) -> None:
    """A row that cannot be read is named, and ends neither page."""
    with psycopg.connect(pg_url) as sql:
        sql.execute(
            "INSERT INTO scheduled_calendars (name, revision, weekend, days, updated) "
            "VALUES ('BAD', 1, 'SAX', '', now()), ('GOOD', 1, 'SAT', '', now())"
        )
    with served(Dashboard(pg_url, role="viewer")) as site:
        page = site.get("/calendars")
        assert page.status == 200
        assert "GOOD" in page.text
        assert "calendar BAD cannot be read" in page.text
        assert site.get("/calendar", name="BAD").status == 409


def test_the_database_may_be_away_and_come_back(cluster: str) -> None:
    """The page says so, to operators with the reason, and shows what there is once it is back."""
    address = {"path": "/jobs", "method": "GET"}
    away = Dashboard("postgresql://localhost:1/none", role="viewer")
    refused = away.respond(Request(**address))
    assert refused.status == 503
    assert b"is away" in refused.body
    assert b"localhost" not in refused.body
    operator = Dashboard("postgresql://localhost:1/none", role="operator")
    told = operator.respond(Request(method="GET", path="/jobs.json"))
    assert "localhost" in json.loads(told.body)["error"]


def test_a_part_that_takes_too_long_does_not_cost_the_page(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, and the rest is shown."""
    from slotwise import DatabaseProblem
    from slotwise.inspect import Inspection

    def slow(*_: object, **__: object) -> None:
        raise DatabaseProblem(
            "database error: canceling statement due to statement timeout"
        )

    monkeypatch.setattr(Inspection, "outcome_totals", slow)
    dashboard = Dashboard(cluster, role="viewer")
    page = dashboard.respond(Request(method="GET", path="/")).body.decode()
    data = json.loads(
        dashboard.respond(Request(method="GET", path="/today.json")).body
    )
    dashboard.close()
    assert "This part could not be read: database error: canceling statement" in page
    assert "relay refused" in page
    assert data["verdict"] is None
    assert list(data["missing"]) == ["verdict"]


KEYED = """
UPDATE scheduled_tasks SET order_key = 'customer 7', created_version = 9
WHERE task_name = 'send-mail' AND task_instance IN ('order-4', 'order-5')"""


def test_tasks_are_found_by_a_filter(site: Site, cluster: str) -> None:
    """By state, the beginning of the id, the error, the due time and the key."""

    def ids(**given: str) -> list[str]:
        found = site.get("/tasks.json", name="send-mail", **given).json["tasks"]
        return sorted(one["id"] for one in found)

    assert ids(state="dead") == ["order-1", "order-2", "order-3"]
    assert ids(error="REFUSED ORDER 2") == ["order-2"]
    assert ids(begins="order-1") == ["order-1", "order-10", "order-11", "order-12"]
    assert ids(until="2020-01-01T00:00Z") == []
    with psycopg.connect(cluster, autocommit=True) as connection:
        connection.execute(KEYED)
    assert ids(order_key="customer 7") == ["order-4", "order-5"]
    assert ids(order_key="customer 7", state="dead") == []
    assert ids(order_key="customer") == []
    page = site.get("/tasks", name="send-mail", error="refused order 2").text
    assert 'value="refused order 2"' in page
    task = site.get("/task", name="send-mail", id="order-4").text
    assert "/tasks?name=send-mail&amp;order_key=customer+7" in task


def test_an_operation_is_about_the_tasks_of_a_key(site: Site, cluster: str) -> None:
    """The preview counts them, and passes the key on; the others stay."""
    with psycopg.connect(cluster, autocommit=True) as connection:
        connection.execute(KEYED)
    page = site.get("/tasks", name="send-mail", order_key="customer 7").text
    assert 'name="order_key" value="customer 7"' in page
    form = {"operation": "cancel_tasks", "name": "send-mail", "token": site.token()}
    form |= {"order_key": "customer 7"}
    assert 'name="order_key" value="customer 7"' in site.post(form).text
    done = site.post({**form, "sure": "yes"})
    assert done.headers["location"] == "/tasks?name=send-mail&order_key=customer+7"
    left = site.get("/tasks.json", name="send-mail").json["tasks"]
    assert {one["id"] for one in left}.isdisjoint({"order-4", "order-5"})
    assert len(left) == 10


BULK = """
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, kind, picked, version,
    created_version)
SELECT 'send-mail', 'bulk-' || n, now(), 'task', false, 9, 9 FROM generate_series(1, 700) AS n"""


def test_many_tasks_are_changed_in_batches(
    site: Site, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preview counts; each form goes on with the next ones; each has its entry in the audit."""
    monkeypatch.setattr(operations, "BATCH", 500)
    with psycopg.connect(cluster, autocommit=True) as connection:
        connection.execute(BULK)
    form = {"operation": "delete_tasks", "name": "send-mail", "begins": "bulk"}
    form["token"] = site.token()
    preview = site.post(form)
    assert "700 tasks are removed" in preview.text
    assert 'name="total" value="700"' in preview.text
    first = site.post({**form, "sure": "yes", "total": "700"})
    assert (first.status, "500 of 700 are done" in first.text) == (200, True)
    assert "data-continue" in first.text
    second = site.post({**form, "sure": "yes", "total": "700", "done": "500"})
    assert second.status == 303
    assert second.headers["location"] == "/tasks?name=send-mail&begins=bulk"
    retry = {"operation": "retry_tasks", "name": "send-mail", "error": "order 3"}
    assert site.post({**retry, "token": form["token"], "sure": "yes"}).status == 303
    left = site.get("/tasks.json", name="send-mail").json["tasks"]
    assert [one["id"] for one in left if one["state"] == "dead"] == [
        "order-1",
        "order-2",
    ]
    assert [one["attempt"] for one in left if one["id"] == "order-3"] == [0]
    audit = site.get("/audit.json", name="send-mail").json["entries"]
    assert [one["operation"] for one in audit] == [
        "retry_tasks",
        "delete_tasks",
        "delete_tasks",
    ]
    assert [one["arguments"]["rows"] for one in audit] == [1, 200, 500]


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
#: Minutes before now of each count with 60 successes and 30 failed attempts, and the pace.
PACES = [
    ([], None),
    ([0], (60.0, 30.0)),
    ([0, 1, 2], (60.0, 30.0)),
    (list(range(60)), (60.0, 30.0)),
    ([2.5, 3.5, 4.5], (51.4, 25.7)),
    ([4], (20.0, 10.0)),
    ([50, 51, 52], (0.0, 0.0)),
    ([0, 50], (60.0, 30.0)),
]


@pytest.mark.parametrize(("minutes", "pace"), PACES)
def test_the_pace_of_tasks(
    minutes: list[float], pace: tuple[float, float] | None
) -> None:
    """Ends and failed attempts are counted apart, by name: in the last minutes, or since the work
    began.
    """
    counts = [
        OutcomeCount(
            job="mail",
            hour=NOW - timedelta(minutes=ago),
            outcome=outcome,
            reason=None,
            count=count,
        )
        for ago in minutes
        for outcome, count in (("succeeded", 50), ("dead", 10), ("failed", 30))
    ]
    found = tasks.paces_of(counts, NOW).get("mail")
    assert pace == (None if found is None else (found.ended, found.failed))


def test_a_burst_is_paced_by_its_minutes(cluster: str) -> None:
    """Not by the hour that it is in."""
    with psycopg.connect(cluster, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO scheduled_counts (task_name, hour, kind, outcome, reason, count) "
            "SELECT 'send-mail', now() - n * interval '1 minute', 'recent', outcome, '', 60 "
            "FROM unnest(ARRAY['succeeded', 'failed']) AS outcome, generate_series(0, 1) AS n"
        )
    with served(Dashboard(cluster, role="viewer")) as site:
        today = site.get("/today.json").json["pace"]
        paces = site.get("/tasks.json").json["paces"]
    assert (today["ended"], today["failed"]) == pytest.approx((60, 60), rel=0.1)
    assert paces["send-mail"]["failed"] == pytest.approx(60, rel=0.1)


def test_a_slow_run_is_told_with_what_is_usual(cluster: str) -> None:
    """A worker says that a handler is slow; the page says which, for how long, and what to do."""
    with psycopg.connect(cluster, autocommit=True) as connection:
        connection.execute(world.PLANTED)
    with served(Dashboard(cluster, role="viewer")) as site:
        (run,) = site.get("/today.json").json["slow"]
        page = html.unescape(site.get("/").text)
    assert (run["name"], run["worker"]) == ("poll-orders", "worker-4")
    assert run["usual"] is not None
    shown = page.partition("Runs longer than it should")[2].partition("</table>")[0]
    assert re.search(r">14m\d*s?<", shown)
    assert "slotwise workers stack poll-orders" in shown
    assert "/instant?name=poll-orders" in shown


def test_what_if(site: Site, cluster: str) -> None:
    """Another schedule in the zone of the job, or other days of its calendar; a mistake is one line
    of the schedule's own error.
    """

    def compared(**given: str) -> Any:
        return site.get("/what-if.json", name="nightly-report", **given).json

    found = compared(schedule="0 3 * * *", days="10")["comparison"]
    assert (found["removed"], found["added"], found["kept"]) == (10, 10, 0)
    assert {sign for _, sign in found["changes"]} == {"-", "+"}
    assert compared(schedule="30 2 * * *")["comparison"]["kept"] == 30
    mistake = compared(schedule="61 2 * * *")["mistake"]
    assert "61" in mistake
    assert "\n" not in mistake
    assert (
        "Traceback" not in site.get("/what-if", name="poll-orders", schedule="?").text
    )
    around = "EXCLUDING(CRON|0 2 * * *|Europe/Vienna; AT)"
    with psycopg.connect(cluster, autocommit=True) as connection:
        statement = "UPDATE scheduled_tasks SET schedule = %s WHERE task_name = %s"
        connection.execute(statement, (around, "nightly-report"))
    days = [datetime.now(UTC).date() + timedelta(days=n) for n in range(2, 9)]
    workday = next(day for day in days if day.isoweekday() <= 5).isoformat()
    found = compared(free=workday, days="10")["comparison"]
    assert (found["removed"], found["added"]) in (
        (1, 0),
        (0, 0),
    )  # unless it is a holiday
    saturday = next(day for day in days if day.isoweekday() == 6).isoformat()
    assert compared(worked=saturday, days="10")["comparison"]["added"] == 1


@job(
    name="poll-orders",
    schedule=Every("1h"),
    retry=Retry.exponential(max_attempts=4),
    timeout="5m",
    finish_by="06:00",
    overlap=Overlap.allow(2),
    catch_up=CatchUp.all(max=5),
)
def poll(ctx: JobContext) -> None:
    """Another schedule than the row's."""


def test_a_job_says_what_its_code_declares(cluster: str) -> None:
    """Policies as sentences, and that the row has another schedule."""
    registry = JobRegistry(jobs=[poll], database_url=cluster)
    dashboard = Dashboard(registry, role="viewer")
    request = Request(method="GET", path="/job", query="name=poll-orders")
    page = html.unescape(dashboard.respond(request).body.decode())
    other = Request(method="GET", path="/job.json", query="name=nightly-report")
    orphan = json.loads(dashboard.respond(other).body)
    dashboard.close()
    for sentence in (
        "After an outage, every missed slot runs, the oldest first; only the newest 5.",
        "Up to 2 slots run side by side in the whole cluster.",
        "A failed slot has up to 4 attempts.",
        "An attempt is stopped after 5m.",
        "A run should have ended by 06:00.",
        "The code has another schedule: EVERY|1h",
    ):
        assert sentence in page
    assert page.count("ended by 06:00") == 1
    assert orphan["policies"] is None
    assert orphan["difference"] in (
        None,  # a live worker knows it
        "The code of this application does not have this job.",
    )


def test_sentences_have_local_times() -> None:
    """Each instant in the zone of the job, with UTC on hover; the rest is escaped, and what is no
    instant stays.
    """
    noon = datetime(2026, 7, 1, 10, tzinfo=UTC)
    moments = Moments(noon, ZoneInfo("Europe/Vienna"))
    said = str(moments.told("<b> ran at 2026-07-01T10:00:00Z, not 9999-99-99T99"))
    assert said.startswith("&lt;b&gt; ran at <time")
    assert 'title="2026-07-01 10:00:00 UTC">2026-07-01 12:00:00 CEST</time>' in said
    assert said.endswith(", not 9999-99-99T99")
    assert "2026-02-30T10:00:00Z" in moments.told("2026-02-30T10:00:00Z")


def test_many_jobs_are_paused_until_an_instant(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose names begin alike: counted first, then some with each form."""
    monkeypatch.setattr(operations, "JOBS_AT_ONCE", 1)
    form = {"operation": "pause_jobs", "begins": "n", "token": site.token()}
    preview = site.post(form)
    assert "1 job is paused until it is resumed" in preview.text
    assert 'name="until"' in preview.text
    end = "2100-01-01T00:00:00+00:00"
    done = site.post({**form, "sure": "yes", "until": end, "note": "the move"})
    assert (done.status, done.headers.get("location")) == (303, "/jobs?q=n")
    assert (
        site.get("/job.json", name="nightly-report").json["job"]["state"] == "paused"
    )
    (paused,) = [
        one
        for one in site.get("/today.json").json["paused_jobs"]
        if one["name"] == "nightly-report"
    ]
    assert paused["until"] == "2100-01-01T00:00:00Z"
    assert "the move" in paused["why"]
    assert site.post({**form, "begins": ""}).status == 400


def test_the_progress_of_a_run_is_shown(cluster: str) -> None:
    """As its checkpoint says it: on the page of the slot, and among the job's last slots."""
    checkpoint = encode_checkpoint({"done": 1_200, "total": 5_000, "rate": 10.0})
    key = "'poll-orders', 'recurring', '2026-01-01T00:00Z'"
    with psycopg.connect(cluster, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, attempts, "
            f"token, worker, started) VALUES ({key}, 'running', 1, 7, 'worker-1', now())"
        )
        connection.execute(
            "INSERT INTO scheduled_checkpoints (task_name, task_instance, slot, token, updated, "
            f"value) VALUES ({key}, 7, now(), %s)",
            [checkpoint],
        )
    with served(Dashboard(cluster, role="viewer")) as site:
        page = site.get("/instant", name="poll-orders", at="2026-01-01T00:00Z").text
    assert "1,200 of 5,000 done, 10/s, about 6m20s left" in page
    assert '<progress max="5000" value="1200"' in page


def test_a_trigger_that_runs_is_in_the_head_of_its_job(cluster: str) -> None:
    """It runs in a row beside the job's own, which waits."""
    with psycopg.connect(cluster, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO scheduled_tasks (task_name, task_instance, plan_instance, kind, "
            "execution_time, slot, origin, picked, picked_by, version, created_version, "
            "last_heartbeat, lease, attempt) VALUES ('poll-orders', 'trigger:1', "
            "'recurring', 'detached', now(), now(), 'trigger', true, 'worker-1', "
            "extract(epoch FROM now() - interval '14 minutes') * 1000000, 9, now(), "
            "interval '1 hour', 1)"
        )
    with served(Dashboard(cluster, role="viewer")) as site:
        head = site.get("/job", name="poll-orders").text.partition("Last slots")[0]
    assert "a slot runs since" in head
    assert "on <bdi>worker-1</bdi>" in head
    assert "It runs for" in head


@pytest.mark.parametrize("name", ["\0", " "])
def test_a_blank_name_is_none(site: Site, name: str) -> None:
    """The page says what its address needs."""
    answer = site.get("/job", name=name)
    assert (answer.status, answer.text) == (400, "the address needs name=\n")


def test_the_first_visitor_does_not_wait(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read at the start is shown; without a database, nothing is raised."""
    dashboard = Dashboard(cluster, role="viewer")
    dashboard.prepare()
    monkeypatch.setattr(Source, "totals", None)
    page = dashboard.respond(Request(method="GET", path="/")).body.decode()
    dashboard.close()
    assert "slots were due since midnight" in page
    away = Dashboard("postgresql://nobody@127.0.0.1:1/nowhere", role="viewer")
    away.prepare()
    away.close()
