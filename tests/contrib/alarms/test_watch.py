"""`slotwise watch` as real processes: several at once, and killed between delivery and mark."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.contrib.alarms.receivers import Receiver, receiving
from tests.integration.shell import Shell, wait_until

ALARMS = """
every = "200ms"
[rules]
late-after = "1s"
[jobs.quiet]
off = ["late", "no_success"]
[targets.ops]
type = "webhook"
url = "env:OPS_URL"
secret = "env:OPS_SECRET"
"""
INSERT_JOB = """
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, slot, schedule, kind, picked,
    version, created_version)
VALUES (%s, 'recurring', now() - interval '1 minute', now() - interval '1 minute',
    '0 0 2 * * *|UTC', 'plan', false, 9, extract(epoch FROM now()) * 1000000)"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def shell(tmp_path: Path, pg_url: str, receiver: Receiver) -> Iterator[Shell]:
    made = Shell(tmp_path, pg_url)
    made.environment |= {"OPS_URL": receiver.url, "OPS_SECRET": "s3cret"}
    made.write("alarms.toml", ALARMS)
    yield made
    made.close()


def execute(shell: Shell, statement: str, *given: object) -> None:
    with psycopg.connect(shell.environment["DATABASE_URL"]) as connection:
        connection.execute(statement, given)


def reconciled(shell: Shell) -> bool:
    with psycopg.connect(shell.environment["DATABASE_URL"]) as connection:
        kept = "SELECT value FROM scheduled_meta WHERE key = 'reconciled'"
        return connection.execute(kept).fetchone() is not None


def test_it_tells_and_ends_on_a_signal(shell: Shell, receiver: Receiver) -> None:
    """No worker is alive, and a job is late; when the job is gone, so are the incidents."""
    execute(shell, INSERT_JOB, "night")
    execute(shell, INSERT_JOB, "quiet")
    watch = shell.start("watch")
    receiver.wait_for(2)
    assert sorted(receiver.told) == [
        ("opened", "late", "night"),
        ("opened", "no_worker", ""),
    ]
    listed = json.loads(shell.ask("alarms", "list", "--json").stdout)
    assert {one["kind"] for one in listed["incidents"]} == {"late", "no_worker"}
    execute(shell, "DELETE FROM scheduled_tasks")
    receiver.wait_for(2)
    assert sorted(receiver.told[2:]) == [
        ("closed", "late", "night"),
        ("closed", "no_worker", ""),
    ]
    wait_until(lambda: reconciled(shell), "what the dashboard's verdict shows")
    assert watch.signal(signal.SIGTERM).end() == 0


#: The live worker lacks the tag of ``gpu``, and does not know ``nobody``. ``sync`` runs longer than
#: its finish_by; the last slot of ``lost`` was lost with its worker; a calendar has ended.
TROUBLE = """
UPDATE scheduled_tasks SET plan = '{"runs_on": ["gpu"]}' WHERE task_name = 'gpu';
UPDATE scheduled_tasks SET plan = '{"finish_by": {"by": "30s", "risk": 0.5}}', picked = true,
    picked_by = 'w', last_heartbeat = now(), lease = interval '1 hour' WHERE task_name = 'sync';
UPDATE scheduled_tasks SET execution_time = now() + interval '1 day',
    slot = now() + interval '1 day', consecutive_failures = 1, last_failure = now()
    WHERE task_name = 'lost';
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, reason, attempts, token,
    worker, started, finished)
VALUES ('lost', 'recurring', now() - interval '1 hour', 'lost', 'may_still_be_running', 1, 1,
    'gone', now() - interval '1 hour', now());
INSERT INTO scheduled_attempts (task_name, task_instance, slot, token, number, outcome, ended)
SELECT task_name, task_instance, slot, 1, 1, 'lost', now() FROM scheduled_slots;
INSERT INTO scheduled_calendars (name, revision, weekend, days, updated)
VALUES ('AT', 1, 'SAT,SUN', '2020:0101,1225', now());
INSERT INTO scheduled_workers (worker, host, pid, boot_id, tags, tasks, version, capacity, state,
    started, last_seen, lease, skew)
VALUES ('w', 'here', 1, 'b', '[]', '["gpu", "sync", "lost"]', '0.1.0', 9, 'running', now(), now(),
    interval '1 hour', 0.0)"""
MENDED = """
DELETE FROM scheduled_tasks WHERE task_name <> 'lost';
UPDATE scheduled_tasks SET consecutive_failures = 0, last_success = now();
DELETE FROM scheduled_calendars"""


