"""Settings: where they come from, what they may be, and what is said when they cannot be."""

from __future__ import annotations

import dataclasses
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from slotwise import InvalidSetting, Settings
from slotwise.settings.settings import READERS


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def refused(**keywords: Any) -> str:
    """The one line that such a setting gets."""
    with pytest.raises(InvalidSetting) as caught:
        Settings.load(environ={}, **keywords)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_setting_has_a_reader() -> None:
    """A field without a reader would go unchecked."""
    assert [field.name for field in dataclasses.fields(Settings)] == list(READERS)


def test_defaults() -> None:
    """What the field has agreed on, with nothing given."""
    settings = Settings.load(environ={})
    assert settings == Settings()
    assert (settings.poll_interval, settings.heartbeat_interval) == (
        seconds(10),
        seconds(10),
    )
    assert (settings.missed_heartbeats_limit, settings.shutdown_grace) == (
        6,
        seconds(30),
    )
    assert (settings.threads, settings.processes, settings.reaper_interval) == (
        None,
        1,
        None,
    )
    assert settings.table_prefix == "scheduled_"
    assert settings.worker == socket.gethostname()
    assert settings.process_hook


def test_precedence(elsewhere: Path) -> None:
    """Defaults, then the file, then the environment, then keywords."""
    (elsewhere / "slotwise.toml").write_text(
        'poll-interval = "1s"\nheartbeat-interval = "2s"\nthreads = 3\nprocesses = 2\n'
    )
    environ = {"SLOTWISE_HEARTBEAT_INTERVAL": "4s", "SLOTWISE_THREADS": "5"}
    settings = Settings.load(environ=environ, threads=6, processes=None)
    assert settings.poll_interval == seconds(1)
    assert settings.heartbeat_interval == seconds(4)
    assert settings.threads == 6
    assert settings.processes == 2  # a keyword that is None was not given
    assert settings.missed_heartbeats_limit == 6


@pytest.mark.parametrize(
    ("file", "environ", "expected"),
    [
        ("", {"DATABASE_URL": "sqlite:///a"}, "sqlite:///a"),
        (
            "",
            {"DATABASE_URL": "sqlite:///a", "SLOTWISE_DATABASE_URL": "sqlite:///b"},
            "sqlite:///b",
        ),
        (
            "",
            {"DATABASE_URL": "sqlite:///a", "SLOTWISE_DATABASE_URL": ""},
            "sqlite:///a",
        ),
        ("database-url = 'sqlite:///c'", {}, "sqlite:///c"),
        (
            "database-url = 'sqlite:///c'",
            {"DATABASE_URL": "sqlite:///a"},
            "sqlite:///a",
        ),
        ("", {"DATABASE_URL": " "}, None),
        ("", {}, None),
    ],
    ids=[
        "fallback",
        "own wins",
        "empty is absent",
        "file",
        "environment wins",
        "blank is absent",
        "none",
    ],
)
def test_database_url(
    elsewhere: Path, file: str, environ: dict[str, str], expected: str | None
) -> None:
    """DATABASE_URL belongs to the environment and stands in for SLOTWISE_DATABASE_URL."""
    (elsewhere / "slotwise.toml").write_text(file)
    assert Settings.load(environ=environ).database_url == expected


@pytest.mark.parametrize(
    "key",
    [
        "poll-interval",
        "pollInterval",
        "poll_interval",
        "PollInterval",
        "poll-Interval",
    ],
)
def test_spellings_of_keys(elsewhere: Path, key: str) -> None:
    """Kebab, camel and snake are one key, in every source."""
    (elsewhere / "slotwise.toml").write_text(f'{key} = "3s"')
    assert Settings.load(environ={}).poll_interval == seconds(3)
    keyword: dict[str, Any] = {key: "4s"}
    assert Settings.load(environ={}, **keyword).poll_interval == seconds(4)
    variable = "SLOTWISE_" + key.replace("-", "_")
    assert Settings.load(environ={variable: "5s"}).poll_interval == seconds(5)
    assert Settings().replace(**{key: "6s"}).poll_interval == seconds(6)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (seconds(90), 90),
        ("90s", 90),
        ("PT1M30S", 90),
        ("1m30s", 90),
        ("250ms", 0.25),
        (timedelta(microseconds=300), 0.0003),
    ],
)
def test_durations(value: object, expected: float) -> None:
    """Durations are timedelta, short or ISO text; below a millisecond too."""
    assert Settings.load(environ={}, poll_interval=value).poll_interval == seconds(
        expected
    )


