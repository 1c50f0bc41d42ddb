"""What can be read from the shell: jobs, slots, workers, health; for people, for programs, and
through pipes.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.integration.shell import Shell
from tests.kit.store import Store

from slotwise import Settings
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.cli.shared.terminal import moment
from slotwise.spi import Database
from slotwise.testing import ManualWorker

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
TRACEBACK = "Traceback (most recent call last):"


@pytest.fixture(params=["pg_url", "sqlite_url"])
def store(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """Tables of either kind, named by the environment."""
    url = request.getfixturevalue(request.param)
    monkeypatch.setenv("DATABASE_URL", url)
    monkeypatch.setenv("TZ", "UTC")
    database = Database(Settings.load(environ={}, database_url=url))
    yield Store(database, {})
    database.close()


def add(store: Store, table: str, *rows: dict[str, Any]) -> None:
    """Rows, with what every row of that table needs."""
    defaults: dict[str, dict[str, Any]] = {
        "tasks": {
            "task_instance": "recurring",
            "picked": False,
            "version": 1,
            "execution_time": NOON,
        },
        "slots": {
            "task_instance": "recurring",
            "outcome": "succeeded",
            "attempts": 1,
            "finished": NOON,
        },
        "gaps": {"task_instance": "recurring", "created": NOON},
        "workers": {
            "host": "h",
            "pid": 1,
            "boot_id": "f0",
            "tags": "[]",
            "tasks": "[]",
            "version": "1",
            "capacity": 4,
            "state": "running",
            "started": NOON,
            "lease": timedelta(seconds=60),
        },
    }
    with store.transaction() as connection:
        for row in rows:
            if table == "tasks":
                row.setdefault(
                    "kind",
                    "detached"
                    if row.get("plan_instance")
                    else "plan"
                    if "schedule" in row
                    else "task",
                )
            connection.execute(
                sa.insert(getattr(store.tables, table)).values(**defaults[table] | row)
            )


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command with --json; its answer."""

    def run(*arguments: str, expected: int = exits.OK) -> Any:
        capsys.readouterr()
        assert status([*arguments, "--json"]) == expected, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def history(store: Store) -> Store:
    """A job that waits for noon, with 30 slots at 12 to 41 past eleven, and two gaps among
    them.
    """
    add(
        store,
        "tasks",
        {
            "task_name": "report",
            "schedule": "EVERY|1m|x",
            "slot": NOON,
            "next_slot": NOON,
        },
    )
    slots = [FIRST + timedelta(minutes=n) for n in range(30)]
    add(
        store,
        "slots",
        *[{"task_name": "report", "slot": slot, "started": slot} for slot in slots],
    )
    gap = {"task_name": "report", "count": 3, "reason": "overlap"}
    inside = FIRST + timedelta(minutes=9, seconds=15)
    covered = FIRST + timedelta(minutes=20)
    add(
        store,
        "gaps",
        {**gap, "first_slot": inside, "last_slot": inside + timedelta(seconds=30)},
    )
    add(
        store,
        "gaps",
        {**gap, "first_slot": covered - timedelta(seconds=30), "last_slot": covered},
    )
    return store