def test_what_is_lost_too_slow_unroutable_or_ends_is_told(
    shell: Shell, receiver: Receiver
) -> None:
    """Each of these alarms has its message, with the reason, and one when it is over."""
    shell.write("alarms.toml", ALARMS.replace('"1s"', '"10m"'))
    for name in ("gpu", "nobody", "sync", "lost"):
        execute(shell, INSERT_JOB, name)
    execute(shell, TROUBLE)
    expected = [
        ("calendar", "AT", "lists no days after 2020"),
        ("finish_by", "sync", "has missed its finish_by"),
        ("lost", "lost", "ended as lost: may_still_be_running"),
        ("unroutable", "gpu", "no live worker that knows it carries gpu"),
        ("unroutable", "nobody", "its name is unknown to them"),
    ]
    watch = shell.start("watch")
    receiver.wait_for(len(expected))
    found = sorted((one.json["kind"], one.json["name"]) for one in receiver.requests)
    assert found == [(kind, name) for kind, name, _ in expected]
    summaries = {one.json["name"]: one.json["summary"] for one in receiver.requests}
    for _, name, words in expected:
        assert words in summaries[name]
    execute(shell, MENDED)
    receiver.wait_for(len(expected))
    assert sorted(receiver.told[len(expected) :]) == [
        ("closed", kind, name) for kind, name, _ in expected
    ]
    assert watch.signal(signal.SIGTERM).end() == 0


@pytest.mark.extended
def test_three_at_once_send_each_message_once(
    shell: Shell, receiver: Receiver
) -> None:
    watches = [shell.start("watch") for _ in range(3)]
    for one in watches:
        one.wait_until_text("watching")
    names = [f"job-{number}" for number in range(20)]
    for name in names:
        execute(shell, INSERT_JOB, name)
    receiver.wait_for(len(names) + 1)
    for one in watches:
        assert one.signal(signal.SIGTERM).end() == 0
    assert sorted(name for _, kind, name in receiver.told if kind == "late") == sorted(
        names
    )


def test_killed_between_delivery_and_mark(shell: Shell, receiver: Receiver) -> None:
    """The message is sent again, by another watcher, with the same idempotency key."""
    shell.environment["SLOTWISE_ALARMS"] = "alarms.toml"
    execute(shell, INSERT_JOB, "night")
    receiver.gate.clear()
    first = shell.start("watch")
    receiver.wait_for(1)
    first.signal(signal.SIGKILL).end()
    receiver.gate.set()
    second = shell.start("watch")
    second.wait_until_text("watching")
    # as if the two minutes had passed after which another watcher may send it
    execute(
        shell,
        "UPDATE scheduled_incidents SET next_attempt = now(), version = version + 1",
    )
    wait_until(lambda: len(receiver.requests) >= 3, "the messages of both incidents")
    keys = [one.headers["idempotency-key"] for one in receiver.requests]
    assert keys[0] in keys[1:]
    assert len(set(keys)) == 2
    assert second.signal(signal.SIGTERM).end() == 0


def test_without_targets_it_says_so(shell: Shell) -> None:
    shell.write("alarms.toml", "")
    watch = shell.start("watch")
    watch.wait_until_text("no targets")
    assert watch.signal(signal.SIGINT).end() == 0


APPLICATION = """
from slotwise import JobContext, JobRegistry, job
from slotwise.contrib.alarms import Alarms, Rules, Webhook, alarm_rules
import os

@job(name="night", schedule="0 2 * * *")
@alarm_rules(off=["late"])
def night(ctx: JobContext) -> None: ...

@job(name="tick", schedule="* * * * * *")
def tick(ctx: JobContext) -> None:
    raise OSError("no space left")

registry = JobRegistry(jobs=[night, tick])
alarms = Alarms(
    registry, targets=[Webhook(os.environ["OPS_URL"])], every="200ms", in_worker=True
)
"""


def test_a_worker_tells_by_itself(shell: Shell, receiver: Receiver) -> None:
    """On a thread of its process, while it runs."""
    shell.write("jobs.py", APPLICATION)
    worker = shell.worker("--app", "jobs")
    receiver.wait_for(1)
    assert receiver.told[0] == ("opened", "failed", "tick")
    assert worker.stop() == 0


def test_rules_of_the_application_count(shell: Shell, receiver: Receiver) -> None:
    """``watch --app`` takes the application's alarms."""
    shell.write("jobs.py", APPLICATION)
    execute(shell, INSERT_JOB, "night")
    watch = shell.start("watch", "--app", "jobs")
    receiver.wait_for(1)
    assert receiver.told == [("opened", "no_worker", "")]
    assert watch.signal(signal.SIGTERM).end() == 0


