"""Real workers on a real database: starts them, reads their events as they come, sends them
signals, judges them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from tests.faults.cast import registry_of
from tests.kit import processes
from tests.kit.laws import Ledger, rows_and_ledger
from tests.kit.patience import PATIENCE

from slotwise import JobRegistry, Schedule
from slotwise.demo.evidence import HandlerLog, LogLine, gather
from slotwise.demo.verdict import Verdict, judge
from slotwise.spi import tables

ROOT = Path(__file__).resolve().parents[2]

#: Short leases: 400 ms × 4. A take-over then takes at most 2.4 s.
SETTINGS = {
    "heartbeat_interval": "400ms",
    "missed_heartbeats_limit": "4",
    "poll_interval": "300ms",
    "shutdown_grace": "3s",
    "threads": "10",
}
HEARTBEAT = timedelta(milliseconds=400)
LEASE = 4 * HEARTBEAT
#: A reaper looks once per heartbeat.
TAKE_OVER = LEASE + 2 * HEARTBEAT
POLL = timedelta(milliseconds=300)
#: For scenes in which nobody may lose a claim, on no machine.
WIDE = "8"
WIDE_LEASE = int(WIDE) * HEARTBEAT
#: What processes that come and go may add to any bound, on a machine that has a core for each that
#: wants to run.
SLACK = timedelta(seconds=3)


def loaded(span: timedelta) -> timedelta:
    """So long, on a machine as loaded as this one is now: a process that waits for a core takes
    longer for the same. The load of the last minute may be over, or just begin.
    """
    cpus = os.cpu_count() or 1
    return span * max(1.0, os.getloadavg()[0] / cpus, _running() / cpus)


def _running() -> int:
    """How many threads run or wait for a core at this moment; 0 where the system does not say."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except OSError:
        return 0


class Gone(AssertionError):
    """What was waited for did not happen."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An event of a worker, as it was read."""

    number: int
    at: float
    worker: Player | None
    facts: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.facts["event"])

    @property
    def said(self) -> datetime:
        """When its worker told it; ``at`` is when it was read."""
        return datetime.fromisoformat(self.facts["time"])

    def __getitem__(self, fact: str) -> Any:
        """A fact of it, None where it has none; a slot is an instant."""
        value = self.facts.get(fact)
        return datetime.fromisoformat(value) if fact == "slot" and value else value

    def __str__(self) -> str:
        shown = {
            key: value
            for key, value in self.facts.items()
            if key not in _DULL or self.name in ("log", "text")
        }
        return f"{self.at:9.3f} {self.worker!s:<8} {json.dumps(shown)[:300]}"


_DULL = ("time", "level", "logger", "message", "worker", "id")


class Events:
    """Everything that any worker has told, in the order in which it was read."""

    def __init__(self) -> None:
        self._seen: list[Seen] = []
        self._changed = threading.Condition()

    def add(self, worker: Player, facts: Mapping[str, Any]) -> None:
        with self._changed:
            self._seen.append(Seen(len(self._seen), time.monotonic(), worker, facts))
            self._changed.notify_all()

    def mark(self) -> Seen:
        """Now, between what has been read and what comes."""
        with self._changed:
            return Seen(len(self._seen) - 1, time.monotonic(), None, {"event": "now"})

    def all(self, *names: str, **facts: Any) -> list[Seen]:
        """What has been told so far."""
        with self._changed:
            return [seen for seen in self._seen if _fits(seen, names, facts)]

    def wait(
        self,
        *names: str,
        after: Seen | None = None,
        within: float = PATIENCE,
        **facts: Any,
    ) -> Seen:
        """The first such event after ``after``; raises Gone, with the latest events, if it does
        not come in time.
        """
        begin, end = (after.number + 1 if after else 0), time.monotonic() + within
        with self._changed:
            while True:
                for seen in self._seen[begin:]:
                    if _fits(seen, names, facts):
                        return seen
                begin = max(begin, len(self._seen))
                if (
                    not self._changed.wait(end - time.monotonic())
                    and time.monotonic() >= end
                ):
                    raise Gone(
                        f"no {' or '.join(names)} with {facts} within {within} s\n{self.tail()}"
                    )

    def tail(self, count: int = 60) -> str:
        dull = ("poll_begin", "heartbeat")
        with self._changed:
            return "\n".join(
                [str(seen) for seen in self._seen if seen.name not in dull][-count:]
            )


def _fits(seen: Seen, names: Collection[str], facts: Mapping[str, Any]) -> bool:
    if names and seen.name not in names:
        return False
    return all(
        _is(seen.worker if name == "by" else seen[name], wanted)
        for name, wanted in facts.items()
    )


