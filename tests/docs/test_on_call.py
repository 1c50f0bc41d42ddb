"""The questions of an engineer on call: the commands of the page, and that each answers."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import TypeAlias

import psycopg
import pytest
from tests.docs.markdown import ROOT, table
from tests.kit.records import Failed
from tests.kit.store import (
    SLOT,
    TASK,
    Counts,
    Ended,
    Planner,
    Revision,
    hour_of,
)
from tests.store.bench import Bench, a_job, a_task
from tests.store.conformance.test_membership import a_member

from slotwise import Calendar, Cron, Every, JobContext, JobRegistry, Settings, job
from slotwise.cli import db
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.operations import Calendars
from slotwise.spi import Database

HOUR = timedelta(hours=1)
NOW = datetime.now(UTC)
#: The hour in which the night begins.
EVENING = hour_of(NOW) - 30 * HOUR
PAGE = ROOT / "docs" / "troubleshooting.md"
QUESTIONS = dict(map(tuple, table(PAGE, "## Twelve questions on call")))
JOBS = (
    a_job("nightly-report", Every("1h")),
    a_job("office-report", Cron("0 * * * *", tz="UTC").excluding("AT")),
    a_task("send-mail"),
)
#: What the page's slots are in a test.
Slots: TypeAlias = dict[str, str]
Scene: TypeAlias = Callable[[Bench], Slots]


@pytest.fixture
def bench(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    database = Database(Settings(database_url=pg_url))
    made = Bench(database, JOBS)
    made.clock.set(EVENING)
    Calendars(made.store, "setup").change("AT", lambda _: Calendar(name="AT"), "made")
    made.plan()
    yield made
    database.close()


def slot(hours: int) -> str:
    return f"{EVENING + hours * HOUR:%Y-%m-%dT%H:%MZ}"


def paused(bench: Bench) -> Slots:
    bench.client.operations.by("ann").pause("nightly-report", note="the disk is full")
    bench.clock.set(EVENING + 5 * HOUR)
    bench.client.operations.resume("nightly-report")
    return {"2026-01-31": slot(2)}


def nobody_lived(bench: Bench) -> Slots:
    member = a_member(bench, "host:1:a")
    member.join()
    member.stop_reason = "SIGTERM"
    member.drain()
    member.leave()
    bench.clock.set(EVENING + 5 * HOUR)
    a_member(bench, "host:2:b").join()
    bench.settle(bench.claim_one("nightly-report"))
    return {"2026-01-31T02:00Z": slot(2)}


def deployed(bench: Bench) -> Slots:
    for interval, revision in (("1h", "2"), ("2h", "3")):
        changed = a_job("nightly-report", Every(interval))
        bench.beside(changed)
        deploy = Revision(text=revision, started=EVENING)
        Planner(bench.store).plan([changed], deploy)
        bench.tick(1)
    return {}


def closed(bench: Bench) -> Slots:
    days = frozenset({EVENING.date(), EVENING.date() + timedelta(days=1)})

    def close(before: Calendar | None) -> Calendar:
        return Calendar(name="AT", days=days)

    named: dict[date, str] = dict.fromkeys(days, "Company outing")
    Calendars(bench.store, "ann").change("AT", close, "calendar_add", names=named)
    return {"2026-02-02": slot(2)}


def failing(bench: Bench) -> Slots:
    bench.clock.set(NOW - 3 * HOUR)
    bench.settle(bench.claim_one("nightly-report"))
    for hours in (2, 1):
        bench.clock.set(hour_of(NOW) - hours * HOUR + timedelta(seconds=1))
        bench.settle(bench.claim_one("nightly-report"), Failed("boom"))
    bench.clock.set(NOW)
    counts = Counts(bench.store)
    while counts.recount_closed():
        pass
    hours = [hour_of(NOW) - hours * HOUR for hours in (2, 1)]
    failed = [Ended("nightly-report", hour, SLOT, "failed", "") for hour in hours]
    counts.add(dict.fromkeys(failed, 1))
    return {}


def stopped(bench: Bench) -> Slots:
    bench.client.operations.by("bob").pause(
        "nightly-report", note="until the disk is replaced"
    )
    return {}


def backlog(bench: Bench) -> Slots:
    bench.clock.set(NOW - HOUR)
    for number in range(30):
        bench.client.schedule("send-mail", id=str(number))
    for minutes in (20, 10, 1):
        bench.clock.set(NOW - minutes * timedelta(minutes=1))
        ended = Ended("send-mail", hour_of(NOW), TASK, "succeeded", "")
        Counts(bench.store).add({ended: 60})
    return {}


def nothing(bench: Bench) -> Slots:
    return {}


CASES: dict[str, tuple[Scene, int, tuple[str, ...]]] = {
    "Why did last night": (paused, exits.OK, ("(paused)", "ann", "the disk is full")),
    "Was no worker": (
        nobody_lived,
        exits.OK,
        ("No worker was alive from", "host:1:a, drained on SIGTERM"),
    ),
    "Has a deploy": (
        deployed,
        exits.OK,
        ("was changed from every 1h to every 2h by revision 3 at",),
    ),
    "Which calendar": (
        closed,
        exits.OK,
        ("is a day of the calendar AT (Company outing), which ann added at",),
    ),
    "Which jobs fail": (failing, exits.OK, ("✓✗✗", "2 of 3")),
    "Which jobs are paused": (
        stopped,
        exits.OK,
        ("paused by bob at", "until the disk is replaced"),
    ),
    "How long is the backlog": (
        backlog,
        exits.OK,
        ("30 tasks are due, the oldest since", "No live worker can", "gone in"),
    ),
    "A backup was restored": (
        nothing,
        exits.OK,
        ("a new epoch", "slots settled; everything is resumed"),
    ),
    "Does the login work": (nothing, exits.FAILED, ("unhealthy: live workers: 0",)),
    "Are there enough": (nothing, exits.OK, ("workers: 0 live", "nightly-report")),
}


def command(question: str) -> list[str]:
    """The command of the page that answers a question, by its first words."""
    (found,) = [
        text for words, text in QUESTIONS.items() if words.startswith(question)
    ]
    return shlex.split(found)[1:]


def test_there_are_twelve() -> None:
    """Each with a case here."""
    special = ("Where is the handler", "Does something keep")
    assert len(QUESTIONS) == len(CASES) + len(special) == 12
    for question in (*CASES, *special):
        assert command(question)


@pytest.mark.parametrize("question", CASES)
def test_one_command_answers(
    bench: Bench, capsys: pytest.CaptureFixture[str], question: str
) -> None:
    scene, expected, phrases = CASES[question]
    slots = scene(bench)
    words = [slots.get(word, word) for word in command(question)]
    capsys.readouterr()
    assert status(words) == expected, capsys.readouterr().err
    told = capsys.readouterr()
    for phrase in phrases:
        assert phrase in f"{told.out}{told.err}", told.out


def test_where_the_handler_is(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    entered = threading.Event()
    released = threading.Event()

    def wait_for_the_partner() -> None:
        entered.set()
        released.wait(60)

    @job(name="nightly-report", schedule=Every("1s"))
    def report(ctx: JobContext) -> None:
        wait_for_the_partner()

    registry = JobRegistry(
        jobs=[report], database_url=pg_url, heartbeat_interval="500ms"
    )
    registry.start(timeout="30s")
    try:
        assert entered.wait(30)
        assert status(command("Where is the handler")) == exits.OK
        assert "in wait_for_the_partner" in capsys.readouterr().out
    finally:
        released.set()
        registry.stop()


def test_what_keeps_vacuum_from_its_work(
    bench: Bench,
    pg_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(db, "OLD_SNAPSHOT", timedelta(0))
    with psycopg.connect(pg_url, application_name="forgotten") as sql:
        sql.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        sql.execute("SELECT 1 FROM pg_class LIMIT 1")
        assert status(command("Does something keep")) == exits.OK
    told = capsys.readouterr()
    assert "all in place" in told.out
    assert "a session has held a snapshot since" in told.err
    assert "forgotten (" in told.err
