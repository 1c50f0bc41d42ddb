"""The lines of a crontab: what each means, as cron means it, and what is said about those that
cannot run.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slotwise import InvalidCrontab, InvalidSchedule
from slotwise.contrib.crontab import Crontabs, Entry, parse_crontab
from slotwise.contrib.crontab.reader import read_assignment, split_input
from slotwise.spi import define

#: As packages of a Linux distribution put them into /etc/crontab and /etc/cron.d, in words of our
#: own.
SYSTEM = """\
# the times are the machine's
SHELL=/bin/sh
PATH=/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin

17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly
25 6\t* * *\troot\ttest -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }
47 6\t* * 7\troot    test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.weekly )
30 7-23 * * *   root\t[ -x /etc/init.d/anacron ] && if [ ! -d /run/systemd/system ]; then invoke-rc.d anacron start; fi
09,39 *     * * *     root   [ -x /usr/lib/php/sessionclean ] && if [ ! -d /x ]; then /usr/lib/php/sessionclean; fi
57 0 * * 0 root if [ -x /usr/share/mdadm/checkarray ] && [ $(date +\\%d) -le 7 ]; then /usr/share/mdadm/checkarray; fi
5-55/10 * * * * root command -v debian-sa1 > /dev/null && debian-sa1 1 1
0 */12 * * * root test -x /usr/bin/certbot -a \\! -d /x && perl -e 'sleep int(rand(43200))' && certbot -q renew
30 3 * * 0 root test -e /run/systemd/system || SERVICE_MODE=1 /usr/lib/e2fsprogs/e2scrub_all_cron
"""


def entry(line: str, **given: Any) -> Entry:
    """The only line that runs something, and nothing wrong with it."""
    found = parse_crontab(line, **given)
    assert found.errors == []
    (one,) = found.entries
    return one


def said(text: str, **given: Any) -> list[tuple[int | None, str, str]]:
    """Line, level and what is wrong."""
    return [
        (problem.line, problem.level, problem.text)
        for problem in parse_crontab(text, **given).problems
    ]


# -- lines that run -------------------------------------------------------------------------------


def test_lines_of_packages() -> None:
    """Each is a job, of the user in its column, with the variables above it."""
    found = parse_crontab(SYSTEM, system=True)
    assert {problem.level for problem in found.problems} == {"note"}
    assert [one.name.rpartition("-")[0] for one in found.entries] == [
        "run-parts-cron.hourly",
        "run-parts-cron.daily",
        "run-parts-cron.weekly",
        "invoke-rc.d",
        "sessionclean",
        "checkarray",
        "debian-sa1",
        "certbot",
        "e2scrub_all_cron",
    ]
    assert {(one.user, one.shell, tuple(one.env)) for one in found.entries} == {
        ("root", "/bin/sh", ("SHELL", "PATH"))
    }
    assert "$(date +%d)" in found.entries[5].command
    assert r"-a \! -d" in found.entries[7].command
    assert [one.line for one in found.entries] == [5, 6, 7, 8, 9, 10, 11, 12, 13]


@pytest.mark.parametrize(
    ("line", "time", "command"),
    [
        pytest.param(
            "0 2 * * * a b  c", "0 2 * * *", "a b  c", id="blanks-in-the-command-stay"
        ),
        pytest.param(" \t0\t2  * * *\t a", "0 2 * * *", "a", id="tabs"),
        pytest.param("@daily a", "@daily", "a", id="macro"),
        pytest.param(
            "0 2 * JAN-MAR mon,fri a", "0 2 * JAN-MAR mon,fri", "a", id="names"
        ),
        pytest.param(
            "0 2 * * * A=1 b # no comment",
            "0 2 * * *",
            "A=1 b # no comment",
            id="hash-in-the-command",
        ),
        pytest.param(
            "*/5 * * * * -q -n a -n",
            "*/5 * * * *",
            "a -n",
            id="options-of-other-crons",
        ),
        pytest.param("0 2 * * * a;\\", "0 2 * * *", "a;\\", id="backslash-at-the-end"),
    ],
)
def test_a_users_line(line: str, time: str, command: str) -> None:
    """Five fields or a macro, then the command, up to the end of the line."""
    found = entry(line)
    assert (found.time, found.user, found.command, found.stdin) == (
        time,
        None,
        command,
        None,
    )


@pytest.mark.parametrize(
    ("line", "user", "command"),
    [
        pytest.param("0 2 * * * root a b", "root", "a b", id="fields"),
        pytest.param("@daily\twww-data  a b", "www-data", "a b", id="macro"),
        pytest.param("@daily host$ a", "host$", "a", id="strange-name"),
        pytest.param(
            "@daily jane.doe@example.org a",
            "jane.doe@example.org",
            "a",
            id="of-a-domain",
        ),
    ],
)
def test_a_system_line(line: str, user: str, command: str) -> None:
    """It names the user before the command."""
    found = entry(line, system=True)
    assert (found.user, found.command) == (user, command)


@pytest.mark.parametrize(
    ("text", "command", "stdin"),
    [
        pytest.param("a b", "a b", None, id="none"),
        pytest.param(
            "mail joe%Joe,%%Where?%", "mail joe", "Joe,\n\nWhere?\n", id="lines"
        ),
        pytest.param("mail joe%Joe", "mail joe", "Joe\n", id="ends-with-a-newline"),
        pytest.param("cat%", "cat", "", id="empty"),
        pytest.param(r"date +\%d", "date +%d", None, id="escaped"),
        pytest.param(
            r"date +\%d%a\%b%c", "date +%d", "a%b\nc\n", id="escaped-in-both"
        ),
        pytest.param(
            r"printf a\\n\!", r"printf a\n\!", None, id="other-backslashes-stay"
        ),
        pytest.param(r"a\\\%b", r"a\%b", None, id="escaped-backslash-and-percent"),
        pytest.param(r"a\\%b", "a\\", "b\n", id="escaped-backslash"),
        pytest.param(r"a%b\\%c", "a", "b\\%c\n", id="escaped-backslash-in-input"),
        pytest.param("a\\", "a\\", None, id="backslash-at-the-end"),
    ],
)
def test_percent_signs(text: str, command: str, stdin: str | None) -> None:
    """The first ends the command, the others are newlines of its input, escaped ones are
    themselves.
    """
    assert split_input(text) == (command, stdin)


def test_days_are_crons() -> None:
    """Both day fields, one of them with a star: as Debian's cron takes it, not as POSIX."""
    schedule = entry("0 0 */2 * sun a").schedule
    slots = list(
        schedule.slots(
            datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 31, tzinfo=UTC)
        )
    )
    assert [slot.day for slot in slots] == [11, 25]  # odd days that are Sundays
    schedule = entry("0 0 13 * fri a").schedule
    slots = list(
        schedule.slots(
            datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 20, tzinfo=UTC)
        )
    )
    assert [slot.day for slot in slots] == [2, 9, 13, 16]


