"""Simulated clusters: many workers, accidents by seed, and the laws looking on.

    python -m pytest tests/simulation                      8 worlds, as on each commit
    python -m pytest tests/simulation --seeds 500 -n 2     500 worlds
    python -m pytest tests/simulation --seeds 17-17        one of them, again

A broken law is told with its seed and with the last 50 events of the slot.
"""

from __future__ import annotations

import pytest
from tests.simulation.world import World

from slotwise import Settings
from slotwise.operations import Schema
from slotwise.spi import Database
from slotwise.testing.manual_worker import IN_MEMORY


def test_the_laws_hold(memory: Database, seed: int) -> None:
    """Whatever happens: no slot is completed twice, none is missing, none starts without a
    reason.
    """
    World(seed, memory).run()


def test_the_laws_hold_on_postgresql(pg_url: str, rare_seed: int) -> None:
    """The same worlds, on the reference."""
    database = Database(Settings(database_url=pg_url))
    try:
        World(rare_seed, database).run()
    finally:
        database.close()


@pytest.mark.extended
def test_the_laws_hold_on_mariadb(mysql_url: str, rare_seed: int) -> None:
    """The same worlds, by locks of rows alone."""
    database = Database(Settings(database_url=mysql_url))
    try:
        World(rare_seed, database).run()
    finally:
        database.close()


def test_the_laws_hold_where_the_queue_is_restored(
    memory: Database, rare_seed: int
) -> None:
    """Also where scheduled_tasks, alone, comes back from a backup: nothing that the ledger knows
    is done again.
    """
    World(rare_seed, memory, restores=True).run()


@pytest.mark.extended
def test_the_laws_hold_where_the_queue_is_restored_on_postgresql(
    pg_url: str, rare_seed: int
) -> None:
    """The same, on the reference."""
    database = Database(Settings(database_url=pg_url))
    try:
        World(rare_seed, database, restores=True).run()
    finally:
        database.close()


#: What must happen, in one world or another, for the laws to see anything.
HAPPENINGS = [
    "claims",
    "starts attempt 1",
    "starts attempt 2",
    "ends as failed",
    "ends as succeeded",
    "completes in its own",
    "cannot complete",
    "settled as succeeded",
    "settled as failed (retry)",
    ": lost",
    ": succeeded",
    ": handed_back",
    "hands back: unknown",
    "hands back: queued",
    "has lost its claim",
    "crashes",
    "freezes",
    "drains",
    "is stepped by",
    "plans: changed",
    "hears nothing of its claims",
    "operations: trigger",
    "operations: skip_next",
    "operations: cancel ",
    "operations: retry",
    "operations: backfill",
    "operations: pause",
    " until ",
    "operations: resume",
]


#: So many worlds may pass until everything has happened. In the first two, it does at present.
WORLDS = [15, 10, *range(10), *range(16, 24)]


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_the_worlds_are_not_idle() -> None:
    """A checker that sees nothing finds nothing: each kind of accident and of end occurs."""
    missing, starts, successes = set(HAPPENINGS), 0, 0
    for seed in WORLDS:
        database = Database(Settings(database_url=IN_MEMORY))
        Schema.create_in(database)
        world = World(seed, database)
        laws = world.run()
        database.close()
        missing -= {
            word
            for entry in world.trace.entries
            for word in HAPPENINGS
            if word in entry.what
        }
        starts += sum(laws.starts.values())
        successes += sum(map(len, laws.successes.values()))
        if not missing:
            break
    assert not missing
    assert starts > 60
    assert successes > 30
