"""A checker is trusted after it has failed: worlds whose engines lack one rule break a law.

That an engine which lacks none breaks none is said by the simulation itself, over worlds of the
same kind.
"""

from __future__ import annotations

import pytest
from tests.kit.breaks import Mutant
from tests.simulation.mutants import AFTER_RESTORES, MUTANTS
from tests.simulation.trace import LawBroken
from tests.simulation.world import World

from slotwise import Settings
from slotwise.operations import Schema
from slotwise.spi import Database
from slotwise.testing.manual_worker import IN_MEMORY

#: A world takes seconds, and on a busy machine a minute: what is looked for is a breach, not
#: speed.
pytestmark = [pytest.mark.timeout(600), pytest.mark.extended]

#: So many worlds may pass before a mutant must have been found out.
WORLDS = 40
#: Where what is due is never done, each round of the calm costs more. Sound worlds of these seeds
#: need half of these rounds.
LONGEST_CALM = 60
#: A world that has found out a rule which few worlds miss. It is looked at first, to save time.
SOON = {"a settlement minds the claim's version and holder": 8}


def first_breach(mutant: Mutant, *, first: int = 0, restores: bool = False) -> str:
    """What the first world says that finds the mutant out; empty if none does."""
    for seed in (first, *range(WORLDS)):
        database = Database(Settings(database_url=IN_MEMORY))
        Schema.create_in(database)
        try:
            with mutant.at_large():
                World(
                    seed, database, restores=restores, longest_calm=LONGEST_CALM
                ).run()
        except LawBroken as broken:
            return str(broken)
        finally:
            database.close()
    return ""


@pytest.mark.parametrize("rule", MUTANTS)
def test_an_engine_without_a_rule_is_found_out(rule: str) -> None:
    """What is told is enough to play the world again."""
    told = first_breach(MUTANTS[rule], first=SOON.get(rule, 0))
    headline, *events = told.splitlines()
    assert headline.startswith("seed ")
    assert 1 < len(events) <= 50
    assert all(len(event.split()) > 3 for event in events)


@pytest.mark.parametrize("mutant", AFTER_RESTORES.values(), ids=AFTER_RESTORES)
def test_a_ledger_that_nobody_asks_is_found_out(mutant: Mutant) -> None:
    """Where the queue is put back, only the ledger knows what has run."""
    assert first_breach(mutant, restores=True)