# -- variables ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        pytest.param("A=b", "A", "b", id="plain"),
        pytest.param("A = b c  ", "A", "b c", id="blanks"),
        pytest.param("A=", "A", "", id="empty"),
        pytest.param('A=" b "', "A", " b ", id="double-quotes"),
        pytest.param("A=' b ' \t", "A", " b ", id="single-quotes"),
        pytest.param("A='say \"b\"'", "A", 'say "b"', id="quotes-in-quotes"),
        pytest.param('A=b "c"', "A", 'b "c"', id="quotes-inside"),
        pytest.param('"A"=b', "A", "b", id="quoted-name"),
        pytest.param("A=b=c", "A", "b=c", id="equals-sign"),
        pytest.param('A="b', "A", None, id="open"),
        pytest.param('A="b" c', "A", None, id="more-behind"),
    ],
)
def test_assignments(line: str, name: str, value: str | None) -> None:
    """Names and values as cron reads them, quotes and blanks."""
    assert read_assignment(line) == (name, value)


@pytest.mark.parametrize("line", ["0 2 * * * A=1 b", "@daily A=1 b", "* * * * * a=b"])
def test_a_line_with_an_equals_sign_may_run_something(line: str) -> None:
    assert read_assignment(line) is None


def test_variables_hold_for_the_lines_below() -> None:
    """Each line has what has been set above it; a later value takes the place of an earlier
    one.
    """
    found = parse_crontab("@daily a\nA=1\nSHELL=/bin/bash\n@daily b\nA=2\n@daily c\n")
    envs = [dict(one.env) for one in found.entries]
    assert envs == [
        {},
        {"A": "1", "SHELL": "/bin/bash"},
        {"A": "2", "SHELL": "/bin/bash"},
    ]
    assert [one.shell for one in found.entries] == [
        "/bin/sh",
        "/bin/bash",
        "/bin/bash",
    ]