def test_silence_by_command(shell: Shell) -> None:
    execute(shell, INSERT_JOB, "night")
    made = shell.ask(
        "alarms", "silence", "night", "late", "--until", "2h", "--author", "ada"
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("silent night (late) until ")
    assert "by ada" in shell.ask("alarms").stdout
    ended = shell.ask("alarms", "silence", "night", "late", "--until", "0s")
    assert (ended.stdout, ended.stderr) == ("night (late) is silent no more\n", "")
    again = shell.ask("alarms", "silence", "night", "late", "--until", "0s")
    assert (again.returncode, again.stdout) == (1, "")
    assert "no silence of night (late)" in again.stderr
    assert json.loads(shell.ask("alarms", "list", "--json").stdout) == {
        "incidents": [],
        "silences": [],
    }


def test_what_a_row_says_moves_no_cursor(shell: Shell) -> None:
    """A name, an error or a note is no escape and no line of its own."""
    execute(
        shell,
        "INSERT INTO scheduled_incidents (kind, name, number, version, opened, seen, summary, "
        "delivered, attempts, error) VALUES ('failed', 'x', 1, 1, now(), now(), %s, '{}', 1, %s)",
        "x\x1b[2J\nover",
        "ops: \u202eno",
    )
    arguments = "--until", "2h", "--note", "\x1b[1mknown\nover"
    shell.ask("alarms", "silence", "*", *arguments)
    told = shell.ask("alarms").stdout
    assert len(told.splitlines()) == 2
    assert "x\\x1b[2J\\nover" in told
    assert "\\u202eno" in told
    assert "\\x1b[1mknown\\nover" in told
    assert shell.ask("alarms", "list", "--json").stdout.isascii()


def test_only_a_known_name_is_silenced(shell: Shell) -> None:
    """Of a job, a task or a calendar; the name of a silence that is ended may be gone."""
    execute(shell, INSERT_JOB, "night")
    made = shell.ask("alarms", "silence", "nihgt", "--until", "2h")
    assert (made.returncode, made.stdout) == (1, "")
    assert "did you mean 'night'" in made.stderr
    shell.ask("calendar", "add", "AT", "2026-12-24", "--create")
    assert shell.ask("alarms", "silence", "AT", "--until", "2h").returncode == 0
    assert shell.ask("alarms", "silence", "night", "--until", "2h").returncode == 0
    execute(shell, "DELETE FROM scheduled_tasks")
    assert shell.ask("alarms", "silence", "night", "--until", "0s").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["silence", "night", "laet", "--until", "2h"], "'laet' is no kind of alarm"),
        (["silence", "night", "--until", "2026-01-01T00:00"], "has no offset"),
        (["silence", "night", "--until", "soon"], "soon"),
        (["silence", "*", "--until", "2026-01-01T00:00Z"], "has passed"),
    ],
)
def test_wrong_arguments(shell: Shell, arguments: list[str], words: str) -> None:
    made = shell.ask("alarms", *arguments)
    assert made.returncode != 0
    assert words in made.stderr
    assert "Traceback" not in made.stderr


def test_the_targets_are_tried(shell: Shell, receiver: Receiver) -> None:
    """Exit status 1 if one of them refuses."""
    assert shell.ask("alarms", "test").stdout == "ops: accepted\n"
    receiver.statuses = [500]
    made = shell.ask("alarms", "test", "--json")
    assert (made.returncode, json.loads(made.stdout)) == (
        1,
        {"ops": "OSError: HTTP status 500"},
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("evry = '1s'", "'evry' is not known"),
        ("every = 5", "write a duration"),
        ("[targets.x]\nurl = 'http://h'", "targets.x: type is missing"),
        ("[targets.x]\ntype = 'pager'", "type='pager' is not known"),
        ("[targets.x]\ntype = 'slack'", "url is missing"),
        (
            "[targets.x]\ntype = 'slack'\nurl = 'env:NOWHERE_SET'",
            "NOWHERE_SET is not set",
        ),
        ("[targets.x]\ntype = 'slack'\nurl = 'http://h'\nto = 1", "'to' is not known"),
        (
            "[targets.x]\ntype = 'email'\nhost = 'h'\nsender = 'a@b'",
            "to must be a list",
        ),
        ("targets = 3", "write names with values"),
        ("[jobs.a]\nlate-after = 3", "jobs.a: late_after=3"),
        ("every = '1s", "alarms.toml"),
    ],
)
def test_a_wrong_file_is_refused(shell: Shell, text: str, words: str) -> None:
    """By value, place and cure, in one line."""
    shell.write("alarms.toml", text)
    made = shell.ask("watch")
    assert made.returncode == 1
    assert words in made.stderr
    assert "Traceback" not in made.stderr
