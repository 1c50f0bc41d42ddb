"""A CommandJob: what it accepts, what a command finds around it, and how its end becomes the
attempt's.
"""

from __future__ import annotations

import logging
import os
import pwd
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from slotwise import CommandFailed, Every, InvalidJob, Retry
from slotwise.contrib.commands import CommandJob, command_job
from slotwise.contrib.commands.invocation import account_of
from slotwise.inspect import SlotInfo
from slotwise.spi import define, error_summary
from slotwise.testing import ManualWorker

AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become somebody else"
)


def a_job(command: Any = "true", **given: Any) -> CommandJob:
    return CommandJob(name="job", schedule=Every("1m"), command=command, **given)


def run(command: Any, **given: Any) -> SlotInfo:
    """One slot, in a worker's hands; its line in the ledger."""
    with ManualWorker([a_job(command, **given)]) as worker:
        worker.tick("1m")
        worker.run_due()
        (line,) = worker.client.inspect.slots("job")
    return line


def error_of(command: Any, **given: Any) -> str:
    """What the ledger keeps of a failure."""
    line = run(command, **given)
    assert line.outcome == "failed"
    assert line.error is not None
    return line.error


def timed_out(
    script: str, timeout: str, on_line: Callable[[str, Callable[[], object]], None]
) -> str:
    """What the ledger keeps of a command whose time is up as soon as it has written
    ``working``.
    """
    with ManualWorker([a_job(script, timeout=timeout)]) as worker:
        worker.tick("1m")
        on_line("working", lambda: (worker.tick(timeout), worker.watch()))
        worker.run_due()
        (line,) = worker.client.inspect.slots("job")
    assert line.outcome == "failed"
    assert line.error is not None
    return line.error


def told(error: str) -> str:
    return error_summary(error).removeprefix("slotwise.errors.CommandFailed: ")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines that commands have written so far, as the log has them."""
    caplog.set_level(logging.INFO, logger="slotwise.job")
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if record.name == "slotwise.job"
    ]


@pytest.fixture
def on_line() -> Iterator[Callable[[str, Callable[[], object]], None]]:
    """Do something as soon as a command has written this line."""
    reactions: dict[str, Callable[[], object]] = {}

    class Reacting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reactions.get(record.getMessage(), lambda: None)()

    logger, handler = logging.getLogger("slotwise.job"), Reacting()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield reactions.__setitem__
    logger.removeHandler(handler)
    logger.setLevel(level)


def alive(pid: int) -> bool:
    """Whether a process of this number runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[
            0
        ] not in (
            "Z",
            "X",
        )
    except FileNotFoundError:
        return False


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({"command": " "}, "command is ' '", id="blank"),
        pytest.param({"command": []}, "empty list", id="empty-list"),
        pytest.param({"command": 5}, "command is 5", id="number"),
        pytest.param({"command": ["a", 5]}, "command has 5", id="number-in-list"),
        pytest.param({"command": "a\0b"}, "NUL", id="nul"),
        pytest.param(
            {"command": ["a"], "shell": "/bin/sh"},
            "no shell runs it",
            id="list-and-shell",
        ),
        pytest.param({"env": {"A=B": "c"}}, "env has the name 'A=B'", id="env-name"),
        pytest.param({"env": {"A": 5}}, "env['A'] is 5", id="env-value"),
        pytest.param({"env": "A=B"}, "env is a str", id="env-text"),
        pytest.param(
            {"inherit_env": "PATH"}, "inherit_env is 'PATH'", id="inherit-text"
        ),
        pytest.param({"stdin": 5}, "stdin is a int", id="stdin"),
        pytest.param({"user": ""}, "user is ''", id="user"),
        pytest.param({"timout": "5s"}, "did you mean timeout?", id="typo"),
        pytest.param({"retrry": None}, "did you mean retry?", id="policy-typo"),
    ],
)
def test_what_could_never_run_is_refused(given: dict[str, Any], words: str) -> None:
    """At once, in one line that names the job and the value."""
    with pytest.raises(InvalidJob) as refused:
        a_job(**given)
    assert str(refused.value).startswith("CommandJob('job'): ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("timeout", ["soon", "0s"])
def test_its_policies_are_checked_at_registration(timeout: str) -> None:
    """As those of any job."""
    with pytest.raises(InvalidJob, match=f"CommandJob.timeout.*'{timeout}'"):
        define(a_job(timeout=timeout))


def test_it_is_a_job_like_any_other() -> None:
    """Policies are keywords, and reach the definition; its timeout is the engine's, and there is
    no other.
    """
    retry = Retry(max_attempts=2)
    definition = define(a_job(["true"], retry=retry, max_lost=5, timeout="1h"))
    assert (definition.name, definition.retry, definition.max_lost) == (
        "job",
        retry,
        5,
    )
    assert definition.timeout == timedelta(hours=1)


# -- how it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "last"),
    [
        pytest.param(
            "echo a; echo b >&2; exit 3",
            "exit status 3; its last line: b",
            id="status",
        ),
        pytest.param("exit 1", "exit status 1; it wrote nothing", id="silent"),
        pytest.param(
            "kill -SEGV $$", "ended by SIGSEGV; it wrote nothing", id="signal"
        ),
        pytest.param(
            "sh -c 'kill -9 $$'; exit 137",
            "exit status 137 (of a shell: ended by SIGKILL)",
            id="shell",
        ),
        pytest.param(
            "exit 168",
            "exit status 168 (of a shell: ended by signal 40)",
            id="unnamed",
        ),
        pytest.param(
            "exit 192",
            "exit status 192 (of a shell: ended by SIGRTMAX)",
            id="last-signal",
        ),
        pytest.param("exit 193", "exit status 193; it wrote nothing", id="no-signal"),
        pytest.param("exit 255", "exit status 255; it wrote nothing", id="of-ssh"),
        pytest.param("exit 128", "exit status 128; it wrote nothing", id="128"),
        pytest.param(
            "no-such-program",
            "exit status 127 (not found; PATH is /usr/bin:/bin)",
            id="not-found",
        ),
        pytest.param(
            "/etc/passwd",
            "exit status 126 (it cannot be executed)",
            id="not-executable",
        ),
    ],
)
def test_a_bad_end_is_a_failure_that_says_how(command: str, last: str) -> None:
    """The last line, which listings show, has the exit status and the last line of the output."""
    assert told(error_of(command, inherit_env=False)).startswith(last)