def test_zones() -> None:
    """CRON_TZ moves the lines below it; TZ, as in cron, is the commands'; without either it is
    what the reader says.
    """
    text = "@daily a\nCRON_TZ=Europe/Vienna\nTZ=Asia/Tokyo\n@daily b\nCRON_TZ=\n@daily c\n"
    for tz, zone in ((None, "UTC"), ("America/New_York", "America/New_York")):
        found = parse_crontab(text, tz=tz).entries
        assert [one.schedule.zone.key for one in found] == [
            zone,
            "Europe/Vienna",
            zone,
        ]
        assert [dict(one.env) for one in found] == [
            {},
            {"TZ": "Asia/Tokyo"},
            {"TZ": "Asia/Tokyo"},
        ]
        assert [one.zone_said for one in found] == [
            tz is not None,
            True,
            tz is not None,
        ]


def test_an_unknown_zone_of_the_reader_is_an_error() -> None:
    with pytest.raises(InvalidSchedule, match="Europe/Vienna"):
        parse_crontab("@daily a", tz="Europe/Viena")


def test_our_own_variables() -> None:
    """A timeout and a policy for the lines below, in words that cron takes for variables; no
    command sees them.
    """
    text = (
        "SLOTWISE_TIMEOUT=10m\nSLOTWISE_ON_LOST=give_up\n@daily "
        "a\nSLOTWISE_TIMEOUT=\nSLOTWISE_ON_LOST=\n@daily b\n"
    )
    first, second = parse_crontab(text).entries
    assert (first.timeout, first.on_lost, dict(first.env)) == (
        timedelta(minutes=10),
        "give_up",
        {},
    )
    assert (second.timeout, second.on_lost) == (None, "rerun")


def test_a_line_becomes_a_job() -> None:
    """With cron's environment: nothing of the worker's but what is named; in the user's home."""
    text = (
        "SHELL=/bin/bash\nA=1\nSLOTWISE_TIMEOUT=1h\nSLOTWISE_ON_LOST=give_up\n@daily "
        "www-data a%b"
    )
    one = entry(text, system=True)
    job = one.job(("NAMED",))
    assert (job.command.argv, job.command.env) == (
        ["/bin/bash", "-c", "a"],
        {"SHELL": "/bin/bash", "A": "1"},
    )
    assert (job.command.inherit_env, job.command.cwd) == (("NAMED",), "~")
    assert (job.command.user, job.command.stdin, job.timeout) == (
        "www-data",
        "b\n",
        timedelta(hours=1),
    )
    definition = define(job)
    assert (definition.name, definition.schedule, definition.on_lost) == (
        one.name,
        one.schedule,
        "give_up",
    )


