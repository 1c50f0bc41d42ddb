"""Keys of db-scheduler's configurations, in each source and spelling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slotwise import InvalidSetting, Settings

POOL = {
    "jdbc-url": "jdbc:postgresql://primary:5432/app",
    "username": "a pp",
    "password": "p@ss",
    "maximum-pool-size": 5,
}
DOCUMENT = {
    "polling-interval": "7s",
    "heartbeat-interval": "30s",
    "shutdown-max-wait": "20s",
    "jobs-config": POOL,
}
CAMEL = {
    "pollingInterval": "7s",
    "heartbeatInterval": "30s",
    "shutdownMaxWait": "20s",
    "jobsConfig": {
        "jdbcUrl": POOL["jdbc-url"],
        "username": "a pp",
        "password": "p@ss",
        "maximumPoolSize": 5,
    },
}
SNAKE = {
    "polling_interval": "7s",
    "heartbeat_interval": "30s",
    "shutdown_max_wait": "20s",
    "jobs_config": {
        "jdbc_url": POOL["jdbc-url"],
        "username": "a pp",
        "password": "p@ss",
        "maximum_pool_size": "5",
    },
}


def expected(found: Settings) -> None:
    seconds = [
        one.total_seconds()
        for one in (
            found.poll_interval,
            found.heartbeat_interval,
            found.shutdown_grace,
        )
    ]
    assert seconds == [7, 30, 20]
    assert (
        found.database_url
        == "jdbc:postgresql://primary:5432/app?user=a%20pp&password=p%40ss"
    )
    assert found.pool_size == 5


def toml(document: dict[str, object]) -> str:
    plain = [
        f"{key} = {json.dumps(value)}"
        for key, value in document.items()
        if not isinstance(value, dict)
    ]
    for name, table in document.items():
        if isinstance(table, dict):
            plain += [
                f"[{name}]",
                *(f"{key} = {json.dumps(value)}" for key, value in table.items()),
            ]
    return "\n".join(plain)


@pytest.mark.parametrize(
    "document", [DOCUMENT, CAMEL, SNAKE], ids=["kebab", "camel", "snake"]
)
@pytest.mark.parametrize("kind", ["yaml", "toml"])
def test_a_file(tmp_path: Path, document: dict[str, object], kind: str) -> None:
    """YAML and TOML, in three spellings."""
    path = tmp_path / f"slotwise.{kind}"
    path.write_text(toml(document) if kind == "toml" else json.dumps(document))
    expected(Settings.load(config=path, environ={}))


@pytest.mark.parametrize(
    "names",
    [
        ("POLLING_INTERVAL", "SHUTDOWN_MAX_WAIT"),
        ("pollingInterval", "shutdownMaxWait"),
    ],
)
def test_the_environment(
    names: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each key of jobs-config is a variable, and DATABASE_URL does not count beside it."""
    monkeypatch.chdir(tmp_path)
    pool = {
        f"SLOTWISE_JOBS_CONFIG_{key.upper().replace('-', '_')}": str(value)
        for key, value in POOL.items()
    }
    rest = {
        f"SLOTWISE_{names[0]}": "7s",
        "SLOTWISE_HEARTBEAT_INTERVAL": "30s",
        f"SLOTWISE_{names[1]}": "20s",
    }
    expected(Settings.load(environ={**pool, **rest, "DATABASE_URL": "sqlite://"}))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"delete-unresolved-after": "30d"},
            "delete-unresolved-after is not a setting: slotwise never deletes rows",
        ),
        (
            {"jobs-config": "postgresql://"},
            "jobs-config must be a table, but was of type str; write jdbc-url",
        ),
        (
            {"jobs-config": {"username": "a"}},
            "jobs-config has no jdbc-url; write jdbc:postgresql://host",
        ),
        (
            {"jobs-config": {**POOL, "jdbc-url": 7}},
            "jobs-config-jdbc-url must be a string, but was of type int; wr",
        ),
        (
            {"jobs-config": {**POOL, "username": None}},
            "jobs-config-username must be a string, but was of type None",
        ),
        (
            {"jobs-config": {**POOL, "password": ["secret"]}},
            "jobs-config-password must be a string, but was of type ",
        ),
        (
            {"jobs-config": {**POOL, "pool-name": "x"}},
            "jobs-config-pool-name is not a setting of .*jobs-config; write",
        ),
        (
            {"jobs-config": {**POOL, "maximum-pool-size": 0}},
            "maximum-pool-size must be a whole number from 1 to 100",
        ),
        (
            {"jobs-config": POOL, "database-url": "sqlite://"},
            "the same setting as .*; keep one of them",
        ),
        (
            {"polling-interval": "1s", "poll-interval": "2s"},
            "poll-interval is the same setting as .*polling-interval",
        ),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, given: dict[str, object], line: str
) -> None:
    """Value, place, cure."""
    path = tmp_path / "slotwise.yaml"
    path.write_text(json.dumps(given))
    with pytest.raises(InvalidSetting, match=line) as raised:
        Settings.load(config=path, environ={})
    assert "\n" not in str(raised.value)


def test_an_address_without_a_login(tmp_path: Path) -> None:
    """jdbc-url alone is the address."""
    path = tmp_path / "slotwise.yaml"
    path.write_text(json.dumps({"jobs-config": {"jdbc-url": "sqlite:///jobs.db"}}))
    assert Settings.load(config=path, environ={}).database_url == "sqlite:///jobs.db"
