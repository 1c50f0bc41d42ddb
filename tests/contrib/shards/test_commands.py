"""The command line on several shards: all in turn, one of them, and one that is down."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contrib.shards.conftest import MakeShards

from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.contrib.shards import Shards

NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"
APP = """
from slotwise import Disabled, job, task
from slotwise.contrib.shards import ShardedRegistry

@job(name="report", schedule=Disabled())
def report() -> None: ...

@job(name="purge", schedule=Disabled(), each_shard=True)
def purge() -> None: ...

@task(name="mail")
def mail() -> None: ...

registry = ShardedRegistry(jobs=[report, purge], tasks=[mail], heartbeat_interval="1s")
"""

#: Runs a command; returns its status, and what it printed.
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATABASE_URL", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        found = status(arguments)
        told = capsys.readouterr()
        return found, told.out, told.err

    return run


def write(shards: Shards, **other: str) -> None:
    """Write the settings file, with other addresses for some shards."""
    urls = {one.name: one.database_url for one in shards} | other
    lines = [f'{name} = "{url}"' for name, url in urls.items()]
    text = "\n".join(
        [f'[shards]\ndefault = "{shards.default}"', "[shards.members]", *lines]
    )
    Path("slotwise.toml").write_text(text)
    Path("slotwise.toml").chmod(0o600)


def plan(shards: Shards) -> None:
    """Let each shard have its jobs, as a worker's start leaves them."""
    names: dict[str, object] = {}
    exec(APP, names)
    registry = names["registry"]
    with registry:  # type: ignore[attr-defined]
        pass


def test_reads_name_the_shard(make_shards: MakeShards, run: Run) -> None:
    shards = make_shards("eu", "us")
    write(shards)
    plan(shards)
    found, out, err = run("jobs")
    assert (found, err) == (exits.OK, "")
    eu, us = out.split("shard us:")
    assert "shard eu:" in eu
    assert ("report" in eu, "purge" in eu) == (True, True)
    assert ("report" in us, "purge" in us) == (False, True)
    found, out, _ = run("jobs", "--json")
    lines = json.loads(out)
    assert sorted((one["shard"], one["job"]) for one in lines) == [
        ("eu", "purge"),
        ("eu", "report"),
        ("us", "purge"),
    ]
    found, out, _ = run("jobs", "--shard", "us")
    assert ("report" in out, "shard" in out) == (False, False)


def test_operations_report_each_shard(make_shards: MakeShards, run: Run) -> None:
    """A job that some shards do not have is a mistake only if none has it."""
    shards = make_shards("eu", "us")
    write(shards)
    plan(shards)
    found, out, err = run("pause", "purge", "--yes")
    assert (found, err) == (exits.OK, "")
    assert out.count("purge") == 2
    found, out, err = run("pause", "report")
    assert found == exits.OK
    assert "shard us: " in err
    found, out, err = run("pause", "nothing")
    assert found == exits.FAILED
    assert "error: shard eu" in err
    assert "error: shard us" in err
    found, out, _ = run("audit", "--json")
    assert sorted(
        (one["shard"], one["job"])
        for one in json.loads(out)
        if "shard" in one and one["operation"] != "added"
    ) == [("eu", "purge"), ("eu", "report"), ("us", "purge")]


def test_a_shard_that_is_down_stops_only_itself(
    make_shards: MakeShards, run: Run
) -> None:
    shards = make_shards("eu", "us")
    write(shards)
    plan(shards)
    write(shards, eu=NOWHERE)
    found, out, err = run("jobs")
    assert found == exits.DATABASE
    assert "purge" in out.split("shard us:")[1]
    assert "127.0.0.1" in err
    found, out, _ = run("shards", "--json")
    assert found == exits.DATABASE
    by_name = {one["shard"]: one for one in json.loads(out)}
    assert by_name["eu"]["problem"]
    assert by_name["us"]["problem"] is None
    found, out, err = run("health", "--json", "--min-workers", "0")
    assert found == exits.DATABASE
    assert {one["shard"] for one in json.loads(out)} == {"eu", "us"}


def test_a_new_map_is_applied(make_shards: MakeShards, run: Run) -> None:
    shards = make_shards("eu", "us")
    write(shards)
    plan(shards)
    assert run("shards")[0] == exits.OK
    path = Path("slotwise.toml")
    path.write_text(path.read_text() + '\n[shards.map]\neu = "0-1023"\n')
    found, out, _ = run("shards")
    assert found == exits.DATABASE
    assert "slotwise shards apply" in out
    assert run("shards", "apply")[0] == exits.USAGE  # nobody has confirmed it
    found, out, _ = run("shards", "apply", "--dry-run")
    assert (found, out.count("would be written")) == (exits.OK, 2)
    found, out, _ = run("shards", "apply", "--yes")
    assert (found, out.count("written, in place of")) == (exits.OK, 2)
    assert run("shards")[0] == exits.OK
    assert "already" in run("shards", "apply", "--yes")[1]


def test_one_place_is_said_once(make_shards: MakeShards, run: Run) -> None:
    write(make_shards("eu", "us"))
    found, _, err = run("jobs", "--shard", "asia")
    assert (found, "known are eu, us" in err) == (exits.FAILED, True)
    found, _, err = run("jobs", "--shard", "eu", "--database-url", NOWHERE)
    assert (found, "both say where" in err) == (exits.USAGE, True)


def test_tables_are_made_in_each_shard(make_shards: MakeShards, run: Run) -> None:
    write(make_shards("eu", "us"))
    found, out, _ = run("db", "upgrade")
    assert (found, out.count("nothing to do")) == (exits.OK, 2)
