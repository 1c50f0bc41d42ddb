"""Names, the map of keys, and the forms of settings; no database."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from slotwise import ConfigurationError, InvalidSetting, Settings, SlotwiseError
from slotwise.contrib.shards import Shard, ShardedRegistry, Shards
from slotwise.contrib.shards.shard_map import PARTS, ShardMap, part_of
from slotwise.store.connect.notifications import channel_of

EU = "postgresql://app@eu/app"
US = "postgresql://app@us/app"


def two(**more: object) -> Shards:
    return Shards({"eu": EU, "us": US}, default="eu", **more)  # type: ignore[arg-type]


# -- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "part"), [("", 20), ("customer-7", 424), ("ä", 76), ("42", 653)]
)
def test_the_part_of_a_key_never_changes(key: str, part: int) -> None:
    """Rows stand where it has put them: SHA-256, its first eight bytes, modulo 1,024."""
    assert part_of(key) == part


@pytest.mark.parametrize("key", [7, None, b"7", 7.0, ("7",)])
def test_a_key_is_a_string(key: object) -> None:
    with pytest.raises(ConfigurationError, match="a key is a string"):
        part_of(key)  # type: ignore[arg-type]


def test_equal_parts_are_nearly_equal() -> None:
    for count in (1, 2, 3, 7, 200):
        names = [str(number) for number in range(count)]
        sizes = Counter(ShardMap.equal(names).owners)
        assert sum(sizes.values()) == PARTS
        assert max(sizes.values()) - min(sizes.values()) <= 1


def test_a_map_comes_back_from_its_ranges() -> None:
    names = ["a", "b", "c"]
    found = ShardMap.read(
        {"a": "0-9,100", "b": "10-99,101-1000", "c": "1001-1023"}, names
    )
    assert ShardMap.read(found.ranges, names) == found
    assert found.names == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"eu": "0-511", "us": "511-1023"}, "part 511 belongs to eu and to us"),
        ({"eu": "0-510", "us": "512-1023"}, "1 parts have no shard, the first is 511"),
        ({"eu": "0-1024"}, "ranges of 0 to 1023"),
        ({"eu": "9-1"}, "ranges of 0 to 1023"),
        ({"eu": 5.5}, "ranges of 0 to 1023"),
        ({"asia": "0-1023"}, "no shard 'asia'"),
    ],
)
def test_an_incomplete_map_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        two(map=given)


def test_the_fingerprint_is_that_of_map_and_default() -> None:
    assert two().fingerprint == two(map={"eu": "0-511", "us": "512-1023"}).fingerprint
    assert two().fingerprint != two(map={"eu": "0-510", "us": "511-1023"}).fingerprint
    other = Shards({"eu": EU, "us": US}, default="us")
    assert two().fingerprint != other.fingerprint


def test_a_shard_without_keys_changes_no_fingerprint() -> None:
    """A tenant may come without a deploy of the map."""
    alone = {"eu": "0-1023"}
    three = Shards({"eu": EU, "us": US, "t": f"{EU}2"}, default="eu", map=alone)
    assert three.fingerprint == two(map=alone).fingerprint


# -- names and addresses --------------------------------------------------------------------------


def test_bad_shards_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="there are no shards"):
        Shards({})
    with pytest.raises(ConfigurationError, match="which of eu, us is the default"):
        Shards({"eu": EU, "us": US})
    with pytest.raises(ConfigurationError, match="no shard 'asia'; known are eu, us"):
        Shards({"eu": EU, "us": US}, default="asia")
    twice = [Shard(name="eu", database_url=EU), Shard(name="eu", database_url=US)]
    with pytest.raises(ConfigurationError, match="'eu' is the name of 2 shards"):
        Shards(twice, default="eu")
    same = {"eu": EU, "us": EU}
    with pytest.raises(ConfigurationError, match="are the same database"):
        Shards(same, default="eu")
    with pytest.raises(SlotwiseError, match="no name of a shard"):
        Shard(name="e u", database_url=EU)
    with pytest.raises(SlotwiseError, match=r"oracle|not supported|unknown|driver"):
        Shard(name="eu", database_url="oracle://app@eu/app")
    with pytest.raises(InvalidSetting, match="shard eu: schema"):
        Shard(name="eu", database_url=EU, schema="No-Name")


def test_no_password_is_shown() -> None:
    shard = Shard(
        name="eu", database_url="postgresql://app:geheim@eu/app", schema="t1"
    )
    assert "geheim" not in repr(shard) + shard.address
    assert "t1" in shard.address


def test_one_shard_needs_no_default() -> None:
    assert Shards({"eu": EU}).default == "eu"


def test_a_sharded_registry_has_no_address_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match="database_url is that of each shard"):
        ShardedRegistry(shards=two(), database_url=EU)


def test_a_registry_needs_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="there are no shards"):
        ShardedRegistry()


# -- files ----------------------------------------------------------------------------------------

SHORT_TOML = """
poll-interval = "5s"
[shards]
default = "eu"
[shards.members]
eu = "postgresql://app@eu/app"
us = { url = "postgresql://app@us/app", schema = "jobs", poolSize = 2 }
[shards.map]
eu = "0-99"
us = "100-1023"
"""
LONG_YAML = """
pollingInterval: 5s
sharding:
  groups:
    - name: eu
      members:
        - configs:
            primaryConfig:
              jdbcUrl: jdbc:postgresql://eu:5432/app
              username: app
              password: secret
              maximumPoolSize: 20
            jobs-config:
              jdbc-url: jdbc:postgresql://eu:5432/app
              username: jobs
              maximum-pool-size: 5
        - name: second
          configs:
            primary-config:
              jdbc-url: jdbc:postgresql://eu2:5432/app