# -- what is said ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "system", "words"),
    [
        pytest.param(
            "7 10 cron.weekly nice a", False, 'got "CRON.WEEKLY"', id="anacron"
        ),
        pytest.param(
            "61 * * * * a", False, 'minute must be 0–59, got "61"', id="minute"
        ),
        pytest.param("* 2-25 * * * a", False, 'got "2-25"', id="hour"),
        pytest.param("0 5 30 2 * a", False, "can never fire", id="never"),
        pytest.param(
            "* * * * *", True, "the user and the command are missing", id="no-user"
        ),
        pytest.param("* * * * * * a", False, "six time fields", id="seconds"),
        pytest.param(
            "* * * * * * root a", True, "six time fields", id="seconds-system"
        ),
        pytest.param(
            "* * * * * /usr/bin/a",
            True,
            "'/usr/bin/a' stands where",
            id="command-as-user",
        ),
        pytest.param(
            "0 2 a",
            False,
            "neither a variable nor a command with its time",
            id="words",
        ),
        pytest.param("=a", False, "neither a variable nor", id="no-name"),
        pytest.param(
            "@reboot a",
            False,
            "a cluster has no moment at which it boots",
            id="reboot",
        ),
        pytest.param(
            "@REBOOT root a",
            True,
            "a cluster has no moment at which it boots",
            id="reboot-system",
        ),
        pytest.param(
            "@every_minute a", False, "@every_minute is not known", id="every-minute"
        ),
        pytest.param("@every 5m a", False, "'@every' is not a macro", id="every"),
        pytest.param("0~59 2 * * * a", False, "has a ~, a random time", id="random"),
        pytest.param('A="b', False, "the quotes around the value of A", id="quotes"),
        pytest.param(
            "CRON_TZ=Europe/Viena", False, "did you mean Europe/Vienna", id="zone"
        ),
        pytest.param(
            "SLOTWISE_TIMEOUT=5",
            False,
            "SLOTWISE_TIMEOUT=5: '5' is not a duration",
            id="timeout",
        ),
        pytest.param(
            "SLOTWISE_ON_LOST=stop", False, "expected rerun or give_up", id="on-lost"
        ),
        pytest.param("* * * * * a\0b", False, "NUL", id="nul"),
        pytest.param(
            "#!/bin/sh", False, "this is a script, not a crontab", id="script"
        ),
    ],
)
def test_errors(line: str, system: bool, words: str) -> None:
    """What cannot run is said in one line with file, line, value and cure, and makes no job."""
    found = parse_crontab(f"{line}\n", file="shop", system=system)
    assert found.entries == ()
    (problem,) = found.problems
    assert words in problem.text
    assert (problem.level, problem.cure != "") == ("error", True)
    assert str(problem).startswith(
        "shop: error: " if "script" in words else "shop:1: error: "
    )
    assert "\n" not in str(problem)


@pytest.mark.parametrize(
    ("text", "level", "words"),
    [
        pytest.param("MAILTO=joe\n", "note", "no mail is sent", id="mail"),
        pytest.param(
            "RANDOM_DELAY=30\n", "note", "RANDOM_DELAY is ignored", id="random-delay"
        ),
        pytest.param(
            "LOGNAME=joe\n", "note", "LOGNAME is ignored, as by cron", id="logname"
        ),
        pytest.param("TZ=Asia/Tokyo\n", "note", "moves no schedule", id="tz"),
        pytest.param(
            "PATH=$HOME/bin:/bin\n", "warning", "PATH has a $ in it", id="expansion"
        ),
        pytest.param(
            "@daily root a\n", "warning", "the command is 'root'", id="user-column"
        ),
        pytest.param(
            "@daily a \\\n", "warning", "ends with a backslash", id="continued"
        ),
        pytest.param(
            "-@daily a\n", "note", "the - before the time is ignored", id="minus"
        ),
        pytest.param(
            "@daily a\n@daily a\n",
            "warning",
            "the same line is in crontab:1",
            id="double",
        ),
        pytest.param(
            "@daily a",
            "note",
            "the last line does not end with a newline",
            id="no-newline",
        ),
        pytest.param("@daily a\r\n", "warning", "CR LF", id="cr-lf"),
    ],
)
def test_remarks(text: str, level: str, words: str) -> None:
    """What may not be meant, and what cron does otherwise; the lines run all the same."""
    found = parse_crontab(text)
    (problem,) = found.problems
    assert (problem.level, words in problem.text) == (level, True)
    assert problem.cure
    assert len(found.entries) == text.count("@daily")