@pytest.mark.parametrize("command", ["exit 0", "true; echo fine", ["true"]], ids=str)
def test_exit_status_zero_is_success(command: Any) -> None:
    assert run(command).outcome == "succeeded"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(
            {"command": ["/no/such"]},
            "No such file or directory: '/no/such'",
            id="program",
        ),
        pytest.param(
            {"shell": "/no/sh"}, "No such file or directory: '/no/sh'", id="shell"
        ),
        pytest.param(
            {"cwd": "/no/where"}, "its directory is /no/where", id="directory"
        ),
        pytest.param(
            {"user": "nobody-at-all"},
            "there is no user 'nobody-at-all' on this host",
            id="user",
        ),
    ],
)
def test_what_cannot_start_fails_with_the_reason(
    given: dict[str, Any], words: str
) -> None:
    command = given.pop("command", "true")
    assert words in told(error_of(command, **given))


def test_the_ledger_keeps_the_end_of_the_output() -> None:
    """The last hundred lines, whole, whatever came before them."""
    error = error_of("seq 1 100000; exit 2")
    assert [
        line.strip()
        for line in error.splitlines()
        if line.startswith("  ") and line.strip().isdigit()
    ] == [str(number) for number in range(99_901, 100_001)]
    assert told(error) == "exit status 2; its last line: 100000"


def test_endless_lines_and_bytes_of_no_text_are_kept_in_bounds(
    said: Callable[[], list[str]],
) -> None:
    """A line of a megabyte comes in pieces; what is no UTF-8 is replaced; the ledger's part stays
    small.
    """
    error = error_of(
        r"head -c 1000000 /dev/zero | tr '\0' x; printf '\nbad \377\r\n'; exit 1"
    )
    assert said()[-1] == "bad �"
    assert {len(line) for line in said()[:100]} == {8192}
    assert sum(map(len, said())) == 1_000_000 + len("bad ?")
    assert len(error) < 12_000


def test_an_unknown_status_is_no_success() -> None:
    """Where a process lets the system reap its children, nobody knows how they ended."""
    former = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert "exit status unknown" in told(error_of("exit 1"))
    finally:
        signal.signal(signal.SIGCHLD, former)


# -- while it runs --------------------------------------------------------------------------------