def _is(value: Any, wanted: Any) -> bool:
    return (
        value is not None and bool(wanted(value))
        if callable(wanted)
        else value == wanted
    )


class Player:
    """One worker process, started by the command that users start."""

    def __init__(
        self, name: str, events: Events, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._events = events
        command = ["worker", "--app", "tests.faults.cast", "--app-dir", str(ROOT)]
        command += ["--log-format", "json", "--log-level", "DEBUG"]
        self.process = processes.start(
            *("-m", "slotwise", *command),
            directory=ROOT,
            environment={**environment, "SLOTWISE_WORKER_NAME": name},
            stderr=subprocess.STDOUT,
            text=False,
        )
        self.pid = self.process.pid
        self._reader = threading.Thread(
            target=self._read, name=f"reads {name}", daemon=True
        )
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._events.add(self, _parsed(line))
        self._events.add(self, {"event": "exit", "status": self.process.wait()})

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal; nothing if it has ended."""
        self.process.send_signal(number)

    def freeze(self) -> None:
        self.kill(signal.SIGSTOP)

    def thaw(self) -> None:
        self.kill(signal.SIGCONT)

    def end(self, within: float = PATIENCE) -> int:
        """Drain it, and wait for its exit status."""
        self.kill(signal.SIGTERM)
        return self.wait(within)

    def wait(self, within: float = PATIENCE) -> int:
        """Its exit status, once everything that it told has been read."""
        status = self.process.wait(within)
        self._reader.join(PATIENCE)  # it closes the pipe
        return status

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def __repr__(self) -> str:
        return self.name


def _parsed(line: bytes) -> Mapping[str, Any]:
    text = line.decode(errors="replace").rstrip()
    try:
        facts = json.loads(text)
    except ValueError:
        return {"event": "text", "message": text}
    return (
        facts
        if isinstance(facts, dict) and "event" in facts
        else {"event": "text", "message": text}
    )


class Bench:
    """The workers of one test on one database."""

    def __init__(self, url: str, directory: Path, cast: str, **settings: str) -> None:
        self.url = url
        self.cast = cast
        self.log = HandlerLog(directory / "handlers.log")
        self.settings = {**SETTINGS, **settings}
        self.events = Events()
        self.players: list[Player] = []
        self.registry: JobRegistry = registry_of(
            cast, database_url=url, process_hook=False
        )
        self._execute(
            "create table if not exists effects (job text, key text, token bigint)"
        )

    # -- workers ----------------------------------------------------------------------------------

    def start(
        self,
        name: str | None = None,
        *,
        cast: str | None = None,
        trap: str = "",
        way: str | None = None,
        beneath: Mapping[str, str] | None = None,
        **settings: str,
    ) -> Player:
        """Start a worker and return at once.

        ``way``: its application's own way to the database; ``beneath``: variables for what lies
        beneath Python.
        """
        name = name or f"w{len(self.players) + 1}"
        settings = {**self.settings, "database_url": self.url, **settings}
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SLOTWISE_", "PG"))
        }
        environment |= {
            f"SLOTWISE_{key.upper()}": value for key, value in settings.items()
        }
        environment |= {
            "CAST": cast or self.cast,
            "CAST_LOG": str(self.log.path),
            "CAST_URL": way or self.url,
            "CAST_TRAP": trap,
            **(beneath or {}),
        }
        player = Player(name, self.events, environment)
        self.players.append(player)
        return player

    def start_all(self, count: int) -> list[Player]:
        """Start workers, and wait until all of them are at work, or gone: a handler may end its
        process before the process has told that it works.
        """
        players = [self.start() for _ in range(count)]
        for player in players:
            self.wait("worker_start", "exit", by=player)
        return players

    def wait(
        self,
        *names: str,
        after: Seen | None = None,
        within: float = PATIENCE,
        **facts: Any,
    ) -> Seen:
        return self.events.wait(*names, after=after, within=within, **facts)

    def end_all(self) -> list[int]:
        """Drain all that live, and wait for them."""
        living = [player for player in self.players if player.is_alive]
        for player in living:
            player.thaw()
            player.kill(signal.SIGTERM)
        return [player.wait() for player in living]

    def close(self) -> None:
        """Whatever happened, leave no process behind."""
        for player in self.players:
            if player.is_alive:
                player.kill()
            player.wait()
        self.registry.database.close()

    # -- database ---------------------------------------------------------------------------------

    def rows(self, statement: str, **parameters: Any) -> list[Any]:
        """What the database says."""
        with self.connect() as connection:
            return list(connection.execute(sa.text(statement), parameters))

    def _execute(self, statement: str) -> None:
        with self.connect() as connection:
            connection.execute(sa.text(statement))

    @contextmanager
    def connect(self) -> Iterator[sa.Connection]:
        """A connection of the test's own; it does not count among the workers'."""
        engine = sa.create_engine(
            sa.make_url(self.url).set(drivername="postgresql+psycopg"),
            poolclass=sa.NullPool,
        )
        with engine.begin() as connection:
            yield connection
        engine.dispose()

    def now(self) -> datetime:
        """The database's time."""
        found: datetime = self.rows("select clock_timestamp()")[0][0]
        return found

    def mark(self) -> Seen:
        """A place between the events: what comes after it is new."""
        return self.events.mark()

    def rest(self, span: timedelta) -> None:
        """Let time pass: the length of a fault, never a guess at how long something takes."""
        time.sleep(span.total_seconds())

    def release(self, job: str, up_to: int = sys.maxsize) -> None:
        """Let go a handler that holds until the test has seen enough; of a numbered one, those up
        to this number.
        """
        draft = Path(f"{self.log.path}.{job}.release")
        draft.write_text(str(up_to))
        draft.replace(
            f"{self.log.path}.{job}.released"
        )  # handlers read it at any time

    def wait_for_empty_queue(self, within: float = PATIENCE) -> float:
        """Until no one-time task waits or runs; when that was."""
        eventually(
            lambda: (
                not self.rows(
                    "select from scheduled_tasks where schedule is null limit 1"
                )
            ),
            within,
        )
        return time.monotonic()

    def ledger(self, job: str) -> dict[datetime, Any]:
        """The job's slots, by slot."""
        return {
            row.slot: row
            for row in self.rows(
                "select * from scheduled_slots where task_name = :job", job=job
            )
        }

    # -- judgement --------------------------------------------------------------------------------

    def verdict(
        self,
        *,
        until: datetime | None = None,
        schedules: Mapping[str, Schedule] | None = None,
        completes: Collection[str] = (
            "completing",
            "completing-give-up",
            "hold-after-commit",
        ),
    ) -> Verdict:
        """Judge what has happened; all workers must have ended."""
        with self.connect() as connection:
            evidence = gather(
                connection,
                self.registry.jobs,
                self.log,
                schedules=schedules,
                completes=completes,
            )
        return judge(evidence, until=until)

    def expect_clean(self, **verdict: Any) -> Verdict:
        """Every law kept, every effect once, no outcome of a stale token accepted; else the events
        tell the story.
        """
        found = self.verdict(**verdict)
        assert found.clean, f"{found}\n{self.story(found)}"
        with self.connect() as connection:
            assert list(rows_and_ledger(Ledger.read(connection, tables()))) == []
        self.expect_one_effect_each()
        self.expect_one_settlement_each()
        return found

    def expect_one_effect_each(self) -> None:
        doubled = self.rows(
            "select job, key, count(*) from effects group by 1, 2 having count(*) > 1"
        )
        assert doubled == []

    def expect_one_settlement_each(self) -> None:
        """No slot was told as ended by two workers."""
        finals = ("succeeded", "failed", "lost", "dead", "skipped")
        ended = [
            (seen["job"], seen["id"], seen["slot"], seen["token"])
            for seen in self.events.all(
                "settled", outcome=lambda outcome: outcome in finals
            )
            if seen["reason"] != "retry" and seen["slot"]
        ]
        assert len(ended) == len({one[:3] for one in ended}), (
            f"settled twice:\n{self.events.tail()}"
        )

    def story(self, found: Verdict) -> str:
        """What was told about the slots of the findings."""
        wanted = {(one.job, one.slot) for one in found.findings[:5]}
        lines = [line for line in self.log.read() if (line.job, line.slot) in wanted]
        seen = [
            one for one in self.events.all() if (one["job"], one["slot"]) in wanted
        ]
        return "\n".join([*map(str, lines), *map(str, seen), self.events.tail(30)])

    def starts(self, job: str) -> list[LogLine]:
        """What the handlers of this job have written down as starts."""
        return [
            line
            for line in self.log.read()
            if line.job == job and line.mark == "start"
        ]


def eventually(
    check: Callable[[], Any], within: float = PATIENCE, pause: float = 0.05
) -> Any:
    """Look again and again until ``check`` gives something; for what only the database tells."""
    end = time.monotonic() + within
    while True:
        if found := check():
            return found
        if time.monotonic() > end:
            raise Gone(f"still {found!r} after {within} s")
        time.sleep(pause)