def test_values_of_the_environment_are_text() -> None:
    """Numbers, switches and sets are read from their text."""
    environ = {
        "SLOTWISE_THREADS": "7",
        "SLOTWISE_POOLER": "yes",
        "SLOTWISE_PROCESS_HOOK": "0",
        "SLOTWISE_TAGS": "gpu, eu-west ,",
        "SLOTWISE_ONLY": "nightly",
        "SLOTWISE_LOG_FORMAT": "JSON",
        "SLOTWISE_LOG_LEVEL": "debug",
    }
    settings = Settings.load(environ=environ)
    assert (settings.threads, settings.pooler, settings.process_hook) == (
        7,
        True,
        False,
    )
    assert settings.tags == {"gpu", "eu-west"}
    assert settings.only == {"nightly"}
    assert (settings.log_format, settings.log_level) == ("json", "DEBUG")


def test_values_of_a_file_have_types(elsewhere: Path) -> None:
    """TOML's lists, numbers and booleans."""
    (elsewhere / "slotwise.toml").write_text(
        'tags = ["a", "b"]\nthreads = 2\npooler = true\n'
    )
    settings = Settings.load(environ={})
    assert (settings.tags, settings.threads, settings.pooler) == (
        frozenset("ab"),
        2,
        True,
    )


class TestFile:
    """The settings file."""

    def test_pyproject(self, elsewhere: Path) -> None:
        """In a pyproject.toml the keys stand in [tool.slotwise]."""
        path = elsewhere / "pyproject.toml"
        path.write_text('[project]\nname = "x"\n[tool.slotwise]\nthreads = 4\n')
        assert Settings.load(config=path, environ={}).threads == 4

    def test_yaml(self, elsewhere: Path) -> None:
        """The same keys, with the types that YAML gives; an empty file is one without settings."""
        text = (
            "poll-interval: 3s\ntags: [gpu, big]\nthreads: 2\npooler: yes\nschedules: "
            "{report: EVERY|1h}\n"
        )
        (elsewhere / "slotwise.yaml").write_text(text)
        found = Settings.load(environ={})
        assert (found.poll_interval.seconds, found.threads, found.pooler) == (
            3,
            2,
            True,
        )
        assert (found.tags, found.schedules) == (
            {"gpu", "big"},
            {("report", "EVERY|1h")},
        )
        (elsewhere / "none.yml").write_text("# nothing\n")
        assert Settings.load(config=Path("none.yml"), environ={}) == Settings()

    def test_of_two_files_none_wins_in_silence(self, elsewhere: Path) -> None:
        """Whoever has both is asked which one counts."""
        for name in ("slotwise.toml", "slotwise.yaml"):
            (elsewhere / name).write_text("")
        with pytest.raises(InvalidSetting, match="are both there; keep one"):
            Settings.load(environ={})

    def test_only_named_or_slotwise_toml(self, elsewhere: Path) -> None:
        """No other file is searched for."""
        (elsewhere / "pyproject.toml").write_text("[tool.slotwise]\nthreads = 4\n")
        assert Settings.load(environ={}).threads is None

    def test_argument_outranks_variable(self, elsewhere: Path) -> None:
        """`config` is nearer than SLOTWISE_CONFIG."""
        for number in (1, 2):
            (elsewhere / f"{number}.toml").write_text(f"threads = {number}")
        environ = {"SLOTWISE_CONFIG": "1.toml"}
        assert Settings.load(environ=environ).threads == 1
        assert Settings.load(config=Path("2.toml"), environ=environ).threads == 2

    @pytest.mark.parametrize(
        ("name", "content", "words"),
        [
            ("gone.toml", None, "gone.toml: there is no such settings file"),
            (
                "bad.toml",
                "threads = ",
                "bad.toml:1: 'threads' is not TOML; correct this line",
            ),
            (
                "bad.toml",
                "a = 1\ndatabase-url = hush\n",
                "bad.toml:2: 'database-url' is not TOML; correct this line",
            ),
            (
                "bad.toml",
                "a = 1\na = 2\n",
                "bad.toml:2: 'a' has a name that is there twice; keep one of them",
            ),
            (
                "latin.toml",
                b"tags = '\xe4'",
                "latin.toml: byte 8 is not UTF-8; save the settings file as UTF-8",
            ),
            ("pyproject.toml", "[project]\nname='x'", "no table [tool.slotwise]"),
            (
                "a.toml",
                "pol-interval = '1s'",
                "a.toml: pol-interval is not a setting; did you mean poll-interval?",
            ),
            (
                "a.toml",
                "poll-interval = 10",
                "a.toml: poll-interval must be a duration, but was 10",
            ),
            (
                "a.toml",
                "threads = true",
                "a.toml: threads must be a whole number from 1 to 10000, but was True",
            ),
            (
                "a.toml",
                "poll-interval = '1s'\npollInterval = '2s'",
                "is the same setting as a.toml: poll-interval",
            ),
            (
                "a.toml",
                "tags = 'gpu big'",
                "a.toml: tags must be words without blanks, but was 'gpu big'; separate them",
            ),
            ("a.toml", "tags = [1]", "a.toml: tags must be a printable string"),
            (
                "a.toml",
                "revision = 42",
                "a.toml: revision must be a printable string of 1 to 100 "
                'characters, but was 42; write "42"',
            ),
            (
                "a.yaml",
                "revision: 42",
                "a.yaml: revision must be a printable string of 1 to 100 "
                'characters, but was 42; write "42"',
            ),
            (
                "bad.yaml",
                "threads: [",
                "bad.yaml:1: 'threads' is not YAML; correct this line",
            ),
            (
                "bad.yaml",
                "a: 1\n b: 2\n",
                "bad.yaml:2: 'b' is not YAML; correct this line",
            ),
            (
                "bad.yaml",
                "a: 2026-13-45",
                "bad.yaml:1: 'a' is not YAML; correct this line",
            ),
            ("a.yaml", "- threads", "a.yaml: settings are names with values"),
            ("a.yaml", "threads: 1\nthreads: 2", "a.yaml: threads is there twice"),
            (
                "a.yml",
                "pol-interval: 1s",
                "a.yml: pol-interval is not a setting; did you mean poll-interval?",
            ),
            (
                "a.yml",
                "poll-interval: 10",
                "a.yml: poll-interval must be a duration, but was 10",
            ),
        ],
    )
    def test_bad_file(
        self, elsewhere: Path, name: str, content: str | bytes | None, words: str
    ) -> None:
        """One line with the file and the key."""
        path = elsewhere / name
        if content is not None:
            path.write_bytes(
                content if isinstance(content, bytes) else content.encode()
            )
        assert words in refused(config=path)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        (
            {"poll_interval": "0s"},
            "poll_interval must be positive and at most 1d (a zero interval would "
            "spin), but was 0s",
        ),
        ({"poll_interval": "2d"}, "but was 2d"),
        (
            {"poll_interval": "soon"},
            "poll_interval must be a duration, but was 'soon'; write for example "
            "10s, 500ms or PT10S",
        ),
        ({"heartbeat_interval": "0s"}, "heartbeat_interval must be from 20ms to 1h"),
        (
            {"heartbeat_interval": seconds(-1)},
            "heartbeat_interval must be a duration, but was -1s",
        ),
        (
            {"shutdown_grace": seconds(-1)},
            "shutdown_grace must be a duration, but was -1s",
        ),
        (
            {"missed_heartbeats_limit": 2},
            "missed_heartbeats_limit must be a whole number from 3 to 1000, but was 2",
        ),
        ({"reaper_interval": "2m"}, "reaper_interval must be at most the lease"),
        ({"threads": 0}, "threads must be a whole number from 1 to 10000, but was 0"),
        ({"threads": "many"}, "but was 'many'"),
        ({"threads": 1.5}, "but was 1.5"),
        ({"processes": "-1"}, "processes must be a whole number"),
        ({"pooler": "perhaps"}, "pooler must be true or false, but was 'perhaps'"),
        ({"pooler": 2}, "pooler must be true or false, but was 2"),
        (
            {"log_format": "xml"},
            "log_format must be one of human, json, but was 'xml'",
        ),
        (
            {"log_level": "LOUD"},
            "log_level must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL, but was 'LOUD'",
        ),
        (
            {"worker_name": " "},
            "worker_name must be a printable string of 1 to 100 characters",
        ),
        ({"worker_name": "a\nb"}, r"but was 'a\nb'"),
        ({"revision": "x" * 101}, "revision must be"),
        ({"only": 3}, "only must be a list of names, but was 3"),
        ({"tags": ["ok", ""]}, "tags must be a printable string"),
        (
            {"database_url": ""},
            "database_url must be a database address, but was blank",
        ),
        ({"database_url": 5}, "but was of type int"),
        (
            {"pol_interval": 5},
            "pol_interval is not a setting; did you mean poll_interval?",
        ),
        ({"qqq": 5}, "qqq is not a setting; known are database_url, "),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_bad_keyword(keywords: dict[str, object], words: str) -> None:
    """One line: the setting, the range, the value, the cure."""
    message = refused(**keywords)
    assert words in message
    assert ";" in message