def test_quiet_lines() -> None:
    """Comments, blank lines, and mail that is switched off, are worth no word."""
    assert said('# a\n\n  \t\n   # b\nMAILTO=""\nMAILFROM=""\n') == []
    assert said("") == []


def test_line_ends() -> None:
    """A missing last newline and a byte order mark change nothing about the lines."""
    plain = parse_crontab("A=1\n@daily a\n")
    for text in ("A=1\n@daily a", "\ufeffA=1\n@daily a\n"):
        found = parse_crontab(text)
        assert [(one.name, one.command, dict(one.env)) for one in found.entries] == [
            (one.name, one.command, dict(one.env)) for one in plain.entries
        ]


def test_lines_with_cr_lf() -> None:
    """As in cron, the CR is a part of the command, of its input, and of no variable's value."""
    text = '\r\n# a\r\nA=1\r\nB="2"\r\n@daily a\r\n@daily b%c\r\n'
    found = parse_crontab(text)
    assert [(one.command, one.stdin) for one in found.entries] == [
        ("a\r", None),
        ("b", "c\r\n"),
    ]
    assert [dict(one.env) for one in found.entries] == [{"A": "1", "B": "2"}] * 2


@pytest.mark.parametrize(
    ("line", "system"),
    [
        ("* * * * *", False),
        ("@daily ", False),
        ("* * * * * %x", False),
        ("* * * * * root", True),
        ("@daily root  ", True),
    ],
)
def test_a_line_without_a_command(line: str, system: bool) -> None:
    """Cron runs an empty command; here the line makes no job, and the others run."""
    found = parse_crontab(f"{line}\n@daily root a\n", system=system)
    assert [one.line for one in found.entries] == [2]
    assert found.errors == []
    assert "the command is missing" in found.problems[0].text


def test_all_problems_at_once() -> None:
    """Every line is read, whatever is wrong with those before it."""
    text = "61 * * * * a\n@daily b\n@reboot c\n* * *\n"
    assert [(line, level) for line, level, _ in said(text)] == [
        (1, "error"),
        (3, "error"),
        (4, "error"),
    ]
    assert [one.command for one in parse_crontab(text).entries] == ["b"]


def test_nothing_runs_under_a_variable_that_cannot_be_read() -> None:
    """At a wrong hour or with a wrong PATH would be worse than not at all; once it is set again,
    lines run.
    """
    text = (
        "@daily a\nCRON_TZ=Nowhere\n@daily b\nCRON_TZ=UTC\n@daily c\nA='b\n@daily "
        "d\nA=b\n@daily e\n"
    )
    assert [one.command for one in parse_crontab(text).entries] == ["a", "c", "e"]


def test_jobs_are_all_or_none() -> None:
    """An error is not passed over, unless that is asked for; the exception has them all, a line
    each.
    """
    found = parse_crontab("@daily a\n@reboot b\n61 * * * * c\n", file="shop")
    with pytest.raises(InvalidCrontab) as refused:
        found.jobs()
    assert [line.split(": ")[0] for line in str(refused.value).splitlines()] == [
        "shop:2",
        "shop:3",
    ]
    assert [job.command.command for job in found.jobs(skip_errors=True)] == ["a"]


def test_comments_stay_with_their_line() -> None:
    """Those right above it; a blank line or a variable separates them."""
    found: Crontabs = parse_crontab(
        "# file\n\n# one\n# two\n@daily a\n# three\nA=1\n@daily b\n"
    )
    assert [one.comment for one in found.entries] == [("# one", "# two"), ()]


def texts(crontab: str, level: str) -> list[str]:
    found = parse_crontab(crontab)
    return [problem.text for problem in found.problems if problem.level == level]


