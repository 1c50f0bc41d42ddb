"""A checker is trusted after it has failed: worlds whose engines lack one rule break a law.

That an engine which lacks none breaks none is said by the simulation itself, over the same worlds.
"""

from __future__ import annotations

import pytest
from tests.model.mutants import Mutant
from tests.simulation.mutants import AFTER_RESTORES, DIALECTS, SABOTAGES
from tests.simulation.rules import RULES
from tests.simulation.stage import Sabotage
from tests.simulation.trace import LawBroken
from tests.simulation.world import World

from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.store.dialects.dialect import Dialect
from slotwise.store.slots import door
from slotwise.testing.worker import IN_MEMORY, provision

#: A world takes seconds, and on a busy machine a minute: what is looked for is a breach, not speed.
pytestmark = pytest.mark.timeout(600)

#: So many worlds may pass before a mutant must have been found out; the first is one that was seen to be quick at it.
WORLDS, FIRST = 20, 9
#: For whom that is another one.
QUICK = {"AdvancesBlindly": 22}


def first_breach(sabotage: Sabotage = lambda worker: None, *, restores: bool = False, first: int = FIRST) -> str:
    """What the first world says that finds the mutant out; empty if none does."""
    for seed in sorted({*range(WORLDS), first}, key=lambda seed: seed != first):
        database = Database(Settings(database_url=IN_MEMORY))
        provision(database)
        try:
            World(seed, database, sabotage=sabotage, restores=restores).run()
        except LawBroken as broken:
            return str(broken)
        finally:
            database.close()
    return ""


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda kind: kind.__name__)
def test_a_dialect_without_a_rule_is_found_out(dialect: type[Dialect], monkeypatch: pytest.MonkeyPatch) -> None:
    """Among them a settlement that ignores the version; what is told is enough to play it again."""
    monkeypatch.setitem(door._DIALECTS, "sqlite", dialect)
    headline, *events = first_breach(first=QUICK.get(dialect.__name__, FIRST)).splitlines()
    assert headline.startswith("seed ")
    assert 1 < len(events) <= 50
    assert all(len(event.split()) > 3 for event in events)


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda function: function.__name__)
def test_a_worker_without_a_rule_is_found_out(sabotage: Sabotage) -> None:
    """Whoever takes from the living, starts unasked or leaves the dead what they held."""
    assert first_breach(sabotage)


@pytest.mark.parametrize("dialect", AFTER_RESTORES, ids=lambda kind: kind.__name__)
def test_a_ledger_that_nobody_asks_is_found_out(dialect: type[Dialect], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the queue is put back, only the ledger knows what has run."""
    monkeypatch.setitem(door._DIALECTS, "sqlite", dialect)
    assert first_breach(restores=True, first=6)


@pytest.mark.parametrize(("rule", "number"), RULES.values(), ids=RULES)
def test_an_engine_without_a_rule_is_found_out(rule: Mutant, number: int) -> None:
    """Who may take what, what goes first, how often, and what waits unseen."""
    with rule.at_large():
        assert first_breach(first=number)