"""


def loaded(path: Path, text: str) -> Shards:
    path.write_text(text)
    found = Shards.load(path)
    assert found is not None
    return found


def test_the_short_form(tmp_path: Path) -> None:
    path = tmp_path / "slotwise.toml"
    found = loaded(path, SHORT_TOML)
    assert found.default == "eu"
    assert [shard.name for shard in found] == ["eu", "us"]
    assert (found["us"].schema, found["us"].pool_size) == ("jobs", 2)
    assert found.map.ranges == {"eu": "0-99", "us": "100-1023"}
    settings = Settings.load(config=path, environ={})
    assert settings.poll_interval.total_seconds() == 5


def test_the_form_of_the_java_library(tmp_path: Path) -> None:
    """Either spelling of each key; the first member of the first group is the default."""
    path = tmp_path / "slotwise.yaml"
    found = loaded(path, LONG_YAML)
    assert [shard.name for shard in found] == ["eu-1", "second"]
    assert found.default == "eu-1"
    first = found["eu-1"]
    assert first.pool_size == 5
    assert first.app_pool_size == 20
    assert "jobs" in first.database_url
    assert first.app_url is not None
    assert "secret" in first.app_url
    assert Settings.load(config=path, environ={}).poll_interval.total_seconds() == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[shards]\nmembers = 3", "shards.members must be a table"),
        ("[shards]\nmember = {}", "shards.member is not known"),
        ("[shards.members]\neu = 5", "shards.members.eu must be a table"),
        ("[shards.members.eu]\nschema = 'a'", "shards.members.eu has no url"),
        ("[shards.members.eu]\nhost = 'a'", "shards.members.eu.host is not known"),
        ("[shards.members.eu]\nurl = 'postgresql://x/y'\npool-size = 0", "1 to 100"),
        ("[sharding]\ngroups = []", "sharding has no groups"),
        ("[[sharding.groups]]\nname = 'a'", "groups.1. has no members"),
        ("[[sharding.groups]]\nmembers = [{}]", "neither jobs-config nor primary"),
        ("[shards]\n[sharding]\n", "say the same"),
    ],
)
def test_a_wrong_document_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SlotwiseError, match=message):
        loaded(tmp_path / "slotwise.toml", text)


# -- channels -------------------------------------------------------------------------------------


def test_a_schema_has_a_channel_of_its_own() -> None:
    longest = channel_of("p" * 32, "s" * 63)
    assert len(longest) <= 63
    assert channel_of("scheduled_") == channel_of("scheduled_", "public")
    assert channel_of("scheduled_", "a") != channel_of("scheduled_", "b")