@pytest.mark.parametrize(
    "time",
    [
        "0 22-6 * * *",
        "0 0 * * fri-sun",
        "0 0 * * 6-0",
        "0 0 * nov-feb *",
        "50-10 * * * *",
        "0 0 28-3 * *",
        "0 1,23-4 * * *",
        "0 20-4/2 * * *",
    ],
)
def test_a_range_that_cron_never_runs(time: str) -> None:
    """It ends before it begins; here it goes on at the field's beginning."""
    (text,) = texts(f"{time} a\n", "warning")
    assert "Debian's cron never runs the line" in text


@pytest.mark.parametrize("time", ["0 0 * * 5#3", "0 0 * * MON#1", "0 0 * * 1,5#2"])
def test_a_number_of_a_weekday_is_unknown_to_cron(time: str) -> None:
    (text,) = texts(f"{time} a\n", "warning")
    assert "it fires each week" in text


@pytest.mark.parametrize(
    "time",
    [
        "0/5 * * * *",
        "0 8/2 * * *",
        "0 0 ? * 1",
        "0 0 L * *",
        "0 0 15W * *",
        "0 0 * * 5L",
        "H 2 * * *",
        "H/15 * * * *",
        "@HOURLY",
    ],
)
def test_a_form_that_cron_refuses(time: str) -> None:
    (text,) = texts(f"{time} a\n", "note")
    assert "Debian's cron refuses this form" in text


@pytest.mark.parametrize(
    "time",
    [
        "*/5 8-17 * jul-sep mon-fri",
        "0 0 1-7/2 * 1,3,5-7",
        "0 0 * mar,apr wed,thu",
        "@daily",
    ],
)
def test_times_that_cron_reads_alike(time: str) -> None:
    assert parse_crontab(f"{time} a\n").problems == ()


@pytest.mark.parametrize(
    ("time", "field"), [("*/100 * * * *", "*/100"), ("0 */25 * * *", "*/25")]
)
def test_a_step_beyond_its_field(time: str, field: str) -> None:
    (text,) = texts(f"{time} a\n", "error")
    assert text.endswith(
        f"cron would fire at the first value of the field only, as without {field}"
    )


@pytest.mark.parametrize(
    "command",
    [
        'date "+%H:%M"',
        "echo $(date +%F)",
        "echo '100%'",
        "echo `date +%s`",
        'a \\" "b%c"',
    ],
)
def test_a_percent_sign_within_quotes(command: str) -> None:
    (text,) = texts(f"@daily {command}\n", "warning")
    assert "within quotes or a substitution" in text


@pytest.mark.parametrize(
    "command",
    [
        r'date "+\%H:\%M"',
        "mail joe%hello",
        r"echo $(date +\%F)%in",
        "echo 'a' \"b\"%c",
        r"a \"%b",
    ],
)
def test_a_percent_sign_as_meant(command: str) -> None:
    assert parse_crontab(f"@daily {command}\n").problems == ()


def test_two_backslashes_are_one() -> None:
    (text,) = texts(r"@daily sed 's/\\/x/'" + "\n", "warning")
    assert "two backslashes are one" in text


def test_a_guard_is_noted_once() -> None:
    crontab = "@daily [ -x /a ] && /a\n@hourly test -x /b && /b\n@daily [ -x /c ] || exit 0; /c\n"
    (text,) = texts(crontab, "note")
    assert "here the slot is failed" in text


def test_what_cron_refuses_around_the_lines() -> None:
    """A variable without a value, and a byte order mark."""
    assert "without a value" in texts("A=\n@daily a\n", "note")[0]
    assert texts('A=""\n@daily a\n', "note") == []
    assert "byte order mark" in texts("\ufeff@daily a\n", "note")[0]


def test_user_is_passed_on() -> None:
    """Debian's cron sets LOGNAME alone."""
    found = parse_crontab("USER=bob\nLOGNAME=bob\n@daily a\n")
    assert dict(found.entries[0].env) == {"USER": "bob"}
    assert [problem.text.split()[0] for problem in found.problems] == ["LOGNAME"]