@pytest.mark.parametrize(
    "name",
    [
        '"; drop table x; --',
        "a'b",
        "a b",
        "Größe",
        "ñ",
        "UPPER",
        "1a",
        "",
        "a" * 64,
        "a-b",
        "a.b",
        "a\x00",
        "a\n",
        "pg_x",
    ],
)
@pytest.mark.parametrize("setting", ["schema", "table_prefix"])
def test_identifiers_that_could_break_a_statement(setting: str, name: str) -> None:
    """No SQL through names."""
    assert f"{setting} must be" in refused(**{setting: name})


def test_longest_prefix_leaves_room_for_the_names_behind_it() -> None:
    """Every name of a table or an index fits PostgreSQL's 63 bytes."""
    from slotwise.spi import tables

    prefix = "p" * 32
    assert Settings(table_prefix=prefix).table_prefix == prefix
    found = tables(prefix, None).metadata.sorted_tables
    names = [f"{prefix}alembic_version", *(table.name for table in found)]
    names += [str(index.name) for table in found for index in table.indexes]
    assert max(map(len, names)) <= 63
    assert "at most 32 characters" in refused(table_prefix=prefix + "p")


class TestEnvironment:
    """Messages name the variable."""

    @pytest.mark.parametrize(
        ("variable", "value", "words"),
        [
            (
                "SLOTWISE_POLL_INTERVAL",
                "0s",
                "SLOTWISE_POLL_INTERVAL must be positive",
            ),
            (
                "SLOTWISE_POL_INTERVAL",
                "1s",
                "SLOTWISE_POL_INTERVAL is not a setting; did you mean SLOTWISE_POLL_INTERVAL?",
            ),
            ("SLOTWISE_THREADS", "x", "SLOTWISE_THREADS must be a whole number"),
        ],
    )
    def test_bad_variable(self, variable: str, value: str, words: str) -> None:
        """The name stands as the user wrote it."""
        with pytest.raises(InvalidSetting) as caught:
            Settings.load(environ={variable: value})
        assert words in str(caught.value)

    def test_others_variables(self) -> None:
        """Variables of the quick start, of tests and of the command line are no settings and no
        mistakes.
        """
        others = (
            "SLOTWISE_PG_BINDIR",
            "SLOTWISE_TEST_DSN",
            "SLOTWISE_BOOT",
            "SLOTWISE_APP_DIR",
        )
        assert Settings.load(environ=dict.fromkeys(others, "x")) == Settings()

    def test_app(self) -> None:
        """SLOTWISE_APP is an ordinary setting."""
        assert (
            Settings.load(environ={"SLOTWISE_APP": "jobs:registry"}).app
            == "jobs:registry"
        )


