"""Names of jobs made from crontabs: they stand in databases, so they must stay what they are."""

from __future__ import annotations

import random

import pytest

from slotwise.contrib.crontab import parse_crontab
from slotwise.contrib.crontab.entry import program_of

TEXT = """\
A=1
0 2 * * * /opt/a --x
@daily /opt/a --x
0 2 * * * /opt/a --y
0 2 * * * cat%x
"""


def names(text: str, **given: object) -> list[str]:
    return [one.name for one in parse_crontab(text, **given).entries]  # type: ignore[arg-type]


def test_the_table() -> None:
    """Whoever changes a rule renames everybody's jobs, and their history with them: then this
    table fails.
    """
    found = parse_crontab(
        "@daily root /opt/report\nA=1\nCRON_TZ=Europe/Vienna\n0 2 * * MON bob cd /x && ./a%b\n",
        system=True,
    )
    assert [one.name for one in found.entries] == ["report-b56c35fc82", "a-c744ce2683"]


def test_names_do_not_depend_on_the_order_of_lines() -> None:
    """Nor on blank lines, comments, blanks between fields, the case of names, or the file."""
    head, *lines = TEXT.splitlines()
    expected = sorted(names(TEXT))
    for seed in range(10):
        shuffled = random.Random(seed).sample(lines, len(lines))
        assert sorted(names("\n".join([head, "", "# x", *shuffled, ""]))) == expected
    assert names("0  2 *\t* MON  a\n", file="b") == names("0 2 * * mon a\n", file="c")


@pytest.mark.parametrize(
    ("line", "other"),
    [
        pytest.param("@daily a", "@hourly a", id="time"),
        pytest.param("@daily a", "@daily a b", id="command"),
        pytest.param("@daily a", "@daily  a%x", id="input"),
        pytest.param("A=1\n@daily a", "A=2\n@daily a", id="variable"),
        pytest.param("@daily a", "A=\n@daily a", id="more-variables"),
        pytest.param("@daily a", "CRON_TZ=Europe/Vienna\n@daily a", id="zone"),
        pytest.param("SHELL=/bin/bash\n@daily a", "@daily a", id="shell"),
    ],
)
def test_a_changed_line_is_another_job(line: str, other: str) -> None:
    assert names(f"{line}\n") != names(f"{other}\n")


def test_another_user_is_another_job() -> None:
    assert names("@daily a x\n", system=True) != names("@daily b x\n", system=True)


@pytest.mark.parametrize(
    "head",
    [
        "MAILTO=joe",
        "RANDOM_DELAY=5",
        "SLOTWISE_TIMEOUT=5m",
        "SLOTWISE_ON_LOST=give_up",
        "CRON_TZ=UTC",
    ],
)
def test_what_changes_neither_time_nor_command_is_the_same_job(head: str) -> None:
    """It keeps its history."""
    assert names(f"{head}\n@daily a\n") == names("@daily a\n")


def test_doubles_are_numbered() -> None:
    """They are different jobs, and it does not matter which of them is which."""
    assert names("@daily a\n@hourly a\n@daily a\n@daily a\n") == [
        (first := names("@daily a\n")[0]),
        names("@hourly a\n")[0],
        f"{first}-2",
        f"{first}-3",
    ]


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("/opt/shop/report.sh --all", "report.sh"),
        ("cd /srv/app && ./manage.py clearsessions", "manage.py"),
        ("cd / && run-parts --report /etc/cron.hourly", "run-parts-cron.hourly"),
        (
            "test -x /usr/sbin/anacron || ( cd / && run-parts /etc/cron.daily )",
            "run-parts-cron.daily",
        ),
        (
            "if [ -x /x ] && [ $(date +%d) -le 7 ]; then /usr/share/mdadm/checkarray --cron; fi",
            "checkarray",
        ),
        ("command -v debian-sa1 > /dev/null && debian-sa1 1 1", "debian-sa1"),
        ("perl -e 'sleep int(rand(9))' && certbot -q renew", "certbot"),
        ("A=1 B='x y' /bin/a", "a"),
        ("nice -n 10 ionice -c3 /bin/a b", "a"),
        ("flock -n /tmp/lock timeout 30m python3 -u /opt/a.py b", "a.py"),
        ("/usr/bin/python3.11 -m shop.report", "shop.report"),
        ("php /var/www/cron.php > /dev/null 2>&1", "cron.php"),
        ("curl -s 'https://example.org/?a=b&c=d' | sh", "curl"),
        ('mail -s "It\'s 10pm" joe', "mail"),
        ("exec /bin/a", "a"),
        ("bash -c 'a; b'", "command"),
        ("[ -e /x ]", "command"),
        ("$HOME/bin/daily", "daily"),
        ("größe /x", "gr-e"),
        ("x" * 200, "x" * 48),
        ("'", "command"),
        ("/", "command"),
        ("'quoted program' a", "a"),
    ],
)
def test_the_word_to_read(command: str, word: str) -> None:
    """Mostly the program that the line is about; never more than a hint, the hash decides."""
    assert program_of(command) == word


def test_hostile_commands_make_short_printable_names() -> None:
    """Whatever stands in a line, its name fits into a database and a terminal."""
    source = random.Random(1)
    for _ in range(500):
        command = "".join(
            source.choices(
                "ab/'\"`$(){}[];|&<> \\\t\x1b\x07é\udc80#-._=",
                k=source.randrange(1, 60),
            )
        )
        for name in names(f"@daily {command}\n"):
            assert name.isascii()
            assert name.isprintable()
            assert len(name) <= 60
            assert " " not in name


def test_hostile_commands_are_named_quickly() -> None:
    """No rule is slow on what is made to be slow."""
    for command in (
        "'" * 5000,
        "$(" * 5000,
        '"' + "\\" * 9999,
        "a=" * 5000,
        "- " * 5000,
        "nice " * 2000 + "a",
        "`" * 9999,
    ):
        program_of(command)


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("echo begins >&2; /opt/report", "report"),
        ("cd /srv && echo begins 2>&1 && /opt/report", "report"),
        ("echo begins >&2", "command"),
        ("/opt/report >&-", "report"),
    ],
)
def test_a_redirection_is_no_program(command: str, word: str) -> None:
    """The & of ``>&2`` separates no commands."""
    assert program_of(command) == word
