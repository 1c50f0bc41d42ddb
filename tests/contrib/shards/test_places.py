"""Where calls go after the map has changed, and with a connection of the caller."""

from __future__ import annotations

import psycopg
import pytest
from tests.contrib.shards.conftest import MakeShards
from tests.contrib.shards.test_commands import Run, plan, run, write

from slotwise import ConfigurationError, InvalidSetting, task
from slotwise.cli.shared import exits
from slotwise.contrib.shards import Shard, ShardedRegistry, Shards
from slotwise.contrib.shards.marks import apply_marks

assert run  # a fixture
NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"


@task(name="mail")
def mail() -> None:
    """Never run here."""


def registry_of(shards: Shards) -> ShardedRegistry:
    return ShardedRegistry(shards=shards, tasks=[mail])


def test_a_shard_that_has_lost_all_its_keys_is_still_asked(
    make_shards: MakeShards,
) -> None:
    found = make_shards("eu", "us", "asia")
    urls = {one.name: one.database_url for one in found}
    before = Shards(urls, default="eu", map={"us": "0-1023"})
    registry = registry_of(before)
    registry.sharded.schedule("mail", id="order-0")
    registry.stop()
    after = Shards(urls, default="eu", map={"asia": "0-1023"})
    registry = registry_of(after)
    for shard in after:
        apply_marks(registry.on(shard.name).database, shard.name, after)
    assert registry.sharded.get("mail", "order-0") is not None
    assert registry.sharded.cancel("mail", "order-0").status == "cancelled"
    assert registry.sharded.cancel("mail", "order-0").status == "gone"
    registry.stop()


def test_a_connection_of_another_shard_is_refused(make_shards: MakeShards) -> None:
    shards = make_shards("eu", "us")
    registry = registry_of(shards)
    with psycopg.connect(shards["eu"].database_url) as driver:
        with pytest.raises(ConfigurationError, match=r"us.*leads to shard eu"):
            registry.sharded.schedule("mail", id="a", shard="us", connection=driver)
        registry.sharded.schedule("mail", id="a", shard="eu", connection=driver)
    registry.stop()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_connection_is_refused_while_its_shard_is_down(
    make_shards: MakeShards, is_known: bool
) -> None:
    """What eu is, is known: the caller's connection is none to us. Else nobody can tell."""
    found = make_shards("eu", "us")
    eu = found["eu"].database_url
    where = eu if is_known else NOWHERE + "2"
    shards = Shards({"eu": where, "us": NOWHERE}, default="eu")
    registry = registry_of(shards)
    expected = "leads to shard eu" if is_known else "does not answer"
    with (
        psycopg.connect(eu) as driver,
        pytest.raises(ConfigurationError, match=expected),
    ):
        registry.sharded.schedule("mail", id="a", shard="us", connection=driver)
    registry.stop()


def test_one_database_under_two_names_is_not_renamed(
    make_shards: MakeShards, run: Run
) -> None:
    """The advice for a copy, followed for what is no copy, must not stop the healthy shard."""
    shards = make_shards("eu", "us")
    write(shards)
    plan(shards)
    twin = f"{shards['eu'].database_url}?application_name=x"
    write(shards, us=twin)
    found, out, _ = run("shards")
    assert found == exits.DATABASE
    assert "for one database, correct the address of us" in out
    assert "total of 1" in out
    assert run("db", "new-epoch", "--shard", "us", "--yes")[0] == exits.OK
    found, _, err = run("shards", "apply", "--shard", "us", "--yes")
    assert found == exits.DATABASE
    assert "same installation id" in err
    assert "correct the address of us" in err
    write(shards)
    found, out, _ = run("shards")
    assert found == exits.OK, out


def test_a_bad_address_names_the_member() -> None:
    with pytest.raises(InvalidSetting, match="shard eu: "):
        Shard(name="eu", database_url="oracle://x/y")