def test_output_is_passed_on_while_the_command_runs(
    tmp_path: Path, on_line: Callable[[str, Callable[[], object]], None]
) -> None:
    """A line reaches the log before the command ends: here it ends only because its line has been
    seen.
    """
    go = tmp_path / "go"
    on_line("ready", go.touch)
    ended = run(f"echo ready; until [ -e {go} ]; do sleep 0.02; done", timeout="30s")
    assert ended.outcome == "succeeded"


def test_both_streams_come_in_order(said: Callable[[], list[str]]) -> None:
    """stdout and stderr are one stream, and the last line needs no newline."""
    run("echo a; echo b >&2; echo c; printf d")
    assert said() == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("stdin", "lines"),
    [
        pytest.param(None, ["0"], id="nothing"),
        pytest.param("one\ntwo\n", ["8"], id="text"),
        pytest.param(b"\x00\xff", ["2"], id="bytes"),
        pytest.param("x" * 1_000_000, ["1000000"], id="much"),
    ],
)
def test_stdin(
    stdin: str | bytes | None, lines: list[str], said: Callable[[], list[str]]
) -> None:
    """What is given is read; nothing else, least of all the worker's own."""
    run("wc -c", stdin=stdin)
    assert [line.strip() for line in said()] == lines


def test_a_command_need_not_read_its_input() -> None:
    """A megabyte that nobody reads blocks nobody."""
    assert run("true", stdin="x" * 1_000_000).outcome == "succeeded"


def test_a_timeout_ends_all_that_was_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_line: Callable[[str, Callable[[], object]], None],
) -> None:
    """Children and grandchildren, those too that are deaf to SIGTERM; and the ledger says so."""
    monkeypatch.setattr(command_job, "KILL_AFTER", command_job.LOOK * 3)
    script = f"""
    sleep 300 & echo $! >> {tmp_path}/pids
    (trap '' TERM; sleep 300 & echo $! >> {tmp_path}/pids; while :; do sleep 1; done) &
    echo $! >> {tmp_path}/pids; echo $$ >> {tmp_path}/pids
    until [ $(wc -l < {tmp_path}/pids) -eq 4 ]; do sleep 0.01; done
    echo working; wait
    """
    error = timed_out(script, "500ms", on_line)
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 4
    assert [pid for pid in pids if alive(pid)] == []
    assert (
        told(error)
        == "timed out after 500ms; ended with all that it had started; its last line: working"
    )


def test_a_program_under_a_shell_may_clean_up(
    tmp_path: Path, on_line: Callable[[str, Callable[[], object]], None]
) -> None:
    """SIGTERM ends the shell at once; what it runs still gets its seconds."""
    trap = f"trap 'sleep 0.4; echo cleaned > {tmp_path}/done; exit' TERM"
    script = f"({trap}; echo working; while :; do sleep 0.05; done) & wait"
    timed_out(script, "300ms", on_line)
    assert (tmp_path / "done").read_text() == "cleaned\n"


def test_a_lost_claim_ends_the_command(
    tmp_path: Path, on_line: Callable[[str, Callable[[], object]], None]
) -> None:
    """Whoever holds the claim now runs the command, and we no longer do."""
    with ManualWorker(
        [a_job(f"echo $$ > {tmp_path}/pid; echo ready; exec sleep 300")]
    ) as worker:
        worker.tick("1m")
        on_line("ready", lambda: worker.tick("1h"))
        worker.run_due()
    assert not alive(int((tmp_path / "pid").read_text()))