class TestDerived:
    """Deadlines that follow from the heartbeat."""

    def test_defaults(self) -> None:
        """With a heartbeat each 10 s."""
        settings = Settings()
        assert settings.lease == seconds(60)
        assert settings.statement_timeout == seconds(20)
        assert settings.lock_timeout == seconds(5)
        assert settings.connect_timeout == seconds(10)
        assert settings.tcp_user_timeout == seconds(10)

    @pytest.mark.parametrize(
        "heartbeat", ["20ms", "200ms", "1s", "1500ms", "10s", "1h"]
    )
    @pytest.mark.parametrize("limit", [3, 6, 100])
    def test_order(self, heartbeat: str, limit: int) -> None:
        """Whatever the heartbeat: lock < heartbeat ≤ statement < lease, and libpq's whole seconds
        are at least one.
        """
        settings = Settings.load(
            environ={}, heartbeat_interval=heartbeat, missed_heartbeats_limit=limit
        )
        assert (
            timedelta(milliseconds=1)
            <= settings.lock_timeout
            < settings.heartbeat_interval
        )
        assert (
            settings.heartbeat_interval <= settings.statement_timeout < settings.lease
        )
        assert seconds(1) <= settings.connect_timeout <= seconds(10)
        assert settings.connect_timeout % seconds(1) == seconds(0)
        assert seconds(1) <= settings.tcp_user_timeout <= seconds(10)


def test_with_is_checked_and_leaves_the_original() -> None:
    """A changed copy is checked like a new one; None can be put."""
    settings = Settings(threads=3)
    assert settings.replace(threads=None, poll_interval="2s") == Settings(
        poll_interval=seconds(2)
    )
    assert settings.threads == 3
    with pytest.raises(InvalidSetting, match="did you mean threads"):
        settings.replace(thread=1)
    with pytest.raises(InvalidSetting, match="processes must be"):
        settings.replace(processes=0)


