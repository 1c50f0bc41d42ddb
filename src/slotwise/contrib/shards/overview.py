"""What each shard looks like from outside, asked at a time; one that does not answer is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from slotwise import (
    Client,
    ConfigurationError,
    DatabaseProblem,
    Settings,
    SlotwiseError,
)
from slotwise.contrib.shards.marks import (
    Marks,
    apply_marks,
    check_marks,
    read_marks,
)
from slotwise.contrib.shards.shard import Shard
from slotwise.contrib.shards.shards import Shards
from slotwise.inspect import Value
from slotwise.spi import Database, describe_error

#: How many shards are asked at a time.
ASKING: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo(Value):
    """One shard; the figures are None if it does not answer, and ``problem`` says why.

    ``parts``: how many of the 1,024 parts of the keys are its own. ``due``: rows that are due and
    not claimed, the oldest for ``oldest``.
    """

    shard: str
    is_default: bool
    parts: int
    workers: int | None = None
    due: int | None = None
    oldest: timedelta | None = None
    installation: str | None = None
    problem: str | None = None


def look_at(
    shards: Shards, chosen: Sequence[Shard], settings: Settings
) -> list[ShardInfo]:
    """Return one line for each of these shards, in their order; raises nothing for a shard that
    is down.

    ``settings``: those that all shards have in common.
    """
    with ThreadPoolExecutor(min(ASKING, len(chosen)), "slotwise-shards") as pool:
        found = list(pool.map(lambda one: _look(shards, one, settings), chosen))
    return _with_twins(found)


def _look(shards: Shards, shard: Shard, settings: Settings) -> ShardInfo:
    known = ShardInfo(
        shard=shard.name,
        is_default=shard.name == shards.default,
        parts=shards.map.owners.count(shard.name),
    )
    own = settings.replace(**shard.settings)
    try:
        with _database(own) as database, Client.open(own) as client:
            marks = read_marks(database)
            problem = None
            try:
                check_marks(marks, shard.name, shards)
            except SlotwiseError as error:
                problem = str(error)
            backlog = client.inspect.backlog()
            return ShardInfo(
                shard=known.shard,
                is_default=known.is_default,
                parts=known.parts,
                workers=sum(one.live for one in client.inspect.workers()),
                due=sum(one.waiting for one in backlog),
                oldest=max((one.oldest for one in backlog), default=None),
                installation=marks.installation,
                problem=problem,
            )
    except (DatabaseProblem, SQLAlchemyError) as error:
        why = (
            describe_error(error) if isinstance(error, SQLAlchemyError) else str(error)
        )
        return ShardInfo(
            shard=known.shard,
            is_default=known.is_default,
            parts=known.parts,
            problem=" ".join(why.split()),
        )


def _with_twins(found: list[ShardInfo]) -> list[ShardInfo]:
    """Name the shards that lead to one installation."""
    first: dict[str, str] = {}
    shown: list[ShardInfo] = []
    for one in found:
        twin = first.setdefault(one.installation or one.shard, one.shard)
        if twin == one.shard or one.problem is not None:
            shown.append(one)
            continue
        problem = f"shards {twin} and {one.shard} have the same installation id"
        shown.append(
            ShardInfo(
                shard=one.shard,
                is_default=one.is_default,
                parts=one.parts,
                workers=one.workers,
                due=one.due,
                oldest=one.oldest,
                installation=one.installation,
                problem=problem,
            )
        )
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied(Value):
    """What ``apply`` did to one shard: the name and the map that it had before, or a problem."""

    shard: str
    former_name: str | None = None
    former_map: str | None = None
    is_changed: bool = False
    problem: str | None = None


def apply_map(
    shards: Shards,
    chosen: Sequence[Shard],
    settings: Settings,
    *,
    renames: bool = False,
    dry_run: bool = False,
) -> list[Applied]:
    """Write this map into each of the chosen shards; return what became of each.

    A database that says that it is another shard is refused, unless it ``renames``. A shard that
    is down is reported, and the others are written.
    """
    return [_apply(shards, one, settings, renames, dry_run) for one in chosen]


def _apply(
    shards: Shards, shard: Shard, settings: Settings, renames: bool, dry_run: bool
) -> Applied:
    try:
        with _database(settings.replace(**shard.settings)) as database:
            before = read_marks(database)
            if before.name not in (None, shard.name):
                if not renames:
                    check_marks(before, shard.name, shards)
                _refuse_twin(before, shard, shards, settings)
            if not dry_run:
                apply_marks(database, shard.name, shards)
    except (SlotwiseError, SQLAlchemyError) as error:
        why = (
            describe_error(error) if isinstance(error, SQLAlchemyError) else str(error)
        )
        return Applied(shard=shard.name, problem=" ".join(why.split()))
    now = (shard.name, shards.fingerprint)
    return Applied(
        shard=shard.name,
        former_name=before.name,
        former_map=before.map,
        is_changed=(before.name, before.map) != now,
    )


def _refuse_twin(
    before: Marks, shard: Shard, shards: Shards, settings: Settings
) -> None:
    """Raise ConfigurationError if the database that is to be this shard is another one's: its own
    workers would not start any more.
    """
    other = next((one for one in shards if one.name == before.name), None)
    if other is None:
        return
    with _database(settings.replace(**other.settings)) as database:
        installation = read_marks(database).installation
    if installation == before.installation:
        raise ConfigurationError(
            f"it has the same installation id as shard {other.name}, {installation}: for one "
            f"database, correct the address of {shard.name} in the settings; for a copy, give "
            f"it a new id first: slotwise db new-epoch --shard {shard.name}"
        )


@contextmanager
def _database(settings: Settings) -> Iterator[Database]:
    """A pool that is closed at the end; its errors are problems, in words."""
    database = Database(settings)
    try:
        with database.in_words():
            yield database
    finally:
        database.close()