def test_what_is_left_in_the_background_goes_on(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    """The command's own end is the attempt's, though a child of it holds the output."""
    ended = run(f"sleep 300 & echo $! > {tmp_path}/pid; echo started")
    pid = int((tmp_path / "pid").read_text())
    try:
        assert ended.outcome == "succeeded"
        assert said()[0] == "started"
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


# -- around it ------------------------------------------------------------------------------------


def environment_of(said: Callable[[], list[str]], **given: Any) -> dict[str, str]:
    run("env", **given)
    return dict(line.split("=", 1) for line in said() if "=" in line)


def test_the_environment_is_inherited_with_additions(
    said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default a command finds what the worker has, and what the job adds."""
    monkeypatch.setenv("OF_WORKER", "1")
    found = environment_of(said, env={"OF_JOB": "2"})
    assert (found["OF_WORKER"], found["OF_JOB"], found["PATH"]) == (
        "1",
        "2",
        os.environ["PATH"],
    )


def test_a_clean_environment_is_crons(
    said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without inheritance there is what cron gives, the named variables, the job's own, and the
    slot's.
    """
    monkeypatch.setenv("SECRET", "1")
    monkeypatch.setenv("NAMED", "2")
    account = pwd.getpwuid(os.geteuid())
    found = environment_of(
        said,
        inherit_env=["NAMED", "MISSING"],
        env={"PATH": "/usr/bin:/bin:/x"},
        shell="/bin/sh",
    )
    del found["PWD"]
    found.pop("_", None)
    assert found == {
        "PATH": "/usr/bin:/bin:/x",
        "SHELL": "/bin/sh",
        "HOME": account.pw_dir,
        "LOGNAME": account.pw_name,
        "USER": account.pw_name,
        "NAMED": "2",
        "SLOTWISE_JOB": "job",
        "SLOTWISE_SLOT": "2026-01-01T00:01:00Z",
        "SLOTWISE_ATTEMPT": "1",
        "SLOTWISE_TOKEN": found["SLOTWISE_TOKEN"],
        "SLOTWISE_KEY": "job/recurring/2026-01-01T00:01:00+00:00",
    }


def test_slotwise_may_be_called_from_a_command() -> None:
    """The slot's variables look like settings, and are not taken for any."""
    assert (
        run([sys.executable, "-m", "slotwise", "db", "upgrade", "--sql"]).outcome
        == "succeeded"
    )


@pytest.mark.parametrize(
    ("given", "where"),
    [
        pytest.param({"cwd": "/usr"}, "/usr", id="named"),
        pytest.param({"cwd": Path("/usr")}, "/usr", id="path"),
        pytest.param({"cwd": "~", "env": {"HOME": "/usr"}}, "/usr", id="home"),
        pytest.param(
            {"cwd": "~", "env": {"HOME": "/no/home"}}, "/", id="home-is-missing"
        ),
        pytest.param({}, str(Path.cwd()), id="workers"),
    ],
)
def test_directory(
    given: dict[str, Any], where: str, said: Callable[[], list[str]]
) -> None:
    run("pwd", **given)
    assert said()[-1] == where


def test_a_shell_runs_texts_and_nobody_runs_lists(
    said: Callable[[], list[str]],
) -> None:
    run("echo $((1 + 1)) $0", shell="/bin/bash")
    run(["echo", "$((1 + 1))", "a  b"])
    assert said() == ["2 /bin/bash", "$((1 + 1)) a  b"]


@AS_ROOT
def test_root_becomes_the_user(
    said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the user's own groups and home, and nothing of the worker's environment."""
    monkeypatch.setenv("SECRET", "1")
    nobody = pwd.getpwnam("nobody")
    run(
        "id -u; id -g; id -G; echo $HOME $LOGNAME $USER ${SECRET-none}",
        user="nobody",
        cwd="/",
    )
    groups = " ".join(map(str, os.getgrouplist("nobody", nobody.pw_gid)))
    names = f"{nobody.pw_dir} nobody nobody none"
    assert said() == [str(nobody.pw_uid), str(nobody.pw_gid), groups, names]


@AS_ROOT
def test_another_users_command_is_ended_too(
    open_path: Path, on_line: Callable[[str, Callable[[], object]], None]
) -> None:
    """Root may, whoever it runs as."""
    open_path.chmod(0o777)
    pid = open_path / "pid"
    with ManualWorker(
        [a_job(f"echo $$ > {pid}; echo ready; exec sleep 300", user="nobody", cwd="/")]
    ) as worker:
        worker.tick("1m")
        on_line("ready", lambda: worker.tick("1h"))
        worker.run_due()
    assert not alive(int(pid.read_text()))


def test_nobody_but_root_becomes_somebody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message names both, and both ways out."""
    monkeypatch.setattr(os, "geteuid", lambda: pwd.getpwnam("daemon").pw_uid)
    assert account_of("daemon").switch() == {}
    with pytest.raises(
        CommandFailed,
        match=r"only root .* as 'nobody', and this process runs as 'daemon'; run it as",
    ):
        account_of("nobody")


def test_a_number_without_an_account_has_the_environments_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container may run under any number."""
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    monkeypatch.setenv("HOME", "/work")
    account = account_of(None)
    assert (account.name, account.home, account.switch()) == ("54321", "/work", {})