def test_frozen() -> None:
    """A worker's settings do not change under it."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().threads = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u:p@ss%w?rd^]@h/db",
        "host=h password='p@ss%w?rd^] \\' x' dbname=d",
        "postgresql://h/db?user=u&password=p@ss%w?rd^]",
    ],
)
def test_repr_hides_the_password(address: str) -> None:
    """A logged Settings gives no password away, and shows only what differs from the defaults."""
    shown = repr(Settings(database_url=address, threads=2))
    assert "ss%w" not in shown
    assert "rd^" not in shown
    assert "***" in shown
    assert "threads=2" in shown
    assert "poll_interval" not in shown


@pytest.mark.parametrize(
    "given",
    [
        {"a": "0 3 * * *", "b": "-"},
        "a = 0 3 * * *\n\nb=-\n",
        [("a", "0 3 * * *"), ("b", " - ")],
    ],
    ids=["table", "lines", "pairs"],
)
def test_schedules_are_names_with_texts(given: object) -> None:
    """A TOML table, or lines of an environment variable."""
    assert Settings.load(environ={}, schedules=given).schedules == {
        ("a", "0 3 * * *"),
        ("b", "-"),
    }


@pytest.mark.parametrize(
    "given", ["a 0 3 * * *", "a=", {"a": 5}, [1], 7, {"": "-"}], ids=str
)
def test_schedules_without_texts_are_refused(given: object) -> None:
    """One line, with the form."""
    assert "schedules must be" in refused(schedules=given)


def test_schedules_from_a_file(elsewhere: Path) -> None:
    """As a table of its own."""
    (elsewhere / "slotwise.toml").write_text(
        '[schedules]\nnightly-report = "CRON|0 3 * * *|Europe/Vienna"\n'
    )
    assert Settings.load(environ={}).schedules == {
        ("nightly-report", "CRON|0 3 * * *|Europe/Vienna")
    }


class TestFilesOfOthers:
    """A file that nobody named is read only if no other account could have written it."""

    def test_own_file(self, elsewhere: Path) -> None:
        """Also with the usual rights of a group of one's own, and through a link."""
        (elsewhere / "real.toml").write_text("threads = 3")
        (elsewhere / "real.toml").chmod(0o664)
        (elsewhere / "slotwise.toml").symlink_to("real.toml")
        assert Settings.load(environ={}).threads == 3

    @pytest.mark.parametrize("mode", [0o666, 0o646])
    def test_writable_file(self, elsewhere: Path, mode: int) -> None:
        """Anybody could have written it; one that is named is read."""
        path = elsewhere / "slotwise.toml"
        path.write_text("threads = 3")
        path.chmod(mode)
        assert (
            "slotwise.toml in this directory can be written by other accounts, which could"
            in refused()
        )
        assert Settings.load(config=path, environ={}).threads == 3

    def test_replaceable_file(
        self, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Anybody could replace it, or its directory."""
        folder = elsewhere / "open" / "within"
        folder.mkdir(parents=True)
        (folder / "slotwise.toml").write_text("threads = 3")
        monkeypatch.chdir(folder)
        assert Settings.load(environ={}).threads == 3
        folder.parent.chmod(0o777)
        assert f"{folder.parent} can be written by other accounts" in refused()
        folder.parent.chmod(0o1777)
        assert Settings.load(environ={}).threads == 3

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    @pytest.mark.parametrize("which", ["file", "link", "directory"])
    def test_other_owner(
        self, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, which: str
    ) -> None:
        """Of the file, of a link to it, or of a directory above it."""
        folder = elsewhere / "folder"
        folder.mkdir()
        monkeypatch.chdir(folder)
        (folder / "real.toml").write_text("threads = 3")
        (folder / "slotwise.toml").symlink_to("real.toml")
        given = {"file": "real.toml", "link": "slotwise.toml", "directory": "."}[which]
        os.chown(folder / given, 4711, -1, follow_symlinks=False)
        assert "belongs to another account (uid 4711)" in refused()


def test_what_is_no_regular_file(elsewhere: Path) -> None:
    """Neither waits for a writer nor reads without end."""
    os.mkfifo(elsewhere / "fifo.toml")
    for place in (elsewhere / "fifo.toml", Path("/dev/zero"), elsewhere):
        assert "a regular file of at most 1048576 bytes" in refused(config=place)
    (elsewhere / "large.toml").write_text("#" * 1_048_577)
    assert "a regular file of at most 1048576 bytes" in refused(
        config=elsewhere / "large.toml"
    )


def test_a_key_that_is_an_address(elsewhere: Path) -> None:
    """Its password is not shown."""
    (elsewhere / "a.yaml").write_text("? postgresql://worker:hush@h/sw\n: x\n")
    assert "hush" not in refused(config=elsewhere / "a.yaml")
