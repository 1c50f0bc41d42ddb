"""The statement of a simulated time balances: with outages, deploys, pauses and operators."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
from tests.simulation.world import World

from slotwise import Settings
from slotwise.contrib.statement import Statement, statement
from slotwise.operations import Schema
from slotwise.spi import Database
from slotwise.testing.manual_worker import IN_MEMORY

#: All of them: STATEMENT_WORLDS=300.
SEEDS = range(int(os.environ.get("STATEMENT_WORLDS", "3")))


def statement_of(world: World) -> Statement:
    now = world.clock.now()
    inspect = world.agents[0].worker.inspect
    return statement(inspect, now - timedelta(days=2), now, now=now)


@pytest.mark.parametrize("number", SEEDS)
def test_it_balances(number: int) -> None:
    """Each slot of each schedule that a job had is explained, and none stands twice. In every third
    world the queue alone is restored.
    """
    database = Database(Settings(database_url=IN_MEMORY))
    Schema.create_in(database)
    try:
        world = World(number, database, restores=number % 3 == 2)
        world.run()
        found = statement_of(world)
    finally:
        database.close()
    assert [one for one in found.jobs if not one.balances] == []
    assert found.total.expected > 100
    assert found.total.ran > 20