class TestSlots:
    """What waits, then ledger and gaps, the newest first."""

    def test_of_a_one_time_task(
        self, store: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It has none; the command that lists it is named."""
        add(
            store,
            "tasks",
            {
                "task_name": "send mail",
                "task_instance": "1",
                "slot": NOON,
                "state": "dead",
            },
        )
        assert status(["slots", "send mail"]) == exits.OK
        out, err = capsys.readouterr()
        assert out == "send mail: no slots in this range\n"
        assert (
            err
            == "one-time tasks have no slots; see: slotwise tasks list 'send mail'\n"
        )

    @pytest.mark.parametrize(
        "page",
        [
            2,
            500,
            *(pytest.param(one, marks=pytest.mark.extended) for one in (1, 3, 7)),
        ],
        ids=lambda page: f"pages-of-{page}",
    )
    def test_all(
        self,
        history: Store,
        ask: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
        page: int,
    ) -> None:
        """Every line once, in order, whatever the size of a page: also where a slot and a gap end
        together.
        """
        monkeypatch.setattr("slotwise.store.reading.queries.PAGE", page)
        waiting, *lines = ask("slots", "report", "--all")
        assert (waiting["outcome"], waiting["slot"]) == (
            "waiting",
            "2026-01-31T12:00:00Z",
        )
        places = [line["last"] or line["slot"] for line in lines]
        assert places == sorted(places, reverse=True)
        assert len(lines) == 32
        assert [line["outcome"] for line in lines].count("skipped") == 2
        together = [
            line["count"]
            for line in lines
            if (line["last"] or line["slot"]) == "2026-01-01T00:20:00Z"
        ]
        assert together == [1, 3]

    @pytest.mark.parametrize(
        "size",
        [11, *(pytest.param(one, marks=pytest.mark.extended) for one in (10, 12))],
    )
    def test_some(
        self,
        history: Store,
        ask: Callable[..., Any],
        capsys: pytest.CaptureFixture[str],
        size: int,
    ) -> None:
        """The newest twenty, or as many as are wanted; the command for what comes next goes on
        exactly there.
        """
        assert len(ask("slots", "report")) == 20
        whole = ask("slots", "report", "--all")
        again = ["slots", "report", "-n", f"{size}"]
        pages = ask(*again)
        assert len(pages) == size
        while True:
            status(again)
            err = capsys.readouterr().err
            if "… more: slotwise " not in err:
                break
            again = shlex.split(err.split("… more: slotwise ")[1])
            pages += ask(*again)
        assert pages == whole

    def test_the_way_on(
        self, history: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It is the same command, with all that this one was told."""
        asked = [
            "slots",
            "report",
            "--id",
            "recurring",
            "--since",
            "2026-01-01T00:00:00Z",
            "-n",
            "3",
        ]
        assert status(asked) == exits.OK
        assert (
            f"… more: slotwise {' '.join(asked)} --before 2026-01-01T00:28:00Z"
            in capsys.readouterr().err
        )

    def test_since(self, history: Store, ask: Callable[..., Any]) -> None:
        """From an instant on."""
        lines = ask("slots", "report", "--all", "--since", "2026-01-01T00:28:00Z")
        assert [line["slot"][11:16] for line in lines[1:]] == ["00:29", "00:28"]
        assert (
            len(ask("slots", "report", "--since", "1m", "--before", "2030-01-01"))
            <= 30
        )
        assert (
            ask("slots", "report", "--since", "2026-02-01T00:00Z") == []
        )  # what waits comes before it

    def test_reasons(self, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
        """Each line says why: the reason, the number of slots, what it stands for, or how the
        error ends.
        """
        add(
            store,
            "tasks",
            {
                "task_name": "a",
                "schedule": "EVERY|1m|x",
                "slot": NOON,
                "attempt": 1,
                "execution_time": NOON + timedelta(seconds=90),
            },
        )
        hour = timedelta(hours=1)
        rows = [
            {
                "outcome": "failed",
                "reason": "retry",
                "error": f"{TRACEBACK}\nValueError: no\x1b[31m",
                "finished": None,
            },
            {"outcome": "skipped", "reason": "overlap", "attempts": 0},
            {"origin": "catch_up", "collapsed": 7, "started": NOON},
            {
                "outcome": "running",
                "finished": None,
                "started": NOON,
                "worker": "host:1:f0",
                "attempts": 2,
            },
        ]
        add(
            store,
            "slots",
            *[
                {"task_name": "a", "slot": NOON - number * hour} | row
                for number, row in enumerate(rows)
            ],
        )
        gap = {
            "first_slot": NOON - 9 * hour,
            "last_slot": NOON - 5 * hour,
            "count": 5,
            "reason": "collapsed",
        }
        add(store, "gaps", {"task_name": "a"} | gap)
        add(
            store,
            "slots",
            {"task_name": "a", "slot": NOON - 6 * hour, "origin": "backfill"},
        )
        assert status(["slots", "a"]) == exits.OK
        lines = capsys.readouterr().out.splitlines()[1:]
        for line, words in zip(
            lines,
            [
                [
                    "waiting",
                    r"retry; due 2026-01-31T12:01:30Z; ValueError: no\x1b[31m",
                ],
                ["skipped", "overlap"],
                ["succeeded", "stands for 7 more", "catch_up", "+2h"],
                ["running", "2", "host:1", "+3h"],
                [
                    "2026-01-31T03:00:00Z … 2026-01-31T07:00:00Z",
                    "skipped",
                    "collapsed; 5 slots, 1 of them run since",
                ],
                ["2026-01-31T06:00:00Z", "succeeded", "backfill"],
            ],
            strict=True,
        ):
            for word in words:
                assert word in line

    def test_standing(
        self, store: Store, ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Each slot once: what waits, then what runs, however old its slot is, then what has
        ended.
        """
        slots = [NOON - timedelta(hours=number) for number in range(6)]
        detached = {"task_name": "a", "plan_instance": "recurring", "attempt": 1}
        add(
            store,
            "tasks",
            {"task_name": "a", "schedule": "x", "slot": slots[0]},
            detached
            | {
                "task_instance": "trigger:1",
                "slot": slots[3],
                "picked": True,
                "picked_by": "h:1:f0",
            },
            detached | {"task_instance": "trigger:2", "slot": slots[4]},
            detached
            | {"task_instance": "trigger:3", "slot": slots[5], "state": "dead"},
        )
        ended = [{"task_name": "a", "slot": slot} for slot in slots[1:3]]
        add(
            store,
            "slots",
            *ended,
            {
                "task_name": "a",
                "slot": slots[3],
                "outcome": "running",
                "finished": None,
            },
        )
        add(
            store,
            "slots",
            {
                "task_name": "a",
                "slot": slots[4],
                "outcome": "failed",
                "reason": "retry",
            },
        )
        add(store, "slots", {"task_name": "a", "slot": slots[5], "outcome": "dead"})
        lines = ask("slots", "a", "--all")
        assert [(line["slot"][11:13], line["outcome"]) for line in lines] == [
            ("12", "waiting"),
            ("08", "waiting"),
            ("09", "running"),
            ("11", "succeeded"),
            ("10", "succeeded"),
            ("07", "dead"),
        ]
        assert [line["slot"][11:13] for line in ask("slots", "a", "-n", "2")[:2]] == [
            "12",
            "09",
        ]
        assert status(["slots", "a", "-n", "2"]) == exits.OK
        assert (
            "… more slots wait after these: slotwise slots a --all"
            in capsys.readouterr().err
        )
        assert (lines[1]["reason"], lines[1]["attempts"]) == ("retry", 1)

    def test_a_backfill_hides_nothing(
        self, store: Store, ask: Callable[..., Any]
    ) -> None:
        """The schedule's next slot, what runs and what is due are seen before what waits for
        others of its backfill.
        """
        old = [NOON - timedelta(days=30, hours=number) for number in range(30)]
        detached = {
            "task_name": "a",
            "plan_instance": "recurring",
            "origin": "backfill",
        }
        filling = [
            detached | {"task_instance": f"recurring@{slot.isoformat()}", "slot": slot}
            for slot in old
        ]
        add(store, "tasks", {"task_name": "a", "schedule": "x", "slot": NOON})
        add(
            store,
            "tasks",
            *(row | {"state": "queued"} for row in filling[4:]),
            *filling[2:4],
        )
        add(
            store,
            "tasks",
            *(row | {"picked": True, "picked_by": "h:1:f0"} for row in filling[:2]),
        )
        add(
            store,
            "slots",
            *(
                {
                    "task_name": "a",
                    "slot": slot,
                    "outcome": "running",
                    "finished": None,
                }
                for slot in old[:2]
            ),
        )
        lines = ask("slots", "a", "-n", "6")
        assert (lines[0]["slot"][:13], len(lines)) == (NOON.isoformat()[:13], 6)
        assert [line["outcome"] for line in lines] == [
            "waiting",
            "waiting",
            "waiting",
            "queued",
            "running",
            "running",
        ]

    def test_the_next_slot_has_no_error(
        self, store: Store, ask: Callable[..., Any]
    ) -> None:
        """The row remembers how the slot before has failed; the one that waits has not begun."""
        add(
            store,
            "tasks",
            {
                "task_name": "a",
                "schedule": "x",
                "slot": NOON,
                "last_error": "ValueError: no",
            },
        )
        (waiting,) = ask("slots", "a")
        assert (waiting["outcome"], waiting["error"]) == ("waiting", None)

    def test_unknown(self, history: Store, capsys: pytest.CaptureFixture[str]) -> None:
        """An unknown name is told with the known ones."""
        assert status(["slots", "reports"]) == exits.FAILED
        assert (
            capsys.readouterr().err
            == "error: no job 'reports' in this database; did you mean 'report'?\n"
        )

    @pytest.mark.parametrize(
        "command",
        ["slots report --id nope", f"explain report {NOON.isoformat()} --id nope"],
    )
    def test_unknown_instance(
        self, history: Store, capsys: pytest.CaptureFixture[str], command: str
    ) -> None:
        """The job has a row, and slots; the instance has none, and that is said."""
        assert status(command.split()) == exits.FAILED
        told = (
            "error: job 'report' has no recurring instance 'nope'; see: slotwise jobs "
            "report --instances\n"
        )
        assert capsys.readouterr().err == told


class TestJobs:
    """All jobs with a row, and how the application sees them."""

    APPLICATION = """
    from slotwise import Every, JobRegistry, job
    jobs = [job(name=name, schedule=Every("1m"))(lambda ctx: None) for name in ("same", "changed", "fresh")]
    registry = JobRegistry(jobs=jobs)
    """

    @pytest.mark.parametrize(
        ("row", "state"),
        [
            ({"execution_time": datetime.now(UTC) + timedelta(days=1)}, "waiting"),
            ({}, "no_live_worker"),
            ({"picked": True, "picked_by": "host:1:f0"}, "running"),
            ({"state": "paused"}, "paused"),
            (
                {"slot": None, "execution_time": datetime(9000, 1, 1, tzinfo=UTC)},
                "ended",
            ),
            (
                {
                    "slot": None,
                    "execution_time": datetime(9000, 1, 1, tzinfo=UTC),
                    "schedule": "-",
                },
                "disabled",
            ),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_states(
        self, store: Store, ask: Callable[..., Any], row: dict[str, Any], state: str
    ) -> None:
        """The state of a job, in the list and alone."""
        add(
            store,
            "tasks",
            {"task_name": "a", "schedule": "x", "slot": NOON} | row,
            {"task_name": "a-task"},
        )
        (line,) = ask("jobs")
        assert (line["job"], line["state"]) == ("a", state)
        assert line["rates"]["strip"] == ""
        assert ask("jobs", "a") == line
        assert status(["jobs"]) == status(["jobs", "a"]) == exits.OK

    def test_compared(
        self,
        store: Store,
        ask: Callable[..., Any],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """With --app, what differs between code and database is told."""
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.delitem(sys.modules, "app_compared", raising=False)
        (tmp_path / "app_compared.py").write_text(
            "\n".join(line[4:] for line in self.APPLICATION.splitlines())
        )
        from slotwise import Every

        texts = {
            "same": str(Every("1m")),
            "changed": str(Every("2m")),
            "orphan": str(Every("1m")),
        }
        add(
            store,
            "tasks",
            *[
                {"task_name": name, "schedule": text, "slot": NOON}
                for name, text in texts.items()
            ],
        )
        lines = ask("jobs", "--app", "app_compared", "--app-dir", str(tmp_path))
        assert {line["job"]: line["code"] for line in lines} == {
            "same": "same",
            "changed": "changed",
            "orphan": "orphan",
            "fresh": "not_planned",
        }
        assert (
            status(["jobs", "--app", "app_compared", "--app-dir", str(tmp_path)])
            == exits.OK
        )

    def test_what_is_planned_has_not_changed(
        self,
        store: Store,
        ask: Callable[..., Any],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """As ``slotwise plan`` says: an H is a minute in the row, a calendar has its days there,
        and changed policies are no other schedule.
        """
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
        monkeypatch.delitem(sys.modules, "app_planned", raising=False)
        (tmp_path / "app_planned.py").write_text(
            "from datetime import date\n"
            "from slotwise import Calendar, Cron, Every, JobRegistry, job\n"
            "days = Calendar(name='DAYS', days={date(2026, 1, 1)})\n"
            "schedules = {'hash': 'H H * * *', 'every': Every('5m'),\n"
            "    'calendar': Cron('0 9 * * *').excluding(days), 'spread': Cron('0 9 * * *', tz='Asia/Tokyo')}\n"
            "jobs = [job(name=name, schedule=one, spread='1m')(lambda ctx: None)\n"
            "    for name, one in schedules.items()]\n"
            "registry = JobRegistry(jobs=jobs)\n"
        )
        from app_planned import registry  # type: ignore[import-not-found]

        with ManualWorker(registry, str(store.database.settings.database_url)):
            pass
        for command in (["jobs"], ["plan", "--all"]):
            lines = ask(*command, "--app", "app_planned")
            found = {
                line["job"]: line.get("code", line.get("change")) for line in lines
            }
            same = "same" if command[0] == "jobs" else "kept"
            assert found == dict.fromkeys(registry.definitions, same)

    def test_pages(
        self,
        store: Store,
        ask: Callable[..., Any],
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A table has so many lines, and the command for what comes next; in JSON all come,
        page by page.
        """
        monkeypatch.setattr("slotwise.cli.jobs.PAGE", 2)
        monkeypatch.setattr("slotwise.cli.jobs.LINES", 3)
        add(
            store,
            "tasks",
            *[
                {"task_name": name, "schedule": "x", "slot": NOON}
                for name in "abcdefg"
            ],
        )
        assert [line["job"] for line in ask("jobs")] == [*"abcdefg"]
        assert [line["job"] for line in ask("jobs", "--after", "b", "-n", "3")] == [
            *"cde"
        ]
        shown = []
        for arguments in ([], ["--after", "c"], ["--after", "f"], ["--all"]):
            assert status(["jobs", *arguments]) == exits.OK
            out, err = capsys.readouterr()
            lines = (
                line
                for line in out.splitlines()
                if line[:1] in "abcdefg" and "no_live_worker" in line
            )
            listed = "".join(line.split()[0] for line in lines)
            shown.append(
                (listed, "".join(line for line in err.splitlines() if "more" in line))
            )
        more = "… more: slotwise jobs --after"
        assert shown == [
            ("abc", f"{more} c"),
            ("def", f"{more} f"),
            ("g", ""),
            ("abcdefg", ""),
        ]

    def test_unknown(self, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
        """The nearest name."""
        add(
            store,
            "tasks",
            {"task_name": "nightly-report", "schedule": "x", "slot": NOON},
        )
        assert status(["jobs", "nightly-reprot"]) == exits.FAILED
        assert "did you mean 'nightly-report'?" in capsys.readouterr().err

    def test_none(
        self, store: Store, ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """No jobs, no workers: empty lists, and a hint for people."""
        assert ask("jobs") == ask("workers") == []
        assert status(["jobs"]) == status(["workers"]) == exits.OK
        assert "slotwise worker --app" in capsys.readouterr().out


class TestWorkers:
    """Workers, and whether the cluster is well."""

    def test_who_ended_and_why(
        self, store: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The reason of a stop; of a worker that vanished, what was lost with it."""
        now = store.now()
        hour = timedelta(hours=1)
        life = {"host": "h", "version": "1", "capacity": 4, "tags": "[]"}
        life |= {"started": now - 9 * hour, "ended": now - hour}
        ends = [
            {"worker": "h:1:f0", "outcome": "left", "reason": "SIGTERM"},
            {"worker": "h:2:f1", "outcome": "gone"},
            {"worker": "h:3:f2", "outcome": "left", "ended": now - 25 * hour},
        ]
        lost = {
            "task_name": "report",
            "task_instance": "recurring",
            "slot": FIRST,
            "number": 1,
            "token": 1,
            "outcome": "lost",
            "worker": "h:2:f1",
            "claimed": now - hour,
            "ended": now - hour,
        }
        add(store, "slots", {"task_name": "report", "slot": FIRST, "token": 2})
        with store.transaction() as connection:
            for end in ends:
                row = {"reason": None, **life, **end}
                connection.execute(store.tables.worker_history.insert().values(row))
            connection.execute(store.tables.attempts.insert().values(lost))
        assert status(["workers"]) == exits.OK
        told = capsys.readouterr().out
        assert re.search(r"h:1:f0 signed out at .* \(SIGTERM\)", told)
        assert re.search(r"h:2:f1 is gone, last seen at .*; lost: report 20", told)
        assert "h:3:f2" not in told

    def test_list(
        self, store: Store, ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Whoever was not seen within its lease is gone; claims are counted."""
        now = store.now()
        add(
            store,
            "workers",
            {"worker": "h:1:f0", "last_seen": now, "skew": 0.25, "tags": '["gpu"]'},
        )
        add(
            store,
            "workers",
            {
                "worker": "h:2:f1",
                "last_seen": now - timedelta(seconds=61),
                "started": FIRST,
            },
        )
        add(store, "tasks", {"task_name": "a", "picked": True, "picked_by": "h:1:f0"})
        live, gone = ask("workers")
        assert (
            live["worker"],
            live["live"],
            live["running"],
            live["skew"],
            live["tags"],
        ) == (
            "h:1:f0",
            True,
            1,
            0.25,
            ["gpu"],
        )
        assert (gone["worker"], gone["live"], gone["running"], gone["skew"]) == (
            "h:2:f1",
            False,
            0,
            None,
        )
        assert (live["state"], gone["state"]) == ("running", "gone")
        assert status(["workers"]) == exits.OK
        _, first, second, *_ = capsys.readouterr().out.splitlines()
        assert "1 of 4" in first
        assert " gone " in second

    @pytest.mark.parametrize(
        ("worker", "runs_on", "reason"),
        [
            ({"tasks": '["a", "b"]'}, None, None),
            ({"tasks": '["b"]'}, None, "no live worker knows it"),
            (
                {"tags": '["big"]'},
                ["big", "gpu"],
                "no live worker that knows it carries big and gpu",
            ),
            ({"tags": '["big", "gpu"]'}, ["gpu"], None),
            (
                {"tasks": '["b"]', "tags": '["gpu"]'},
                ["gpu"],
                "no live worker knows it",
            ),
            ({"tasks": '["a"]', "state": "draining"}, None, "no worker is alive"),
            ({"tasks": '["a"]', "last_seen": NOON}, None, "no worker is alive"),
        ],
        ids=lambda value: value if isinstance(value, str) and " " in value else "",
    )
    def test_unroutable(
        self,
        store: Store,
        ask: Callable[..., Any],
        capsys: pytest.CaptureFixture[str],
        worker: dict[str, Any],
        runs_on: list[str] | None,
        reason: str | None,
    ) -> None:
        """A due job that no live worker can take is shown as that, with the reason."""
        add(
            store,
            "workers",
            {"worker": "h:1:f0", "last_seen": store.now(), "tasks": '["a"]'} | worker,
        )
        add(
            store,
            "tasks",
            {
                "task_name": "a",
                "schedule": "x",
                "slot": NOON,
                "plan": {"runs_on": runs_on},
            },
        )
        (line,) = ask("jobs")
        stuck = "no_live_worker" if reason == "no worker is alive" else "unroutable"
        assert (line["state"], line["reason"]) == (
            stuck if reason else "waiting",
            reason,
        )
        assert status(["jobs"]) == exits.OK
        told = (
            f"a is due, and unroutable: {reason}"
            if stuck == "unroutable"
            else f"a is due: {reason}"
        )
        assert (told in capsys.readouterr().err) == (reason is not None)
        if (
            runs_on and reason and "carries" in reason
        ):  # else it is told as what it is: too few workers, or an orphan
            assert ask("health", "--max-rows=9", expected=exits.FAILED)[
                "problems"
            ] == [told]

    @pytest.mark.parametrize(
        ("late", "arguments", "problem"),
        [
            (None, [], None),
            (None, ["--min-workers", "2"], "live workers: 1, wanted: 2"),
            (timedelta(seconds=30), [], None),
            (
                timedelta(seconds=90),
                [],
                "rows due for more than 1m: 1, the oldest since",
            ),
            (timedelta(seconds=90), ["--max-overdue", "2m"], None),
            (timedelta(seconds=90), ["--max-rows", "1"], None),
        ],
    )
    def test_health(
        self,
        store: Store,
        ask: Callable[..., Any],
        late: timedelta | None,
        arguments: list[str],
        problem: str | None,
    ) -> None:
        """Well: enough workers, and no row waits for too long."""
        now = store.now()
        add(store, "workers", {"worker": "h:1:f0", "last_seen": now, "tasks": '["a"]'})
        if late is not None:
            due = {"task_name": "a", "execution_time": now - late}
            add(store, "tasks", due | {"task_instance": "1"})
        told = ask(
            "health", *arguments, expected=exits.FAILED if problem else exits.OK
        )
        assert told["healthy"] is (problem is None)
        assert (problem or "") in " ".join(told["problems"])

    def test_unreadable_rows(
        self, store: Store, ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """How many, since when, and what to do: a job's fails the check, for it does not run; a
        dead task's is told.
        """
        now, slot = store.now(), datetime(2026, 1, 2, 3, tzinfo=UTC)
        add(
            store,
            "workers",
            {"worker": "h:1:f0", "last_seen": now, "tasks": '["a", "b"]'},
        )
        bad = {
            "task_name": "a",
            "execution_time": now,
            "last_error": "unreadable: version is 7; set it to 8",
        }
        add(
            store,
            "tasks",
            bad | {"schedule": "EVERY|1d", "slot": slot, "task_instance": "recurring"},
        )
        add(
            store,
            "tasks",
            bad
            | {
                "task_name": "b",
                "state": "dead",
                "parked_due": slot,
                "task_instance": "1",
            },
        )
        add(
            store,
            "tasks",
            bad
            | {
                "task_name": "b",
                "state": "dead",
                "parked_due": now,
                "task_instance": "2",
            },
        )
        told = ask("health", expected=exits.FAILED)
        since = f"unreadable, due since {moment(slot)}: version is 7; set it to 8"
        assert (told["problems"], told["notes"]) == (
            [f"a: 1 row is {since}"],
            [f"b: 2 rows are {since}"],
        )
        assert [
            (one["task"], one["rows"], one["dead"]) for one in told["unreadable"]
        ] == [
            ("a", 1, False),
            ("b", 2, True),
        ]
        assert (told["overdue"], status(["jobs"])) == (0, exits.OK)
        assert f"a is {since}" in " ".join(capsys.readouterr().err.split())

    def test_silent_claims(
        self, store: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A claim that nobody renews and nobody takes over is not well."""
        now = store.now()
        add(store, "workers", {"worker": "h:1:f0", "last_seen": now, "tasks": '["a"]'})
        held = {
            "task_name": "a",
            "picked": True,
            "picked_by": "x",
            "lease": timedelta(seconds=5),
        }
        add(store, "tasks", held | {"last_heartbeat": now - timedelta(seconds=6)})
        assert status(["health"]) == exits.FAILED
        assert (
            "lease ran out and that no worker takes over: 1" in capsys.readouterr().err
        )

    @pytest.mark.parametrize(
        ("tasks", "arguments", "problem", "note"),
        [
            ('["a", "gone"]', [], "rows due for more than 1m: 2", None),
            (
                '["a"]',
                [],
                "orphans, due rows that no live worker runs: 2, of gone",
                None,
            ),
            ('["a"]', ["--allow-orphans"], None, "orphans"),
            (None, ["--min-workers", "0"], "rows due for more than 1m: 2", None),
        ],
        ids=["known", "orphans", "allowed", "nobody lives"],
    )
    def test_orphans(
        self,
        store: Store,
        ask: Callable[..., Any],
        tasks: str | None,
        arguments: list[str],
        problem: str | None,
        note: str | None,
    ) -> None:
        """Rows that no live worker runs are told apart from others, and are a failure unless they
        are allowed.
        """
        now = store.now()
        late = now - timedelta(seconds=90)
        add(
            store,
            "workers",
            {"worker": "h:2:f1", "last_seen": late, "tasks": '["gone"]'},
        )
        if tasks is not None:
            add(
                store,
                "workers",
                {"worker": "h:1:f0", "last_seen": now, "tasks": tasks},
            )
        row = {"task_name": "gone", "execution_time": late}
        add(store, "tasks", row | {"task_instance": "1"})
        add(
            store,
            "tasks",
            {"task_name": "gone", "task_instance": "2", "execution_time": late},
        )
        told = ask(
            "health", *arguments, expected=exits.FAILED if problem else exits.OK
        )
        assert (problem or "") in " ".join(told["problems"])
        gone = "workers that vanished without signing out: h:2:f1"
        assert told["gone_workers"] == ["h:2:f1"]
        assert [(note or "") in one for one in told["notes"] if one != gone] == (
            [True] if note else []
        )
        assert gone in told["notes"]

    def test_a_job_that_no_worker_knows(
        self, store: Store, ask: Callable[..., Any]
    ) -> None:
        """Before it is due; not one that is paused or disabled, nor without live workers."""
        soon = store.now() + timedelta(days=3)
        for name, state in (("gone", None), ("known", None), ("paused", "paused")):
            row = {"task_name": name, "schedule": "EVERY|7d", "execution_time": soon}
            add(store, "tasks", row | {"kind": "plan", "slot": soon, "state": state})
        assert ask("health", "--min-workers", "0")["unknown_jobs"] == []
        live = {"worker": "h:1:f0", "last_seen": store.now(), "tasks": '["known"]'}
        add(store, "workers", live)
        (problem,) = ask("health", expected=exits.FAILED)["problems"]
        assert problem.startswith("jobs that no live worker knows: gone; start their")
        assert "slotwise delete gone" in problem
        (note,) = ask("health", "--allow-orphans")["notes"]
        assert note == problem

    def test_silent_orphans(self, store: Store, ask: Callable[..., Any]) -> None:
        """A claim that nobody can take over, since its job is nobody's any more, is an orphan,
        too.
        """
        now = store.now()
        add(store, "workers", {"worker": "h:1:f0", "last_seen": now})
        held = {
            "task_name": "a",
            "picked": True,
            "picked_by": "x",
            "lease": timedelta(seconds=5),
        }
        add(store, "tasks", held | {"last_heartbeat": now - timedelta(seconds=6)})
        told = ask("health", "--allow-orphans")
        assert (told["silent"], told["orphans"], told["orphan_tasks"]) == (0, 1, ["a"])


def test_no_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --json, stdout has an answer or nothing; whether the cluster is well has one: no."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/x")
    for command in (["jobs"], ["slots", "a"], ["workers"], ["db", "check"]):
        assert status([*command, "--json"]) == exits.DATABASE
        told = capsys.readouterr()
        assert told.out == ""
        assert json.loads(told.err)["error"].startswith(
            "the database 'x' at host 127.0.0.1, port 1 cannot be reached"
        )
        assert len(told.err.splitlines()) == 1
        assert json.loads(told.err)["status"] == exits.DATABASE
    assert status(["health", "--json"]) == exits.DATABASE
    answer = json.loads(capsys.readouterr().out)
    assert (answer["healthy"], len(answer["problems"])) == (False, 1)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("closed", "command"),
    [
        (">&-", "jobs"),
        (">&- 2>&-", "jobs"),
        *(
            ("<&- >&- 2>&-", one)
            for one in (
                "jobs",
                "jobs --json",
                "health --min-workers 0",
                "db check",
            )
        ),
    ],
)
def test_closed_streams(
    tmp_path: Path, sqlite_url: str, closed: str, command: str
) -> None:
    """Where only the status is wanted, that is what comes; nothing opened later gets the
    output.
    """
    shell = Shell(tmp_path, sqlite_url)
    script = f"exec {sys.executable} -m slotwise {command} {closed}"
    done = subprocess.run(
        ["sh", "-c", script],
        env=shell.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (exits.OK, "", "")


@pytest.mark.extended
@pytest.mark.parametrize("json_", [[], ["--json"]], ids=["table", "json"])
def test_closed_pipe(tmp_path: Path, pg_url: str, json_: list[str]) -> None:
    """Through ``| head`` nobody complains: neither a traceback nor a word."""
    shell = Shell(tmp_path, pg_url)
    database = Database(Settings.load(environ={}, database_url=pg_url))
    slots = [
        {"task_name": "a", "slot": FIRST + timedelta(minutes=n)} for n in range(3000)
    ]
    add(Store(database, {}), "slots", *slots)
    database.close()
    command = [sys.executable, "-m", "slotwise", "slots", "a", "--all", *json_]
    with subprocess.Popen(
        command,
        env=shell.environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == exits.PIPE_CLOSED


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_that_is_full() -> None:
    """One line with the cure."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "slotwise", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == exits.FAILED
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        "No space left on device; make room there, or send the output elsewhere"
    )
